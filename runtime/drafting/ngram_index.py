"""Where the last tokens of a text stood before, for copying what followed them there.

An index over one growing token array. For n-grams of three lengths a hash table leads to
the latest position that ends one, and each position to the one before it. The table keeps
no tokens: a hit is a guess that is checked against the array, so a collision costs time and
never a wrong match.

Knows int32 arrays and nothing else. A call does a bounded amount of work whatever the
length of the text: a look-up compares a few positions, and what is new is indexed some
thousand tokens a call, so that a long input never holds up a step.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]

ORDERS = (8, 4, 2)
"""n-gram lengths, longest first."""
MAX_MATCH = 32
"""Longest context that is compared."""
_MAX_HITS = 16
_MIN_SLOTS = 1 << 10
_MIX = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, odd
_BITS64 = 2**64 - 1
_FEW_TOKENS = 16
_MAX_NEW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Matches:
    """Earlier places whose preceding tokens are those of the context."""

    length: int
    """How many preceding tokens agree, at most MAX_MATCH."""
    next_positions: Positions
    """Where the text went on at each place, latest first."""


class NgramIndex:
    """The caller keeps the array and hands it in; it may only grow between calls."""

    def __init__(self) -> None:
        self._length = 0
        self._room = _MIN_SLOTS
        self._tables = [_Table(order, self._room) for order in ORDERS]

    def __len__(self) -> int:
        """Number of tokens indexed so far."""
        return self._length

    @property
    def num_bytes(self) -> int:
        return sum(table.num_bytes for table in self._tables)

    def extend(self, tokens: TokenArray) -> None:
        """Index what ``tokens`` has beyond the length seen last, at most 2048 of them; the
        rest is as it was."""
        if len(tokens) > self._room:
            # Twice what is needed, so that starting again is paid once per doubling.
            self._room = 1 << (2 * len(tokens) - 1).bit_length()
            self._tables = [_Table(order, self._room) for order in ORDERS]
            self._length = 0
        start, self._length = self._length, min(len(tokens), self._length + _MAX_NEW_TOKENS)
        if start < self._length:
            for table in self._tables:
                table.extend(tokens[: self._length], start)

    def match(self, tokens: TokenArray, context: TokenArray) -> Matches | None:
        """The longest earlier occurrences of the end of ``context``.

        Args:
            tokens: the indexed array.
            context: int32 [<= MAX_MATCH are used]; the tokens before the one that is asked
                for. It need not be the end of ``tokens``.

        Returns:
            None if not even the last two tokens occur before.
        """
        context = context[-MAX_MATCH:]
        for table in self._tables:
            if len(context) < table.order:
                continue
            ends = table.hits(context)
            ends = ends[(ends >= table.order - 1) & (ends < self._length - 1)]
            if not len(ends):
                continue
            lengths = _match_lengths(tokens, ends, context)
            longest = int(lengths.max())
            if longest >= table.order:
                return Matches(longest, ends[lengths == longest] + 1)
        return None


class _Table:
    """Chains of the positions that end n-grams of one length, by hash."""

    def __init__(self, order: int, slots: int) -> None:
        self.order = order
        self._heads = np.full(slots, -1, dtype=np.int32)
        self._previous = np.empty(slots, dtype=np.int32)

    @property
    def num_bytes(self) -> int:
        return self._heads.nbytes + self._previous.nbytes

    def extend(self, tokens: TokenArray, start: int) -> None:
        length = len(tokens)
        first = max(start, self.order - 1)
        if length - first <= _FEW_TOKENS:
            for position in range(first, length):
                ngram = tokens[position - self.order + 1 : position + 1].tolist()
                slot = self._slot(ngram)
                self._previous[position] = self._heads[slot]
                self._heads[slot] = position
            return
        slots_of = self._slots(tokens[first - self.order + 1 :])
        positions = np.arange(first, length, dtype=np.int32)
        by_slot = np.argsort(slots_of, kind="stable")
        sorted_slots, sorted_positions = slots_of[by_slot], positions[by_slot]
        follows = np.empty(len(by_slot), dtype=bool)
        follows[0], follows[1:] = False, sorted_slots[1:] == sorted_slots[:-1]
        before = self._heads[sorted_slots]
        before[1:][follows[1:]] = sorted_positions[:-1][follows[1:]]
        self._previous[sorted_positions] = before
        self._heads[sorted_slots] = sorted_positions  # of equal slots the last one stays

    def hits(self, context: TokenArray) -> Positions:
        """Latest positions with the hash of the context's last n-gram, latest first."""
        position = int(self._heads[self._slot(context[-self.order :].tolist())])
        found: list[int] = []
        while position >= 0 and len(found) < _MAX_HITS:
            found.append(position)
            position = int(self._previous[position])
        return np.array(found, dtype=np.int64)

    def _slots(self, tokens: TokenArray) -> Positions:
        """Slot of each n-gram of ``tokens``, [len(tokens) - order + 1]."""
        wide = tokens.astype(np.uint64)
        count = len(tokens) - self.order + 1
        mixed = np.zeros(count, dtype=np.uint64)
        for offset in range(self.order):
            mixed = (mixed ^ wide[offset : offset + count]) * np.uint64(_MIX)
            mixed ^= mixed >> np.uint64(32)
        return (mixed & np.uint64(len(self._heads) - 1)).astype(np.int64)

    def _slot(self, ngram: list[int]) -> int:
        """The same for one n-gram; for a few of them much faster."""
        mixed = 0
        for token in ngram:
            mixed = ((mixed ^ token) * _MIX) & _BITS64
            mixed ^= mixed >> 32
        return mixed & (len(self._heads) - 1)


def _match_lengths(tokens: TokenArray, ends: Positions, context: TokenArray) -> Positions:
    """How many tokens up to each end agree with the end of the context."""
    back = np.arange(len(context))
    at = ends[:, None] - back[None, :]
    agree = (tokens[np.maximum(at, 0)] == context[::-1][None, :]) & (at >= 0)
    lengths: Positions = np.where(agree.all(axis=1), len(context), agree.argmin(axis=1))
    return lengths
