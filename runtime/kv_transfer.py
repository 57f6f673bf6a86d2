"""Moves KV blocks between the device, host memory and the disk, beside the steps.

Carries out what ``radix_cache.tiers`` orders and keeps its two promises. Between device and
host an order counts as done when it is given: copies run in the order of the orders, a step
waits for those that touch its blocks (``settle``) and for no other. From and to the disk
they take as long as they take and end in ``PrefixCache.moved``.

On a CPU a thread copies; on a GPU a stream beside the computing one, to and from pinned
memory. A block's bytes lie together in host memory: [layers, 2, kv_heads, block_size,
head_dim], as on disk.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove
from runtime.kv_pool import KVPool
from runtime.kv_store import ByteRows, KVStore


class Copy(Protocol):
    """A copy under way."""

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
        """Host memory that copies of this kind like best."""
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

    def __init__(self, pool: KVPool, worker: Executor) -> None:
        self._worker = worker
        blocks = pool.blocks.view(torch.uint8).flatten(0, 1).flatten(2)
        self._planes = blocks.numpy()
        """[layers * 2, blocks, bytes of a block's keys or values in one layer]"""

    def new_rows(self, count: int) -> ByteRows:
        planes, _, size = self._planes.shape
        return np.empty((count, planes * size), dtype=np.uint8)

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy:
        return _ThreadCopy(self._worker.submit(self._copy, rows, targets, sources, down=True))

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        return _ThreadCopy(self._worker.submit(self._copy, rows, sources, targets, down=False))

    def _copy(self, rows: ByteRows, host: BlockArray, device: BlockArray, *, down: bool) -> float:
        started = time.perf_counter()
        planes, _, size = self._planes.shape
        below = rows.reshape(len(rows), planes, size).transpose(1, 0, 2)
        for row, block, count in runs(host, device):
            here = self._planes[:, block : block + count]
            there = below[:, row : row + count]
            if down:
                np.copyto(there, here)
            else:
                np.copyto(here, there)
        return time.perf_counter() - started


class _StreamCopy:
    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event, kept: torch.Tensor) -> None:
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
        torch.cuda.current_stream(self._kept.device).wait_event(self._end)

    def wait(self) -> None:
        self._end.synchronize()


class StreamCopies:
    """Copies of a GPU's pool, made by a stream beside the one that computes.

    On the way down the blocks are gathered by the computing stream, before anything that
    comes later writes to them; on the way up they are put in place by the other stream, after
    all that was given to the computing one before.
    """

    def __init__(self, pool: KVPool) -> None:
        self._blocks = pool.blocks
        self._device = pool.blocks.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        _, _, _, *self._block_shape = pool.blocks.shape
        self._num_layers = pool.blocks.shape[0]

    def new_rows(self, count: int) -> ByteRows:
        size = self._blocks[:, :, 0].numel() * self._blocks.element_size()
        return torch.empty((count, size), dtype=torch.uint8, pin_memory=True).numpy()

    def down(self, sources: BlockArray, rows: ByteRows, targets: BlockArray) -> Copy:
        computing = torch.cuda.current_stream(self._device)
        index = torch.from_numpy(sources).to(self._device, torch.int64)
        gathered = self._blocks.index_select(2, index).movedim(2, 0).contiguous()
        flat = gathered.view(len(sources), -1).view(torch.uint8)
        start, end = _events()
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            start.record()
            places = np.arange(len(targets), dtype=np.int32)
            for row, place, count in runs(targets, places):
                below = torch.from_numpy(rows[row : row + count])
                below.copy_(flat[place : place + count], non_blocking=True)
            end.record()
        flat.record_stream(self._stream)
        return _StreamCopy(start, end, flat)

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        start, end = _events()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            start.record()
            flat = torch.empty(
                (len(sources), rows.shape[1]), dtype=torch.uint8, device=self._device
            )
            places = np.arange(len(sources), dtype=np.int32)
            for row, place, count in runs(sources, places):
                below = torch.from_numpy(rows[row : row + count])
                flat[place : place + count].copy_(below, non_blocking=True)
            index = torch.from_numpy(targets).to(self._device, torch.int64)
            blocks = flat.view(self._blocks.dtype)
            blocks = blocks.view(len(sources), self._num_layers, 2, *self._block_shape)
            self._blocks.index_copy_(2, index, blocks.movedim(0, 2))
            end.record()
        return _StreamCopy(start, end, flat)


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return start, end


@dataclass(slots=True)
class _Flight:
    copy: Copy
    path: str
    device_blocks: BlockArray
    arriving: bool
    """The copy writes to the device."""


