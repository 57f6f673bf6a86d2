"""Has the system provide memory before steps write to it.

A pool's memory is not there before it is written, so that an ample one costs address space
only. But the write that finds none waits for a page: 4 to 8 ms for a large one on a virtual
machine, in the middle of a step. Here the pages of the blocks that come next are asked for
beside the steps (madvise(2), MADV_POPULATE_WRITE, Linux 5.14), which changes no content.
Elsewhere nothing happens.

A page at a time, and rests between: asked for at once, those of all layers kept a core from the
steps for a quarter of a second. Where steps come near to what is provided there is no rest.

Between turns nobody wants the core, and agents pause: then more is provided, without rests, until a
step comes. Beside the steps, pages for what eight agents write took 6 % of their time.
"""

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from kernels.large_pages import PAGE_BYTES

_POPULATE_WRITE = 23
AHEAD_BYTES = 256 << 20
"""Memory that is provided beyond what is in use, over all layers: half of it at least, which is
what a prompt of 8,000 tokens skips whose blocks are taken at once (96 MiB, 100M parameters)."""
AT_REST_BYTES = 512 << 20
"""The same while no step is computed: some twenty turns of eight agents (100M parameters, 130 MiB
in six turns each), and little enough for a machine that has other work."""
_SLICE_BYTES = 64 << 20
"""The memory that is provided at a time then, over all layers. A step that comes meanwhile has the
rest of it provided beside it as always."""
_REST = 3
"""Rests take so many times what a page took: a quarter of a core goes to pages. With a tenth, a
prompt of 8,000 tokens overtook them where a page takes 5 ms, and the rest came without rests."""


class PagesAhead:
    """Keeps the next blocks of a pool provided; ``reach`` is called by one thread."""

    def __init__(self, groups: Sequence[Tensor]) -> None:
        """Ask for the first blocks of ``groups``, each [layers, rows, blocks, ...] in host memory,
        with equally many blocks."""
        self._groups = groups
        self._num_blocks = groups[0].shape[2]
        block_bytes = max(1, sum(group[:, :, 0].nbytes for group in groups))
        self._step = max(1, AHEAD_BYTES // 2 // block_bytes)
        self._slice = max(1, _SLICE_BYTES // block_bytes)
        self._at_rest = AT_REST_BYTES // block_bytes
        self._asked = 0
        self._reached = 0
        self.resting = False
        """No step has been computed since ``rest``."""
        self.works = sys.platform == "linux"
        """Whether the system can, as far as is known."""
        self.provider: threading.Thread | None = None
        self.hurry = threading.Event()
        """Steps are about to need what is being provided."""
        self._hurry_from = 0
        """The block at which they are."""
        self.reach(0)

    def reach(self, block: int) -> None:
        """Note that ``block`` is the highest one that is written next."""
        self.resting = False
        if not self.works or self._asked >= self._num_blocks:
            return
        self._reached = max(self._reached, block)
        wanted = block + self._step
        if self._is_providing:
            if block >= self._hurry_from:
                self.hurry.set()
            return
        if wanted < self._asked:
            return
        low = self._take(min(self._num_blocks, wanted + self._step))
        if block >= self._hurry_from:
            self.hurry.set()
        self._begin(self._provide, low, self._asked)

    def rest(self) -> None:
        """Note that no step is computed until ``reach`` is called."""
        if self.works and self._asked < self._goal_at_rest and not self._is_providing:
            self.resting = True
            self._begin(self._provide_at_rest)

    def wait(self) -> None:
        """Return when what was asked for is there."""
        self.resting = False
        if self.provider is not None:
            self.hurry.set()
            self.provider.join()

    @property
    def asked(self) -> int:
        """The system was asked for so many blocks, of which the last may not be there yet."""
        return self._asked if self.works else 0

    @property
    def _is_providing(self) -> bool:
        return self.provider is not None and self.provider.is_alive()

    @property
    def _goal_at_rest(self) -> int:
        return min(self._num_blocks, self._reached + self._at_rest)

    def _take(self, high: int) -> int:
        """Ask for blocks up to ``high``, in no hurry yet; the first of them."""
        low, self._asked = self._asked, high
        self._hurry_from = low - self._step // 4
        self.hurry.clear()
        return low

    def _begin(self, work: Callable[..., None], *blocks: int) -> None:
        self.provider = threading.Thread(target=work, args=blocks, name="kv-pages", daemon=True)
        self.provider.start()

    def _provide_at_rest(self) -> None:
        while self.works and self.resting and self._asked < self._goal_at_rest:
            low = self._take(min(self._goal_at_rest, self._asked + self._slice))
            self._provide(low, self._asked)

    def _provide(self, low: int, high: int) -> None:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for part in (part for group in self._groups for layer in group for part in layer):
            block_bytes = part[0].nbytes
            begin = part.data_ptr() + low * block_bytes
            end = part.data_ptr() + high * block_bytes
            begin -= begin % mmap.PAGESIZE
            while begin < end:
                began = time.perf_counter()
                size = min(PAGE_BYTES - begin % PAGE_BYTES, end - begin)
                if madvise(begin, size, _POPULATE_WRITE):
                    self.works = False  # an older kernel, or no memory: steps ask for it
                    return
                begin += size
                if not self.resting:
                    self.hurry.wait(_REST * (time.perf_counter() - began))
