"""Host memory in large pages, where the system has them.

Weights and keys and values are read from end to end at every step. With pages of 4 KiB the
processor looks up tens of thousands of them for it (docs/log/kernels.md says what that takes).
Elsewhere the memory is ordinary.
"""

import contextlib
import functools
import mmap

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
SLAB_BYTES = 32 << 20
"""The memory that is asked for at once."""
ALIGNMENT = 64
"""The bytes that every part begins at a multiple of."""


def large_pages(num_bytes: int) -> Tensor:
    """Memory of its own from the system, zero: uint8 [``num_bytes``]. None of it is there
    before it is written.

    Raises:
        OSError: there is not that much.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    return whole[begin : begin + num_bytes]


def touched_bytes(strips: int, stride: int, used: int) -> int:
    """Memory that is there once the first ``used`` bytes of each of so many strips, which begin
    ``stride`` bytes apart in one piece of ``large_pages``, were written: whole pages."""
    page = PAGE_BYTES if _are_large() else mmap.PAGESIZE
    pages, end = 0, 0
    for begin in range(0, strips * stride if used else 0, stride):
        first, last = max(begin // page, end), (begin + used - 1) // page
        pages, end = pages + max(0, last + 1 - first), max(end, last + 1)
    return pages * page


@functools.cache
def _are_large() -> bool:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="utf-8") as file:
            return "[never]" not in file.read()
    except OSError:
        return False


class Slabs:
    """Hands out parts of large pages one behind the other: matrices are smaller than a page is,
    or not much larger. A slab goes when all its parts have gone."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Tensor:
        """uint8 [``num_bytes``], zero."""
        if num_bytes > SLAB_BYTES // 2:
            return large_pages(num_bytes)
        if self._used + num_bytes > len(self._slab):
            self._slab, self._used = large_pages(SLAB_BYTES), 0
        part = self._slab[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return part
