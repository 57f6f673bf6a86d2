"""Checksums of the KV in host memory: what comes up is what went down, bit by bit.

Main memory that loses a bit makes wrong tokens that look right. A row is summed when it has
been written and again before it is used; a difference ends the engine, since blocks that the
cache takes for good are not.

Always true: a row that was never summed counts as damaged.
"""

import numpy as np
import numpy.typing as npt
import xxhash

from radix_cache.block_pool import BlockArray
from runtime.offload.disk import ByteRows


class HostMemoryDamaged(BaseException):
    """Main memory does not hold what was written to it. No Exception, since nothing that goes
    on after a failed step may go on after this."""


class HostChecksums:
    """xxh3 of 64 bits of each row of ``rows``, uint8 [n, block_bytes].

    Rows are summed and looked at by several threads, never the same row at the same time.
    """

    def __init__(self, rows: ByteRows) -> None:
        self._rows = rows
        self._sums: npt.NDArray[np.uint64] = np.zeros(len(rows), dtype=np.uint64)

    def seal(self, places: BlockArray) -> bool:
        """Sum these rows, which have just been written; True."""
        for place in places.tolist():
            self._sums[place] = xxhash.xxh3_64_intdigest(self._rows[place].data)
        return True

    def intact(self, places: BlockArray) -> bool:
        """Whether these rows are as they were when they were sealed."""
        return all(
            xxhash.xxh3_64_intdigest(self._rows[place].data) == self._sums[place]
            for place in places.tolist()
        )
