"""Arrays of what steps change of the sequences that decode: a row for each sequence.

A step that gives every sequence one token writes these arrays in a few operations, whatever the
number of sequences. A sequence and its token buffer share their ``Row`` and read their own numbers
from it. Knows rows, counts and tokens. Knows no sequences, no blocks and no plan.

Always true: a row's last tokens, at most ``TAIL`` and all that its buffer has not stored yet,
are in its tail, the token of position p in column p modulo ``TAIL``.
"""

import numpy as np
import numpy.typing as npt

from runtime.messages import TokenArray

IntArray = npt.NDArray[np.int64]
TAIL = 128
_FIRST_CAPACITY = 64
_LEAST_GAPS = 16
_ENDLESS = np.iinfo(np.int64).max


class Row:
    """One sequence's row of the arrays; ``index`` changes only in ``DecodeRows.close_gaps``."""

    __slots__ = ("arrays", "index")

    def __init__(self, arrays: "DecodeRows", index: int) -> None:
        self.arrays = arrays
        self.index = index

    @property
    def length(self) -> int:
        """Number of the sequence's tokens that are known."""
        return self.arrays.length_at[self.index]

    @length.setter
    def length(self, value: int) -> None:
        self.arrays.length_at[self.index] = value

    @property
    def computed(self) -> int:
        """Tokens whose KV is written."""
        return self.arrays.computed_at[self.index]

    @computed.setter
    def computed(self, value: int) -> None:
        self.arrays.computed_at[self.index] = value

    @property
    def block_limit(self) -> int:
        """Tokens that the sequence's blocks hold."""
        return self.arrays.block_limit_at[self.index]

    @block_limit.setter
    def block_limit(self, value: int) -> None:
        self.arrays.block_limit_at[self.index] = value

    def tail(self, start: int, end: int) -> TokenArray:
        """Tokens of the positions from ``start`` on, at most ``TAIL`` of them."""
        columns: TokenArray = self.arrays.tails[self.index]
        first = start % TAIL
        if first + end - start <= TAIL:
            return columns[first : first + end - start]
        return np.concatenate((columns[first:], columns[: end % TAIL]))


class DecodeRows:
    """Rows in the order in which they were opened. Rows that were closed leave gaps."""

    def __init__(self) -> None:
        self.num_rows = 0
        """Number of rows, gaps included."""
        self.length: IntArray = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.computed: IntArray = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.block_limit: IntArray = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        """Tokens that a sequence's blocks hold; in a gap more than any sequence has."""
        self.publish_at: IntArray = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        """``computed`` at which another whole block can be published, at the earliest."""
        self.tails: TokenArray = np.zeros((_FIRST_CAPACITY, TAIL), dtype=np.int32)
        self._is_open: npt.NDArray[np.bool_] = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)
        self._rows: list[Row] = []
        self._num_gaps = 0
        self._look()

    def _look(self) -> None:
        """The same memory, for single numbers: much faster than through numpy."""
        self.length_at = self.length.data
        self.computed_at = self.computed.data
        self.block_limit_at = self.block_limit.data

    def open(self, *, length: int, computed: int, block_limit: int, publish_at: int) -> Row:
        """Add a row for a sequence behind the others."""
        if self.num_rows == len(self.length):
            self._double()
        row = Row(self, self.num_rows)
        self.num_rows += 1
        self._rows.append(row)
        self.length[row.index] = length
        self.computed[row.index] = computed
        self.block_limit[row.index] = block_limit
        self.publish_at[row.index] = publish_at
        self._is_open[row.index] = True
        return row

    def _double(self) -> None:
        more = self.num_rows
        self.length = np.pad(self.length, (0, more))
        self.computed = np.pad(self.computed, (0, more))
        self.block_limit = np.pad(self.block_limit, (0, more))
        self.publish_at = np.pad(self.publish_at, (0, more))
        self.tails = np.pad(self.tails, ((0, more), (0, 0)))
        self._is_open = np.pad(self._is_open, (0, more))
        self._look()

    def close(self, row: Row) -> None:
        """Leave a gap where ``row`` was."""
        self._is_open[row.index] = False
        self.block_limit[row.index] = _ENDLESS
        self._num_gaps += 1

    def open_rows(self) -> IntArray:
        """Indices of the rows in use, ascending."""
        return np.flatnonzero(self._is_open[: self.num_rows])

    @property
    def has_many_gaps(self) -> bool:
        return 4 * self._num_gaps >= max(self.num_rows, _LEAST_GAPS)

    def close_gaps(self) -> IntArray:
        """Move rows up into the gaps before them; returns the indices they had. Tails stay
        where they are: what is in them must have been stored."""
        kept = self.open_rows()
        self._rows = [self._rows[index] for index in kept.tolist()]
        for index, row in enumerate(self._rows):
            row.index = index
        count = len(kept)
        for array in (self.length, self.computed, self.block_limit, self.publish_at):
            array[:count] = array[kept]
        self._is_open[:count] = True
        self._is_open[count : self.num_rows] = False
        self.num_rows, self._num_gaps = count, 0
        return kept
