"""A sequence while the engine works on it: its tokens, how far their KV is written, its state.

One rule covers prefill, decode and recomputation: ``num_computed`` tokens have KV, the
rest are pending, and a step computes some of the pending ones; when none would be left the
step also yields the next token. A sequence knows no tensors, no scheduler and no grammar
library; only the engine loop touches it.
"""

import enum
from typing import Final

import numpy as np

from radix_cache.cache import CachedSequence
from radix_cache.snapshots import SnapshotKind
from runtime.grammar.state import GrammarState
from runtime.grammar.stop_search import StopSearch
from runtime.messages import FinishReason, GenerationRequest, TokenArray
from runtime.scheduling.decode_rows import DecodeRows, Row

_WARM_SHARE = 0.8
WITHOUT_ADAPTER: Final = (-1, "")
"""The number and the name in the cache that stand for no adapter."""


class TokenBuffer:
    """Append-only int32 array with amortised O(1) append; ``view()`` copies nothing.

    While its sequence decodes, steps put tokens into the sequence's row; they are stored here when
    somebody looks, or when the row's tail is full.
    """

    __slots__ = ("_array", "_row", "_stored", "adapter")

    def __init__(self, tokens: TokenArray | None = None) -> None:
        self.adapter: tuple[int, str] = WITHOUT_ADAPTER
        """That its branch's newest request is computed with."""
        self._row: Row | None = None
        self._stored = 0 if tokens is None else len(tokens)
        self._array = np.empty(max(64, self._stored + self._stored // 4), dtype=np.int32)
        if tokens is not None:
            self._array[: self._stored] = tokens

    def __len__(self) -> int:
        return self._stored if self._row is None else self._row.length

    def view(self) -> TokenArray:
        """The tokens, int32 [len]. Valid until the next append or truncate."""
        self.settle()
        return self._array[: self._stored]

    def part(self, start: int, end: int) -> TokenArray:
        """Tokens from ``start`` to ``end``, int32. Valid until the next step."""
        row = self._row
        if row is not None and self._stored <= start:
            return row.tail(start, end)
        return self.view()[start:end]

    def append(self, token: int) -> None:
        self.settle()
        if self._stored == len(self._array):
            self._reserve(self._stored + 1)
        self._array[self._stored] = token
        self._set(self._stored + 1)

    def extend(self, tokens: TokenArray) -> None:
        self.settle()
        self._store(tokens)
        self._set(self._stored)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self):
            raise ValueError(f"truncate to {length}, {len(self)} tokens held")
        self.settle()
        self._set(length)

    def settle(self) -> None:
        """Store what steps have put into the row's tail."""
        row = self._row
        if row is not None and row.length != self._stored:
            self._store(row.tail(self._stored, row.length))

    def share(self, row: Row | None) -> None:
        """Have steps put tokens into ``row`` from now on, which has the same length; None: into no
        row any more."""
        self.settle()
        self._row = row

    def _set(self, length: int) -> None:
        self._stored = length
        if self._row is not None:
            self._row.length = length

    def _store(self, tokens: TokenArray) -> None:
        end = self._stored + len(tokens)
        if end > len(self._array):
            self._reserve(end)
        self._array[self._stored : end] = tokens
        self._stored = end

    def _reserve(self, length: int) -> None:
        grown = np.empty(max(length, 2 * len(self._array)), dtype=np.int32)
        grown[: self._stored] = self._array[: self._stored]
        self._array = grown


class SequenceState(enum.Enum):
    """Where a sequence stands. DONE is final."""

    COMPILING = "compiling"
    """The sequence's grammar is being compiled; it is not schedulable and nobody waits for it."""
    WAITING = "waiting"
    RUNNING = "running"
    FLUSHING = "flushing"
    """Finished for the client; the KV of its last tokens is still to be written."""
    DONE = "done"


class Sequence:
    """One request on its way. ``buffer`` is the branch's own token buffer."""

    __slots__ = (
        "_block_limit",
        "_num_computed",
        "admitted_s",
        "arrival_s",
        "branch_start_s",
        "buffer",
        "cached",
        "cuts",
        "expected_output",
        "final_length",
        "finish",
        "grammar",
        "preemptions",
        "prompt_length",
        "request",
        "reusable",
        "row",
        "started",
        "state",
        "stop_search",
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
        adapter: tuple[int, str] = WITHOUT_ADAPTER,
    ) -> None:
        self.request = request
        self.buffer = buffer
        buffer.adapter = adapter
        self.vouched = vouched
        """Leading tokens that the base branch's cache handle is known to stand for."""
        self.prompt_length = len(buffer)
        self.arrival_s = arrival_s
        self.admitted_s: float | None = None
        self.row: Row | None = None
        """Where steps write while the sequence decodes; a sequence that decodes may have none
        yet."""
        self._num_computed = 0
        self._block_limit = 0
        self.cached: CachedSequence | None = None
        self.cuts: dict[int, SnapshotKind] = {}
        """Positions, ascending, at which a chunk is to end, because the state there is kept."""
        self.grammar: GrammarState | None = None
        self.stop_search: StopSearch | None = None
        self.state = SequenceState.WAITING
        self.finish: FinishReason | None = None
        self.final_length = 0
        """Tokens at the end of the sequence; the buffer may hold the next request's by now."""
        self.started = False
        """Whether its client has been told that it was admitted."""
        self.preemptions = 0
        self.uncached_estimate = self.prompt_length
        self.reusable = vouched
        """Leading tokens that an endless cache would hold."""
        self.branch_start_s = arrival_s
        """When the first request of the branch arrived, as far as the scheduler remembers."""
        self.expected_output = 0

    @property
    def adapter(self) -> int:
        """The model's number for its adapter."""
        return self.buffer.adapter[0]

    @property
    def adapter_key(self) -> str:
        """The name of its adapter in the cache."""
        return self.buffer.adapter[1]

    def open_row(self, arrays: DecodeRows, block_size: int) -> Row:
        """The sequence decodes from now on: what steps change of it is in the arrays."""
        computed = self._num_computed
        self.row = arrays.open(
            length=len(self.buffer),
            computed=computed,
            block_limit=self._block_limit,
            publish_at=(computed // block_size + 1) * block_size,
        )
        self.buffer.share(self.row)
        return self.row

    def close_row(self) -> None:
        """The sequence does not decode any more."""
        row = self.row
        assert row is not None
        self._num_computed, self._block_limit = row.computed, row.block_limit
        self.buffer.share(None)
        self.row = None
        row.arrays.close(row)

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is written."""
        return self._num_computed if self.row is None else self.row.computed

    @num_computed.setter
    def num_computed(self, value: int) -> None:
        if self.row is None:
            self._num_computed = value
        else:
            self.row.computed = value

    @property
    def block_limit(self) -> int:
        """Tokens that the blocks of ``cached`` hold."""
        return self._block_limit if self.row is None else self.row.block_limit

    @block_limit.setter
    def block_limit(self, value: int) -> None:
        if self.row is None:
            self._block_limit = value
        else:
            self.row.block_limit = value

    @property
    def num_emitted(self) -> int:
        return len(self.buffer) - self.prompt_length

    @property
    def num_pending(self) -> int:
        """Known tokens without KV."""
        return len(self.buffer) - self.num_computed

    def to_next_cut(self, num_tokens: int) -> int:
        """The tokens before the next cut, among so many to compute."""
        if self.cuts:
            for cut in self.cuts:
                if cut > self.num_computed:
                    return min(num_tokens, cut - self.num_computed)
        return num_tokens

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
        """True once the sequence has emitted something and is not being recomputed: what is
        pending is the last token and the forced run behind it."""
        if self.row is not None:
            return True
        return self.num_emitted > 0 and self.num_computed >= self.prompt_length

    @property
    def flush_target(self) -> int:
        """Tokens whose KV is worth writing after the end: all but the last one, which the
        next request's first step computes anyway."""
        return self.final_length - 1
