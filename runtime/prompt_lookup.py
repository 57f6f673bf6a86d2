"""What the cache is asked about the prompt of a turn that waits.

How much of it would have to be computed now, whether a part is on its way from the disk, and
the match that opens it. Knows the cache and one turn at a time. Knows no order and no places.
"""

from typing import Any

from radix_cache.cache import CachedSequence, PrefixCache
from runtime.sequence import Sequence


class PromptLookup:
    """Asks one cache."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._awaited: dict[Sequence, int] = {}
        """The last order that reads a waiting turn's KV from the disk."""

    def fetch(self, sequence: Sequence) -> None:
        """Have what is on disk of the prompt read into host memory while the turn waits."""
        if self._cache.prefetch(**_prompt(sequence)):
            self._awaited[sequence] = self._cache.last_order

    def estimate(self, sequence: Sequence) -> None:
        """Note how much of the prompt would have to be computed if it were admitted now."""
        matched = self._cache.match_length(**_prompt(sequence))
        sequence.uncached_estimate = len(sequence.buffer) - matched

    def begin(self, sequence: Sequence) -> CachedSequence:
        """Match the prompt and lock what is there."""
        return self._cache.begin(**_prompt(sequence))

    def is_read(self, sequence: Sequence) -> bool:
        """Whether a part of the prompt is on its way from the disk."""
        if sequence not in self._awaited:
            return False
        if self._cache.is_reading(self._awaited[sequence]):
            return True
        del self._awaited[sequence]
        self.estimate(sequence)
        return False

    def forget(self, sequence: Sequence) -> None:
        """The turn does not wait any more."""
        self._awaited.pop(sequence, None)


def _prompt(sequence: Sequence) -> dict[str, Any]:
    base_session_id, base_offset = _base(sequence)
    return {
        "session_id": sequence.request.session_id,
        "tenant": sequence.request.tenant,
        "tokens": sequence.buffer.view(),
        "base_session_id": base_session_id,
        "base_offset": base_offset,
    }


def _base(sequence: Sequence) -> tuple[str | None, int | None]:
    """Whose handle to match by, and how many tokens it vouches for. A preempted turn has a
    handle of its own, which says no more about where the transcript came from."""
    request = sequence.request
    if sequence.preemptions:
        return request.session_id, None
    if request.base_session_id is None:
        return None, None
    return request.base_session_id, sequence.vouched