class KVTransfer:
    """The bytes behind a prefix cache's lower tiers. One thread calls it.

    Args:
        pool: the device's blocks.
        host_blocks: blocks of host memory; memory is touched when it is first written.
        store: the disk; None for none.
        worker: copies on a CPU, one task at a time and in order. Unused on a GPU.
    """

    def __init__(
        self, pool: KVPool, *, host_blocks: int, store: KVStore | None, worker: Executor
    ) -> None:
        on_cpu = pool.blocks.device.type == "cpu"
        self._copies: Copies = ThreadCopies(pool, worker) if on_cpu else StreamCopies(pool)
        self._host = self._copies.new_rows(host_blocks)
        self._store = store
        self._worker = worker
        self._flights: list[_Flight] = []
        self._last: Copy | None = None
        self._bytes = {"device_host": 0, "host_device": 0}
        self._seconds = {"device_host": 0.0, "host_device": 0.0}

    def move(self, move: BlockMove) -> None:
        """Take an order; see ``radix_cache.transfers.BlockMover``."""
        source, target = move.source, move.target
        if target == Tier.DISK:
            self._write(move)
        elif source == Tier.DISK:
            assert self._store is not None
            self._store.read(move, self._host, move.target_blocks, self._all_arrived())
        elif source == Tier.DEVICE:
            copy = self._copies.down(move.source_blocks, self._host, move.target_blocks)
            self._take_off(copy, "device_host", move.source_blocks)
        else:
            copy = self._copies.up(self._host, move.source_blocks, move.target_blocks)
            self._take_off(copy, "host_device", move.target_blocks)

    def _write(self, move: BlockMove) -> None:
        assert self._store is not None
        rows, places = self._host, move.source_blocks
        if move.source == Tier.DEVICE:
            places = np.arange(len(places), dtype=np.int32)
            rows = self._copies.new_rows(len(places))
            copy = self._copies.down(move.source_blocks, rows, places)
            self._take_off(copy, "device_host", move.source_blocks)
        self._store.write(move, rows, places, self._all_arrived())

    def _all_arrived(self) -> Callable[[], None]:
        """Returns once the copies ordered so far are done: they are done in order."""
        return _nothing if self._last is None else self._last.wait

    def _take_off(self, copy: Copy, path: str, device_blocks: BlockArray) -> None:
        self._last = copy
        self._flights.append(_Flight(copy, path, device_blocks, path == "host_device"))
        self._bytes[path] += len(device_blocks) * self._host.shape[1]

    def _land(self) -> None:
        flights = self._flights
        while flights and flights[0].copy.done:
            flight = flights.pop(0)
            self._seconds[flight.path] += flight.copy.seconds

    @property
    def busy(self) -> bool:
        """Whether copies between device and host are under way."""
        self._land()
        return bool(self._flights)

    def arrived(self, blocks: BlockArray) -> bool:
        """Whether all of these device blocks hold what was ordered into them."""
        if not self._flights:
            return True
        self._land()
        return not any(
            flight.arriving and np.isin(flight.device_blocks, blocks).any()
            for flight in self._flights
        )

    def settle(self, block_tables: BlockArray) -> None:
        """To be called before a step that reads and writes these device blocks, int32 of any
        shape: what the step does comes after the copies that touch them."""
        if not self._flights:
            return
        self._land()
        for flight in self._flights:
            if np.isin(flight.device_blocks, block_tables).any():
                flight.copy.settle()

    def report(self, cache: PrefixCache) -> None:
        """Tell ``cache`` of the orders from and to the disk that are over."""
        if self._store is not None:
            for number, ok in self._store.take_over():
                cache.moved(number, ok=ok)

    def totals(self) -> dict[str, tuple[int, float]]:
        """Bytes moved and seconds in which they moved since the start, by path."""
        self._land()
        totals = {path: (self._bytes[path], self._seconds[path]) for path in self._bytes}
        if self._store is not None:
            totals["host_disk"] = self._store.bytes_written, self._store.write_s
            totals["disk_host"] = self._store.bytes_read, self._store.read_s
        return totals

    @property
    def damaged_blocks(self) -> int:
        """Blocks that the disk did not hold as they were written."""
        return self._store.damaged_blocks if self._store is not None else 0

    def close(self) -> None:
        """End the threads and give the disk's folder back. Orders not begun are dropped."""
        self._worker.shutdown(cancel_futures=True)
        if self._store is not None:
            self._store.close()


def _nothing() -> None:
    """There is nothing to wait for."""
