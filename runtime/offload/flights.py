"""Copies under way between the device and host memory: which blocks and rows they touch, of which
kind, and the checksums of what they bring.

What moves is of one kind or of two: what every block has, and where rows behind windows are given
back, the rows of layers with a window, which have blocks of their own on the device and rows of
their own in host memory. When something moves is ``runtime.offload.transfer``'s business.

Always true: a flight is over when all of its copies are, and their rows are summed or looked at.
"""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from radix_cache.block_pool import BlockArray
from runtime.offload.checksums import HostChecksums
from runtime.offload.copies import PIECE_BLOCKS, Copies, Copy
from runtime.offload.disk import ByteRows


class KindOfRows:
    """One kind of what moves: what every block has, or rows of layers with a window, which have
    blocks of their own on the device and rows of their own in host memory.

    Args:
        copies: to and from that kind's blocks.
        num_rows: of host memory.
        written: those that are there from the start; memory on a CPU is touched when it is first
            written.
    """

    def __init__(self, copies: Copies, *, num_rows: int, written: int) -> None:
        self.copies = copies
        self.rows = copies.new_rows(num_rows)
        self.sums = HostChecksums(self.rows)
        self.row_bytes = int(self.rows.shape[1])
        self._written = written
        """Rows of host memory that are there, all below the highest of them included."""
        self._staging: ByteRows | None = None

    def note(self, places: BlockArray) -> None:
        """These rows are about to be written."""
        if len(places):
            self._written = max(self._written, int(places.max()) + 1)

    @property
    def memory_bytes(self) -> int:
        return self._written * self.row_bytes

    def staging(self, count: int) -> ByteRows:
        """Rows that blocks pass through on their way to the disk: what an earlier move has given
        back, where it is large enough."""
        rows, self._staging = self._staging, None
        if rows is not None and len(rows) >= count:
            return rows
        if rows is not None:
            self.copies.drop_rows(rows)
        return self.copies.new_rows(max(count, PIECE_BLOCKS))

    def give_back(self, rows: ByteRows) -> None:
        """Keep the largest staging rows for the next move, and let the others go."""
        if self._staging is not None and len(self._staging) >= len(rows):
            self.copies.drop_rows(rows)
            return
        if self._staging is not None:
            self.copies.drop_rows(self._staging)
        self._staging = rows


@dataclass(slots=True)
class Leg:
    """Blocks of one kind on their way between the device and ``rows``."""

    part: KindOfRows
    rows: ByteRows
    blocks: BlockArray
    """Those of the device; for layers with a window, window blocks."""
    places: BlockArray
    """Rows of host memory, one for each."""

    @property
    def settled(self) -> bool:
        """They are in the tier, and not only on their way to the disk."""
        return self.rows is self.part.rows

    def seal(self) -> bool:
        """Sum the rows that have come down."""
        return not self.settled or self.part.sums.seal(self.places)

    def intact(self) -> bool:
        """Whether the rows are as they were when they came."""
        return self.part.sums.intact(self.places)

    @property
    def num_bytes(self) -> int:
        return len(self.blocks) * self.part.row_bytes


@dataclass(slots=True)
class Flight:
    legs: list[Leg]
    copies: list[Copy]
    """One for each leg."""
    check: "Future[bool]"
    """Sums the rows that came down; of those that go up, whether they are as they were."""
    path: str
    arriving: bool
    """The copies write to the device."""

    @property
    def done(self) -> bool:
        return all(copy.done for copy in self.copies)

    @property
    def seconds(self) -> float:
        return sum(copy.seconds for copy in self.copies)

    def settle(self) -> None:
        for copy in self.copies:
            copy.settle()

    def wait(self) -> None:
        """Return when rows and blocks are what they are to be. From any thread."""
        for copy in self.copies:
            copy.wait()
        self.check.result()

    def touches(self, part: KindOfRows | None, blocks: BlockArray | None) -> bool:
        """Whether blocks of the device of this kind are among these, of any shape."""
        return blocks is not None and any(
            leg.part is part and bool(np.isin(leg.blocks, blocks).any()) for leg in self.legs
        )

    def uses(self, other: Leg) -> bool:
        """Whether its rows of host memory are among those of another."""
        return any(
            leg.rows is other.rows and bool(np.isin(leg.places, other.places).any())
            for leg in self.legs
        )
