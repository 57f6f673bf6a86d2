"""Questions to the cache about the prompt of a sequence that waits.

How much of it would have to be computed now, whether a part is on its way from the disk, and
the match that opens it. Knows the cache and one sequence at a time. Knows no order and no slots.
"""

from typing import TypedDict

from radix_cache.cache import CachedSequence, PrefixCache
from runtime.messages import TokenArray
from runtime.scheduling.sequence import Sequence


class PromptLookup:
    """Looks prompts up in one cache."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._awaited: dict[Sequence, int] = {}
        """The last order that reads a waiting sequence's KV from the disk."""

    def fetch(self, sequence: Sequence) -> None:
        """Have what is on disk of the prompt read into host memory while the sequence waits."""
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
        """The sequence does not wait any more."""
        self._awaited.pop(sequence, None)


class _Prompt(TypedDict):
    """The prompt, as the cache's methods name it."""

    branch_id: str
    tenant: str
    tokens: TokenArray
    base_branch_id: str | None
    base_offset: int | None
    adapter: str


def _prompt(sequence: Sequence) -> _Prompt:
    base_branch_id, base_offset = _base(sequence)
    return {
        "branch_id": sequence.request.branch_id,
        "tenant": sequence.request.tenant,
        "tokens": sequence.buffer.view(),
        "base_branch_id": base_branch_id,
        "base_offset": base_offset,
        "adapter": sequence.adapter_key,
    }


def _base(sequence: Sequence) -> tuple[str | None, int | None]:
    """Whose handle to match by, and how many tokens it vouches for. A preempted sequence has a
    handle of its own, which tells no more where the transcript came from."""
    request = sequence.request
    if sequence.preemptions:
        return request.branch_id, None
    if request.base_branch_id is None:
        return None, None
    return request.base_branch_id, sequence.vouched
