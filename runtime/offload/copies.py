"""Copies of KV blocks between the device and host memory, beside the steps.

On a CPU a thread copies; on a GPU a stream beside the computing one, to and from pinned
memory. A block's bytes lie together in host memory: [layers, 2, kv_heads, block_size,
head_dim] of each group of layers, one group after the other. Which blocks, and what waits for them,
is ``runtime.offload.transfer``'s business.

Always true: copies of one kind are made in the order in which they were given.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol

import numpy as np
import torch

from kernels.upload import upload
from radix_cache.block_pool import BlockArray
from runtime.offload.disk import ByteRows

PIECE_BLOCKS = 64
"""Blocks that a GPU gathers at once: what a long move takes of its memory is used again."""
_ROUNDED_BYTES = 1 << 26
"""Less host memory than this may be rounded up."""


class BlockMemory(Protocol):
    """What copies are made of: tensors [planes, planes, blocks, ...], contiguous, of one dtype on
    one device and with equally many blocks."""

    @property
    def groups(self) -> Sequence[torch.Tensor]: ...


class Copy(Protocol):
    """A copy of blocks that is under way."""

    @property
    def done(self) -> bool: ...

    @property
    def seconds(self) -> float:
        """How long it took; asked once it is done."""
        ...

    def settle(self) -> None:
        """Let what the device does next come after the copy."""
        ...

    def wait(self) -> None:
        """Return when it is done. From any thread."""
        ...


class Copies(Protocol):
    """Copies between a pool and host memory, one after the other.

    ``rows`` is uint8 [n, block_bytes]; ``targets`` and ``sources`` are block ids on one
    side and row numbers on the other, int32 and equally many.
    """

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy: ...

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy: ...

    def new_rows(self, count: int) -> ByteRows:
        """Host memory that copies of this kind like best, until ``drop_rows``."""
        ...

    def drop_rows(self, rows: ByteRows) -> None:
        """Let go of what ``new_rows`` gave, once no copy is under way to or from it."""
        ...


def runs(first: BlockArray, second: BlockArray) -> Iterator[tuple[int, int, int]]:
    """Cut pairs of ids into runs that count up by one on both sides: (first, second, count)."""
    if not len(first):
        return
    breaks = np.flatnonzero((np.diff(first) != 1) | (np.diff(second) != 1)) + 1
    edges = [0, *breaks.tolist(), len(first)]
    for low, high in itertools.pairwise(edges):
        yield int(first[low]), int(second[low]), high - low


class _ThreadCopy:
    def __init__(self, future: "Future[float]") -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def seconds(self) -> float:
        return self._future.result()

    def settle(self) -> None:
        self._future.result()

    def wait(self) -> None:
        self._future.result()


class ThreadCopies:
    """Copies of a pool in main memory, made by ``worker``: one task at a time, in order."""

    def __init__(self, pool: BlockMemory, worker: Executor) -> None:
        self._worker = worker
        self._groups = [
            group.view(torch.uint8).flatten(0, 1).flatten(2).numpy() for group in pool.groups
        ]
        """Of each group, [layers * 2, blocks, bytes of a block's keys or values in one layer]"""
        self._row_bytes = sum(group[:, 0].nbytes for group in self._groups)

    def new_rows(self, count: int) -> ByteRows:
        return np.empty((count, self._row_bytes), dtype=np.uint8)

    def drop_rows(self, rows: ByteRows) -> None:
        """Memory that nobody names is the system's again."""

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy:
        return _ThreadCopy(self._worker.submit(self._copy, rows, targets, sources, down=True))

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        return _ThreadCopy(self._worker.submit(self._copy, rows, sources, targets, down=False))

    def _copy(self, rows: ByteRows, host: BlockArray, device: BlockArray, *, down: bool) -> float:
        started = time.perf_counter()
        low = 0
        for group in self._groups:
            planes, _, size = group.shape
            own = rows[:, low : low + planes * size]
            low += planes * size
            below = np.reshape(own, (len(rows), planes, size), copy=False).transpose(1, 0, 2)
            for row, block, count in runs(host, device):
                here = group[:, block : block + count]
                there = below[:, row : row + count]
                if down:
                    np.copyto(there, here)
                else:
                    np.copyto(here, there)
        return time.perf_counter() - started


class _StreamCopy:
    """On the way up. ``kept`` is what must not go before the copy is done."""

    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event, *kept: object) -> None:
        self._start = start
        self._end = end
        self._kept = kept

    @property
    def done(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self._start.elapsed_time(self._end)) / 1000

    def settle(self) -> None:
        torch.cuda.current_stream().wait_event(self._end)

    def wait(self) -> None:
        self._end.synchronize()


