"""Copies of states between the device and host memory: each with the block of its tail.

Below the device both lie in one row, the state first, so that a slot is one row of host memory and
one of the disk. Which slots, and what waits for them, is ``runtime.offload.transfer``'s business.

Always true: a slot's state and its tail arrive together.
"""

from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from radix_cache.block_pool import BlockArray
from runtime.model.kv_pool import KVPool
from runtime.model.state_pool import StatePool
from runtime.offload.copies import Copy, copies_of, drop_pinned, pinned_rows
from runtime.offload.disk import ByteRows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """States as blocks of one plane."""

    groups: tuple[Tensor]


@dataclass(frozen=True, slots=True)
class _Copies:
    """Several under way, of the same slots."""

    parts: list[Copy]

    @property
    def done(self) -> bool:
        return all(part.done for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    def settle(self) -> None:
        for part in self.parts:
            part.settle()

    def wait(self) -> None:
        for part in self.parts:
            part.wait()


class StateCopies:
    """Copies of slots of a ``StatePool`` and of the blocks of their tails; see ``Copies``.

    Args:
        states: [slots, numbers].
        tails: a block for each slot.
        worker: copies on a CPU.
    """

    def __init__(self, states: StatePool, tails: KVPool, worker: Executor) -> None:
        self._parts = (
            copies_of(_Rows(groups=(states.rows[None, None],)), worker),
            copies_of(tails, worker),
        )
        tail_bytes = tails.num_bytes // tails.num_blocks
        self._cut = states.state_bytes
        self.row_bytes = self._cut + tail_bytes
        """Of host memory for a slot."""
        self._pinned = tails.device.type != "cpu"

    def new_rows(self, count: int) -> ByteRows:
        if self._pinned:
            return pinned_rows(count, self.row_bytes)
        return np.empty((count, self.row_bytes), dtype=np.uint8)

    def drop_rows(self, rows: ByteRows) -> None:
        if self._pinned:
            drop_pinned(rows)

    def _halves(self, rows: ByteRows, row: int) -> tuple[ByteRows, ByteRows]:
        """Of one row: each is in one piece, as a GPU's copies need it."""
        one = rows[row : row + 1]
        return one[:, : self._cut], one[:, self._cut :]

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy:
        first = np.zeros(1, dtype=np.int32)
        copies = [
            part.down(sources[index : index + 1], half, first)
            for index, row in enumerate(targets.tolist())
            for part, half in zip(self._parts, self._halves(rows, row), strict=True)
        ]
        return _Copies(copies)

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        first = np.zeros(1, dtype=np.int32)
        copies = [
            part.up(half, first, targets[index : index + 1])
            for index, row in enumerate(sources.tolist())
            for part, half in zip(self._parts, self._halves(rows, row), strict=True)
        ]
        return _Copies(copies)
