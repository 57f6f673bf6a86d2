"""A turn while the engine works on it: its tokens, how far their KV is written, its state.

One rule covers prefill, decode and recomputation: ``num_computed`` tokens have KV, the
rest are pending, and a step computes some of the pending ones; when none would be left the
step also yields the next token. A sequence knows no tensors, no scheduler and no grammar
library; only the engine loop touches it.
"""

import enum

import numpy as np

from radix_cache.cache import CachedSequence
from runtime.messages import FinishReason, GenerationRequest, TokenArray
from runtime.token_mask import GrammarState

_WARM_SHARE = 0.8


class TokenBuffer:
    """Append-only int32 array with amortised O(1) append; ``view()`` copies nothing."""

    __slots__ = ("_array", "length")

    def __init__(self, tokens: TokenArray | None = None) -> None:
        self.length = 0 if tokens is None else len(tokens)
        self._array = np.empty(max(64, self.length + self.length // 4), dtype=np.int32)
        if tokens is not None:
            self._array[: self.length] = tokens

    def __len__(self) -> int:
        return self.length

    def view(self) -> TokenArray:
        """The tokens, int32 [len]. Valid until the next append or truncate."""
        return self._array[: self.length]

    def append(self, token: int) -> None:
        if self.length == len(self._array):
            self._reserve(self.length + 1)
        self._array[self.length] = token
        self.length += 1

    def extend(self, tokens: TokenArray) -> None:
        end = self.length + len(tokens)
        if end > len(self._array):
            self._reserve(end)
        self._array[self.length : end] = tokens
        self.length = end

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"truncate to {length}, {self.length} tokens held")
        self.length = length

    def _reserve(self, length: int) -> None:
        grown = np.empty(max(length, 2 * len(self._array)), dtype=np.int32)
        grown[: self.length] = self._array[: self.length]
        self._array = grown


class SequenceState(enum.Enum):
    """Where a sequence stands. DONE is final."""

    COMPILING = "compiling"
    """Its grammar is being compiled; it is not schedulable and nobody waits for it."""
    WAITING = "waiting"
    RUNNING = "running"
    FLUSHING = "flushing"
    """Finished for the client; the KV of its last tokens is still to be written."""
    DONE = "done"


class Sequence:
    """One request on its way. ``buffer`` is the session's own token buffer."""

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "block_limit",
        "buffer",
        "cached",
        "expected_output",
        "final_length",
        "finish",
        "grammar",
        "last_reported_position",
        "num_computed",
        "preemptions",
        "prompt_length",
        "publish_at",
        "request",
        "reusable",
        "session_start_s",
        "started",
        "state",
        "stop_tail",
        "uncached_estimate",
        "vouched",
    )

    def __init__(
        self,
        request: GenerationRequest,
        buffer: TokenBuffer,
        *,
        arrival_s: float,
        vouched: int = 0,
    ) -> None:
        self.request = request
        self.buffer = buffer
        self.vouched = vouched
        """Leading tokens that the base session's cache handle is known to stand for."""
        self.prompt_length = len(buffer)
        self.arrival_s = arrival_s
        self.admitted_s: float | None = None
        self.num_computed = 0
        self.cached: CachedSequence | None = None
        self.block_limit = 0
        """Tokens that the blocks of ``cached`` hold."""
        self.publish_at = 0
        """``num_computed`` at which another whole block can be published."""
        self.grammar: GrammarState | None = None
        self.state = SequenceState.WAITING
        self.finish: FinishReason | None = None
        self.final_length = 0
        """Tokens at the end of the turn; the buffer may hold the next turn's by now."""
        self.started = False
        self.preemptions = 0
        self.uncached_estimate = self.prompt_length
        self.reusable = vouched
        """Leading tokens that an endless cache would hold."""
        self.session_start_s = arrival_s
        """When the first turn of the session arrived, as far as the scheduler remembers."""
        self.expected_output = 0
        self.stop_tail = b""
        self.last_reported_position: int | None = None

    @property
    def num_emitted(self) -> int:
        return len(self.buffer) - self.prompt_length

    @property
    def num_pending(self) -> int:
        """Known tokens without KV."""
        return len(self.buffer) - self.num_computed

    @property
    def remaining(self) -> int:
        """How many more tokens the limit allows."""
        return self.request.max_new_tokens - self.num_emitted

    @property
    def warm(self) -> bool:
        """Whether most of what could be reused is in the cache, by the last look at it."""
        matched = len(self.buffer) - self.uncached_estimate
        return self.reusable > 0 and matched >= _WARM_SHARE * self.reusable

    @property
    def decoding(self) -> bool:
        """True once the turn has emitted something and is not being recomputed: what is
        pending is the last token and the forced run behind it."""
        return self.num_emitted > 0 and self.num_computed >= self.prompt_length

    @property
    def flush_target(self) -> int:
        """Tokens whose KV is worth writing after the end: all but the last one, which the
        next turn's first step computes anyway."""
        return self.final_length - 1