class _GatheredCopy(_StreamCopy):
    """On the way down: the blocks themselves were read by the computing stream."""

    def settle(self) -> None:
        """The device's next work comes after the gathering anyway."""


class StreamCopies:
    """Copies of a GPU's pool, made by a stream beside the one that computes.

    On the way down the blocks are gathered by the computing stream, before anything that
    comes later writes to them; on the way up they are put in place by the other stream, after
    all that was given to the computing one before. The host waits for nothing.
    """

    def __init__(self, pool: BlockMemory) -> None:
        # Not every number type of one byte can be picked by index.
        self._groups = [
            group.view(torch.uint8) if group.element_size() == 1 else group for group in pool.groups
        ]
        self._device = pool.groups[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._sizes = [group[:, :, 0].nbytes for group in self._groups]
        """Bytes of a block, by group."""
        self._block_bytes = sum(self._sizes)

    def new_rows(self, count: int) -> ByteRows:
        """Pinned. torch rounds what it pins up to a power of two, which is too much of much."""
        return pinned_rows(count, self._block_bytes)

    def drop_rows(self, rows: ByteRows) -> None:
        """Memory that torch pinned is torch's to keep; what was registered here is so no longer."""
        drop_pinned(rows)

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy:
        start, end = _events()
        kept: list[torch.Tensor] = []
        for first in range(0, len(sources), PIECE_BLOCKS):
            piece = slice(first, first + PIECE_BLOCKS)
            index = upload(sources[piece].astype(np.int64), self._device)
            flat = self._gathered(index)
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                if not first:
                    start.record()
                places = np.arange(len(index), dtype=np.int32)
                for row, place, count in runs(targets[piece], places):
                    below = torch.from_numpy(rows[row : row + count])
                    below.copy_(flat[place : place + count], non_blocking=True)
            flat.record_stream(self._stream)
            kept = [flat]
        with torch.cuda.stream(self._stream):
            end.record()
        return _GatheredCopy(start, end, *kept, rows)

    def _gathered(self, index: torch.Tensor) -> torch.Tensor:
        """Blocks as rows, uint8 [n, bytes of a block]."""
        parts = [
            group.index_select(2, index).movedim(2, 0).contiguous().view(len(index), -1)
            for group in self._groups
        ]
        rows = [part.view(torch.uint8) for part in parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        start, end = _events()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            start.record()
            for first in range(0, len(sources), PIECE_BLOCKS):
                piece = slice(first, first + PIECE_BLOCKS)
                self._put(rows, sources[piece], targets[piece])
            end.record()
        return _StreamCopy(start, end, rows)

    def _put(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> None:
        """Bring rows to the device and put them in place, on the stream of copies, whose memory
        the buffer between the two is."""
        flat = torch.empty((len(sources), rows.shape[1]), dtype=torch.uint8, device=self._device)
        places = np.arange(len(sources), dtype=np.int32)
        for row, place, count in runs(sources, places):
            below = torch.from_numpy(rows[row : row + count])
            flat[place : place + count].copy_(below, non_blocking=True)
        index = upload(targets.astype(np.int64), self._device)
        for group, part in zip(self._groups, torch.split(flat, self._sizes, dim=1), strict=True):
            layers, sides, _, *block_shape = group.shape
            blocks = part.contiguous().view(group.dtype)
            blocks = blocks.view(len(sources), layers, sides, *block_shape)
            group.index_copy_(2, index, blocks.movedim(0, 2))


def copies_of(pool: BlockMemory, worker: Executor) -> Copies:
    """Copies of a pool, as is right for its device."""
    on_cpu = pool.groups[0].device.type == "cpu"
    return ThreadCopies(pool, worker) if on_cpu else StreamCopies(pool)


def pinned_rows(count: int, size: int) -> ByteRows:
    """Host memory [count, size] that a GPU copies to and from without help."""
    if count * size < _ROUNDED_BYTES:
        return torch.empty((count, size), dtype=torch.uint8, pin_memory=True).numpy()
    rows = np.empty((count, size), dtype=np.uint8)
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(cudart.cudaHostRegister(rows.ctypes.data, rows.nbytes, 0)))
    return rows


def drop_pinned(rows: ByteRows) -> None:
    """Let go of what ``pinned_rows`` gave."""
    if rows.nbytes >= _ROUNDED_BYTES:
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(cudart.cudaHostUnregister(rows.ctypes.data)))


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Around a copy. A thread that waits for its end sleeps."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return start, end
