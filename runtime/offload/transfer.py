"""Moves KV blocks between the device, host memory and the disk, beside the steps.

Carries out what ``radix_cache.tiers`` orders and keeps its two promises. Between device and
host an order counts as done when it is given: copies run in the order of the orders, a step
waits for those that touch its blocks (``settle``) and for no other. From and to the disk
they take as long as they take and end in ``PrefixCache.moved``.

What has come to host memory is summed, and looked at when it goes (``runtime.offload.checksums``),
by the thread that copies on a CPU.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from radix_cache.transfers import NO_ROWS, BlockMove
from runtime.model.kv_pool import KVPool
from runtime.offload.checksums import HostMemoryDamaged
from runtime.offload.copies import Copies, copies_of
from runtime.offload.disk import NearRows
from runtime.offload.disk_orders import KVStore
from runtime.offload.flights import Flight, KindOfRows, Leg
from runtime.offload.rank_moves import RankMoves

_FIRST_BYTES = 1 << 26
_FIRST_BYTES_PER_S = 4e9
"""The rate of copies that is assumed as long as few have been made."""


class KVTransfer:
    """The bytes behind a prefix cache's lower tiers. One thread calls it.

    Args:
        pool: the device's blocks.
        host_blocks: blocks of host memory; memory is touched when it is first written.
        near_rows: so many of them have room for rows of layers with a window, where not every block
            of ``pool`` has such; one at least.
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
        near_rows: int = 0,
    ) -> None:
        self._others = others
        self._on_cpu = pool.device.type == "cpu"
        written = 0 if self._on_cpu else host_blocks
        copies = copies or copies_of(pool.main, worker)
        self.main = KindOfRows(copies, num_rows=host_blocks, written=written)
        """The rows that every block has."""
        self.near: KindOfRows | None = None
        """Rows of layers with a window, where these have blocks of their own."""
        if pool.near is not None:
            written = 0 if self._on_cpu else near_rows
            copies = copies_of(pool.near, worker)
            self.near = KindOfRows(copies, num_rows=near_rows, written=written)
        self._block_size = pool.block_size
        self._damaged = False
        self._refused: list[int] = []
        self._store = store
        self._worker = worker
        self._flights: list[Flight] = []
        self._last: dict[KindOfRows, Flight] = {}
        """The flight given last that has a leg of each kind."""
        self._staged: dict[int, list[Leg]] = {}
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
        if target == Tier.DISK:
            self._write(move)
        elif source == Tier.DISK:
            self._read(move, marks)
        elif source == Tier.DEVICE:
            near = self._near_leg(move.source_near, move.target_near)
            self._down([self._leg(move.source_blocks, move.target_blocks), *near])
        else:
            near = self._near_leg(move.target_near, move.source_near)
            self._up([self._leg(move.target_blocks, move.source_blocks), *near])

    def _marks(self, move: BlockMove) -> Sequence[bytes]:
        """The contents of blocks that come from the disk, as far as this rank knows."""
        if move.source != Tier.DISK:
            return ()
        assert self._store is not None
        return self._store.marks(move.source_blocks)

    def _leg(self, blocks: BlockArray, places: BlockArray) -> Leg:
        return Leg(self.main, self.main.rows, blocks, places)

    def _near_leg(self, blocks: BlockArray | None, places: BlockArray | None) -> list[Leg]:
        """One of window blocks and rows of host memory, if any go along; -1 where none do."""
        if self.near is None:
            return []
        assert blocks is not None
        assert places is not None
        along = places >= 0
        return [Leg(self.near, self.near.rows, blocks[along], places[along])] * bool(along.any())

    def _down(self, legs: list[Leg]) -> None:
        for leg in legs:
            if leg.settled:
                leg.part.note(leg.places)
            if not self._on_cpu:
                self._let_checks_end(leg)
                self._let_arrive(leg)
        copies = [leg.part.copies.down(leg.blocks, leg.rows, leg.places) for leg in legs]

        def seal() -> bool:
            for copy in copies:
                copy.wait()
            return all(leg.seal() for leg in legs)

        check = self._worker.submit(seal)
        self._take_off(Flight(legs, copies, check, "device_host", arriving=False))

    def _up(self, legs: list[Leg]) -> None:
        check = self._worker.submit(lambda: all(leg.intact() for leg in legs))
        copies = [leg.part.copies.up(leg.rows, leg.places, leg.blocks) for leg in legs]
        self._take_off(Flight(legs, copies, check, "host_device", arriving=True))

    def _let_checks_end(self, leg: Leg) -> None:
        """Before a stream writes to rows that a thread may still be looking at."""
        for flight in self._flights:
            if flight.arriving and flight.uses(leg):
                flight.check.result()

    def _let_arrive(self, leg: Leg) -> None:
        """Before the computing stream reads blocks that the other one may still be writing."""
        for flight in self._flights:
            if flight.arriving and flight.touches(leg.part, leg.blocks):
                flight.settle()

    def _read(self, move: BlockMove, marks: Sequence[bytes]) -> None:
        assert self._store is not None
        if marks:
            self._store.expect(move.source_blocks, marks)
        places, main, near = move.target_blocks, self.main, self.near
        main.note(places)
        along = None if near is None else move.target_near
        rows = None
        if near is not None:
            assert along is not None
            near.note(along[along >= 0])
            rows = near.rows, along

        def seal() -> None:
            main.sums.seal(places)
            if near is not None and along is not None:
                near.sums.seal(along[along >= 0])

        self._store.read(move, main.rows, places, self._all_arrived(), seal, near=rows)

    def _write(self, move: BlockMove) -> None:
        assert self._store is not None
        places = move.source_blocks
        near: NearRows | None = None
        if move.source == Tier.DEVICE:
            legs, places, near = self._stage(move)
        else:
            legs = [self._leg(places, places), *self._near_leg(move.source_near, move.source_near)]
            if self.near is not None:
                assert move.source_near is not None
                near = self.near.rows, move.source_near
        arrived = self._all_arrived()

        def ready() -> None:
            arrived()
            if not all(leg.intact() for leg in legs if leg.settled):
                raise OSError("main memory does not hold what was written to it")

        self._store.write(move, legs[0].rows, places, ready, near=near)

    def _stage(self, move: BlockMove) -> tuple[list[Leg], BlockArray, NearRows | None]:
        """Bring blocks of the device to rows that they pass through on their way to the disk:
        returns how, and where they are."""
        count = len(move.source_blocks)
        places = np.arange(count, dtype=np.int32)
        legs = [Leg(self.main, self.main.staging(count), move.source_blocks, places)]
        near: NearRows | None = None
        if self.near is not None:
            assert move.source_near is not None
            along = move.source_near >= 0
            numbers = np.arange(int(along.sum()), dtype=np.int32)
            rows = self.near.staging(len(numbers)) if len(numbers) else self.near.rows
            if len(numbers):
                legs.append(Leg(self.near, rows, move.source_near[along], numbers))
            places_near = np.full(count, NO_ROWS, dtype=np.int32)
            places_near[along] = numbers
            near = rows, places_near
        self._staged[move.number] = legs
        self._down(legs)
        return legs, places, near

    def _all_arrived(self) -> Callable[[], None]:
        """Returns once the copies ordered so far are done: those of a kind are done in order."""
        last = list(self._last.values())

        def arrived() -> None:
            for flight in last:
                flight.wait()

        return arrived

    def _take_off(self, flight: Flight) -> None:
        self._last.update({leg.part: flight for leg in flight.legs})
        self._flights.append(flight)
        self._bytes[flight.path] += sum(leg.num_bytes for leg in flight.legs)

    def _land(self) -> None:
        flights = self._flights
        while flights and flights[0].done and flights[0].check.done():
            flight = flights.pop(0)
            self._insist(flight)
            self._seconds[flight.path] += flight.seconds

    def _insist(self, flight: Flight) -> None:
        if not flight.check.result():
            self._damaged = True
            raise HostMemoryDamaged(
                f"{len(flight.legs[0].places)} blocks of KV in main memory, or some of them, are "
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
            flight.arriving and flight.touches(self.main, blocks) for flight in self._flights
        )

    def settle(self, block_tables: BlockArray, window_tables: BlockArray | None = None) -> None:
        """To be called before a step that reads and writes these device blocks, int32 of any
        shape, and these window blocks where there are such: what the step does comes after the
        copies that touch them."""
        if not self._flights:
            return
        self._land()
        for flight in self._flights:
            touched = flight.touches(self.main, block_tables)
            if touched or flight.touches(self.near, window_tables):
                if flight.arriving:
                    self._insist(flight)
                flight.settle()

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
            for leg in self._staged.pop(number, ()):
                leg.part.give_back(leg.rows)
        return over

    def up_s(self, num_tokens: int) -> float:
        """Seconds to bring the KV of so many tokens up from host memory, as it went so far, without
        that of a window, which takes as long for few as for many."""
        blocks = -(-num_tokens // self._block_size)
        seconds = self._seconds["host_device"] + _FIRST_BYTES / _FIRST_BYTES_PER_S
        num_bytes = blocks * self.main.row_bytes
        return num_bytes * seconds / (self._bytes["host_device"] + _FIRST_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Memory of the host's rows, as far as any was written."""
        near = 0 if self.near is None else self.near.memory_bytes
        return self.main.memory_bytes + near

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
