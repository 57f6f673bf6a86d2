"""Moves KV blocks between the device, host memory and the disk, beside the steps.

Carries out what ``radix_cache.tiers`` orders and keeps its two promises. Between device and
host an order counts as done when it is given: copies run in the order of the orders, a step
waits for those that touch its blocks (``settle``) and for no other. From and to the disk
they take as long as they take and end in ``PrefixCache.moved``.

What has come to host memory is summed, and looked at when it goes (``runtime.offload.checksums``),
by the thread that copies on a CPU.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove
from runtime.model.kv_pool import KVPool
from runtime.offload.checksums import HostChecksums, HostMemoryDamaged
from runtime.offload.copies import PIECE_BLOCKS, Copies, Copy, copies_of
from runtime.offload.disk import ByteRows, KVStore
from runtime.offload.rank_moves import RankMoves

_FIRST_BYTES = 1 << 26
_FIRST_BYTES_PER_S = 4e9
"""The rate of copies that is assumed as long as few have been made."""


@dataclass(slots=True)
class _Flight:
    copy: Copy
    check: "Future[bool]"
    """Sums the rows that came down; of those that go up, whether they are as they were."""
    path: str
    device_blocks: BlockArray
    host_blocks: BlockArray
    arriving: bool
    """The copy writes to the device."""

    def wait(self) -> None:
        """Return when rows and blocks are what they are to be. From any thread."""
        self.copy.wait()
        self.check.result()


class KVTransfer:
    """The bytes behind a prefix cache's lower tiers. One thread calls it.

    Args:
        pool: the device's blocks.
        host_blocks: blocks of host memory; memory is touched when it is first written.
        store: the disk; None for none.
        worker: copies on a CPU, and sums rows; one task at a time and in order.
        copies: of what is moved instead of the pool's blocks, one for one.
        others: has the other ranks of a model move their parts likewise; None: there are none, or
            this is one of them.

    Every method that says what has arrived, and ``settle``, may raise HostMemoryDamaged:
    a row went up that is not what came down. From then on nothing goes to the disk.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        host_blocks: int,
        store: KVStore | None,
        worker: Executor,
        copies: Copies | None = None,
        others: RankMoves | None = None,
    ) -> None:
        self._others = others
        self._on_cpu = pool.device.type == "cpu"
        self.copies = copies or copies_of(pool, worker)
        self._host = self.copies.new_rows(host_blocks)
        self._sums = HostChecksums(self._host)
        self._written_rows = 0 if self._on_cpu else host_blocks
        """Rows of host memory that are there, all below the highest of them included."""
        self._block_size = pool.block_size
        self._damaged = False
        self._refused: list[int] = []
        self._store = store
        self._worker = worker
        self._flights: list[_Flight] = []
        self._last: _Flight | None = None
        self._staging: ByteRows | None = None
        self._staged: dict[int, ByteRows] = {}
        self._bytes = {"device_host": 0, "host_device": 0}
        self._seconds = {"device_host": 0.0, "host_device": 0.0}
        self.before_arrival: Callable[[], None] = _nothing
        """Called before blocks of the device are written, with whose memory others may have to do
        first."""

    def move(self, move: BlockMove, marks: Sequence[bytes] = ()) -> None:
        """Take an order; see ``radix_cache.transfers.BlockMover``. ``marks``: of blocks that come
        from the disk, where the leading rank says what they hold."""
        source, target = move.source, move.target
        if target == Tier.DISK and self._damaged:
            self._refused.append(move.number)
            return
        if target == Tier.DEVICE:
            self.before_arrival()
        if self._others is not None:
            self._others.tell(move, self._marks(move))
        if target == Tier.HOST and len(move.target_blocks):
            self._written_rows = max(self._written_rows, int(move.target_blocks.max()) + 1)
        if target == Tier.DISK:
            self._write(move)
        elif source == Tier.DISK:
            assert self._store is not None
            places = move.target_blocks
            if marks:
                self._store.expect(move.source_blocks, marks)
            sealing = partial(self._sums.seal, places)
            self._store.read(move, self._host, places, self._all_arrived(), sealing)
        elif source == Tier.DEVICE:
            self._down(move.source_blocks, self._host, move.target_blocks)
        else:
            self._up(move.source_blocks, move.target_blocks)

    def _marks(self, move: BlockMove) -> Sequence[bytes]:
        """The contents of blocks that come from the disk, as far as this rank knows."""
        if move.source != Tier.DISK:
            return ()
        assert self._store is not None
        return self._store.marks(move.source_blocks)

    def _down(self, blocks: BlockArray, rows: ByteRows, places: BlockArray) -> None:
        if not self._on_cpu:
            self._let_checks_end(places)
            self._let_arrive(blocks)
        copy = self.copies.down(blocks, rows, places)
        sums = self._sums if rows is self._host else None

        def seal() -> bool:
            copy.wait()
            return sums is None or sums.seal(places)

        check = self._worker.submit(seal)
        self._take_off(_Flight(copy, check, "device_host", blocks, places, arriving=False))

    def _up(self, places: BlockArray, blocks: BlockArray) -> None:
        check = self._worker.submit(self._sums.intact, places)
        copy = self.copies.up(self._host, places, blocks)
        self._take_off(_Flight(copy, check, "host_device", blocks, places, arriving=True))

    def _let_checks_end(self, places: BlockArray) -> None:
        """Before a stream writes to rows that a thread may still be looking at."""
        for flight in self._flights:
            if flight.arriving and np.isin(flight.host_blocks, places).any():
                flight.check.result()

    def _let_arrive(self, blocks: BlockArray) -> None:
        """Before the computing stream reads blocks that the other one may still be writing."""
        for flight in self._flights:
            if flight.arriving and np.isin(flight.device_blocks, blocks).any():
                flight.copy.settle()

    def _write(self, move: BlockMove) -> None:
        assert self._store is not None
        rows, places = self._host, move.source_blocks
        if move.source == Tier.DEVICE:
            places = np.arange(len(places), dtype=np.int32)
            rows = self._staged[move.number] = self._staging_rows(len(places))
            self._down(move.source_blocks, rows, places)
        arrived = self._all_arrived()

        def ready() -> None:
            arrived()
            if rows is self._host and not self._sums.intact(places):
                raise OSError("main memory does not hold what was written to it")

        self._store.write(move, rows, places, ready)

    def _staging_rows(self, count: int) -> ByteRows:
        """Rows that blocks pass through on their way to the disk: what an earlier move has given
        back, where it is large enough."""
        rows, self._staging = self._staging, None
        if rows is not None and len(rows) >= count:
            return rows
        if rows is not None:
            self.copies.drop_rows(rows)
        return self.copies.new_rows(max(count, PIECE_BLOCKS))

    def _give_back(self, rows: ByteRows) -> None:
        """Keep the largest staging rows for the next move, and let the others go."""
        if self._staging is not None and len(self._staging) >= len(rows):
            self.copies.drop_rows(rows)
            return
        if self._staging is not None:
            self.copies.drop_rows(self._staging)
        self._staging = rows

    def _all_arrived(self) -> Callable[[], None]:
        """Returns once the copies ordered so far are done: they are done in order."""
        return _nothing if self._last is None else self._last.wait

    def _take_off(self, flight: _Flight) -> None:
        self._last = flight
        self._flights.append(flight)
        self._bytes[flight.path] += len(flight.device_blocks) * self._host.shape[1]

    def _land(self) -> None:
        flights = self._flights
        while flights and flights[0].copy.done and flights[0].check.done():
            flight = flights.pop(0)
            self._insist(flight)
            self._seconds[flight.path] += flight.copy.seconds

    def _insist(self, flight: _Flight) -> None:
        if not flight.check.result():
            self._damaged = True
            raise HostMemoryDamaged(
                f"{len(flight.host_blocks)} blocks of KV in main memory, or some of them, are "
                "not what was written there"
            )

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
                if flight.arriving:
                    self._insist(flight)
                flight.copy.settle()

    def report(self, cache: PrefixCache) -> None:
        """Tell ``cache`` of the orders from and to the disk that are over, on all ranks."""
        over = self.over()
        for number, ok in over if self._others is None else self._others.over(over):
            cache.moved(number, ok=ok)
        while self._refused:
            cache.moved(self._refused.pop(), ok=False)

    def over(self) -> list[tuple[int, bool]]:
        """Orders from and to the disk that are over here since the last call: their numbers, and
        whether all is well."""
        self._land()
        over = [] if self._store is None else list(self._store.take_over())
        for number, _ in over:
            if (rows := self._staged.pop(number, None)) is not None:
                self._give_back(rows)
        return over

    def up_s(self, num_tokens: int) -> float:
        """Seconds to bring the KV of so many tokens up from host memory, as it went so far."""
        blocks = -(-num_tokens // self._block_size)
        seconds = self._seconds["host_device"] + _FIRST_BYTES / _FIRST_BYTES_PER_S
        num_bytes = blocks * int(self._host.shape[1])
        return num_bytes * seconds / (self._bytes["host_device"] + _FIRST_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Memory of the host's rows, as far as any was written."""
        return self._written_rows * int(self._host.shape[1])

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
