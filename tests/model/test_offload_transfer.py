"""Blocks go to host memory and disk and come back bit by bit, in the order of the orders."""

import random
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, RunContent
from runtime.model.kv_pool import KVPool, PoolPart
from runtime.model.presets import random_model_config
from runtime.offload.checksums import HostChecksums, HostMemoryDamaged
from runtime.offload.copies import Copy, StreamCopies, ThreadCopies
from runtime.offload.disk import ByteRows, SlotFile
from runtime.offload.disk_orders import KVStore
from runtime.offload.transfer import KVTransfer
from tests.support.executors import AtOnce, Later
from tests.support.streams import Timeline

MODEL = random_model_config("qwen3-tiny")
BLOCKS, BLOCK_SIZE, HOST = 12, 4, 16


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def make_pool(dtype: torch.dtype = torch.float32) -> KVPool:
    pool = KVPool(
        MODEL,
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    pool.blocks.copy_(torch.randn(pool.blocks.shape, generator=torch.Generator().manual_seed(0)))
    return pool


def make_transfer(
    pool: KVPool, worker: Executor | None = None, store: KVStore | None = None
) -> KVTransfer:
    return KVTransfer(pool, host_blocks=HOST, store=store, worker=worker or AtOnce())


def order(source: Tier, target: Tier, sources: np.ndarray, targets: np.ndarray) -> BlockMove:
    tokens = np.arange(len(sources) * BLOCK_SIZE, dtype=np.int32)
    content = RunContent(tenant="t", position=0, parent_key=bytes(16), tokens=tokens)
    return BlockMove(
        number=int(targets[0]),
        source=source,
        target=target,
        source_blocks=sources,
        target_blocks=targets,
        content=content if target == Tier.DISK else None,
    )


def down(sources: np.ndarray, targets: np.ndarray) -> BlockMove:
    return order(Tier.DEVICE, Tier.HOST, sources, targets)


def up(sources: np.ndarray, targets: np.ndarray) -> BlockMove:
    return order(Tier.HOST, Tier.DEVICE, sources, targets)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_round_trip_gives_the_same_bits_in_other_blocks(dtype: torch.dtype) -> None:
    pool = make_pool(dtype)
    before = pool.blocks.clone()
    transfer = make_transfer(pool)
    transfer.move(down(ids(4, 5, 6, 1), ids(9, 10, 0, 2)))
    pool.blocks[:, :, [4, 5, 6, 1]] = 0
    transfer.move(up(ids(9, 0, 10, 2), ids(7, 8, 3, 11)))
    assert torch.equal(pool.blocks[:, :, [7, 8, 3, 11]], before[:, :, [4, 6, 5, 1]])
    assert torch.equal(pool.blocks[:, :, [0, 2, 9, 10]], before[:, :, [0, 2, 9, 10]])
    size = before[:, :, 0].numel() * before.element_size()
    assert {path: moved for path, (moved, _) in transfer.totals().items()} == {
        "device_host": 4 * size,
        "host_device": 4 * size,
    }


def test_host_memory_is_told_as_far_as_a_row_was_ever_written() -> None:
    pool = make_pool()
    size = pool.blocks[:, :, 0].numel() * pool.blocks.element_size()
    transfer = make_transfer(pool)
    assert transfer.memory_bytes == 0
    transfer.move(down(ids(4, 5), ids(3, 1)))
    assert transfer.memory_bytes == 4 * size
    transfer.move(up(ids(3), ids(7)))
    transfer.move(down(ids(4), ids(0)))
    assert transfer.memory_bytes == 4 * size
    transfer.move(down(ids(4), ids(HOST - 1)))
    assert transfer.memory_bytes == HOST * size


def test_a_step_waits_for_the_copies_of_its_blocks_alone() -> None:
    pool, gate = make_pool(), threading.Event()
    before = pool.blocks.clone()
    with ThreadPoolExecutor(1) as worker:
        transfer = make_transfer(pool, worker)
        transfer.move(down(ids(1, 2), ids(0, 1)))
        worker.submit(gate.wait)
        transfer.move(up(ids(1), ids(5)))
        assert transfer.arrived(ids(4, 6))
        assert not transfer.arrived(ids(4, 5))
        transfer.settle(np.array([[1, 3], [2, -1]], dtype=np.int32))
        assert transfer.busy
        gate.set()
        transfer.settle(ids(5))
        assert torch.equal(pool.blocks[:, :, 5], before[:, :, 2])
        assert transfer.arrived(ids(5))
        assert not transfer.busy
    assert transfer.totals()["host_device"][1] > 0


def test_the_time_to_come_up_is_learnt_from_the_copies_made() -> None:
    class Slow(ThreadCopies):
        def up(self, rows: ByteRows, sources: np.ndarray, targets: np.ndarray) -> Copy:
            return mock.Mock(done=True, seconds=100.0)

    pool = make_pool()
    with mock.patch("runtime.offload.copies.ThreadCopies", Slow):
        transfer = make_transfer(pool)
    block_s = transfer.up_s(1)
    assert 0 < block_s < 1e-3
    assert transfer.up_s(BLOCK_SIZE) == block_s
    assert transfer.up_s(BLOCK_SIZE + 1) == pytest.approx(2 * block_s)
    transfer.move(down(ids(1), ids(0)))
    transfer.move(up(ids(0), ids(2)))
    assert not transfer.busy
    assert transfer.up_s(1) > 1000 * block_s


@pytest.mark.parametrize("seed", range(8))
def test_bytes_survive_any_delay_of_copies_and_disk(seed: int, tmp_path: Path) -> None:
    """Blocks carry numbers; a step writes to freed blocks once it has settled them."""
    rng = random.Random(seed)
    pool, copier, writer = make_pool(), Later(rng), Later(rng)
    file = SlotFile(
        tmp_path,
        num_blocks=HOST,
        block_size=BLOCK_SIZE,
        block_bytes=pool.blocks[:, :, 0].numel() * 4,
        identity="m",
    )
    store = KVStore(file, writer)
    transfer = make_transfer(pool, copier, store)
    for round_ in range(40):
        values = rng.sample(range(1000), 3)
        device = np.array(rng.sample(range(BLOCKS), 3), dtype=np.int32)
        host = np.array(rng.sample(range(HOST), 3), dtype=np.int32)
        transfer.settle(device)
        for block, value in zip(device.tolist(), values, strict=True):
            pool.blocks[:, :, block] = value
        transfer.move(down(device, host))
        transfer.settle(device)
        pool.blocks[:, :, device.tolist()] = -1.0
        if round_ % 2:
            slots = np.array(rng.sample(range(HOST), 3), dtype=np.int32)
            transfer.move(order(Tier.HOST, Tier.DISK, host, slots))
            finish(store, writer)
            transfer.move(down(device, host))
            host = np.array(rng.sample(range(HOST), 3), dtype=np.int32)
            transfer.move(order(Tier.DISK, Tier.HOST, slots, host))
            finish(store, writer)
        back = np.array(rng.sample(range(BLOCKS), 3), dtype=np.int32)
        transfer.move(up(host, back))
        while not transfer.arrived(back):
            pass
        assert pool.blocks[0, 0, back.tolist(), 0, 0, 0].tolist() == values


def test_a_device_block_is_written_to_the_disk_as_it_was(tmp_path: Path) -> None:
    pool, copier, writer = make_pool(), Later(random.Random(1)), Later(random.Random(2))
    size = pool.blocks[:, :, 0].numel() * 4
    file = SlotFile(tmp_path, num_blocks=4, block_size=BLOCK_SIZE, block_bytes=size, identity="m")
    store = KVStore(file, writer)
    transfer = make_transfer(pool, copier, store)
    before = pool.blocks.clone()
    transfer.move(order(Tier.DEVICE, Tier.DISK, ids(3, 7), ids(2, 0)))
    transfer.settle(ids(3, 7))
    pool.blocks[:, :, [3, 7]] = 0
    finish(store, writer)
    row = np.empty(size, dtype=np.uint8)
    file.read(0, row)
    shape = before[:, :, 7].shape
    assert torch.equal(torch.from_numpy(row).view(torch.float32).view(shape), before[:, :, 7])


def harm(transfer: KVTransfer, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    """Let this row of host memory fail every look at it."""
    looked = HostChecksums.intact
    monkeypatch.setattr(
        HostChecksums, "intact", lambda self, places: row not in places and looked(self, places)
    )


@pytest.mark.parametrize("how", ["settle", "arrived"])
def test_a_row_that_has_changed_never_counts_as_arrived(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer = make_transfer(make_pool())
    transfer.move(down(ids(1, 2), ids(4, 5)))
    harm(transfer, monkeypatch, 5)
    transfer.move(up(ids(4), ids(6)))
    transfer.settle(ids(6))
    transfer.move(up(ids(5), ids(7)))
    with pytest.raises(HostMemoryDamaged, match="not what was written there"):
        getattr(transfer, how)(ids(7))


def test_one_changed_byte_is_noticed() -> None:
    class Careless(ThreadCopies):
        def new_rows(self, count: int) -> ByteRows:
            self.rows = super().new_rows(count)
            return self.rows

    pool = make_pool()
    with mock.patch("runtime.offload.copies.ThreadCopies", Careless):
        transfer = make_transfer(pool)
    copies = transfer.main.copies
    assert isinstance(copies, Careless)
    transfer.move(down(ids(1), ids(4)))
    copies.rows[4, 17] ^= 8
    transfer.move(up(ids(4), ids(6)))
    with pytest.raises(HostMemoryDamaged):
        transfer.settle(ids(6))


def test_damaged_memory_reaches_the_disk_neither_before_nor_after_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, told = make_pool(), dict[int, bool]()
    size = pool.blocks[:, :, 0].numel() * 4
    file = SlotFile(tmp_path, num_blocks=9, block_size=BLOCK_SIZE, block_bytes=size, identity="m")
    transfer = make_transfer(pool, AtOnce(), KVStore(file, AtOnce()))
    cache = mock.Mock()
    cache.moved = lambda number, ok: told.update({number: ok})
    transfer.move(down(ids(1, 2), ids(4, 5)))
    harm(transfer, monkeypatch, 5)
    transfer.move(order(Tier.HOST, Tier.DISK, ids(4), ids(0)))
    transfer.move(order(Tier.HOST, Tier.DISK, ids(5), ids(1)))
    transfer.move(order(Tier.DEVICE, Tier.DISK, ids(5), ids(2)))
    transfer.report(cache)
    assert told == {0: True, 1: False, 2: True}
    transfer.move(up(ids(5), ids(7)))
    with pytest.raises(HostMemoryDamaged):
        transfer.settle(ids(7))
    transfer.move(order(Tier.DEVICE, Tier.DISK, ids(5), ids(3)))
    transfer.report(cache)
    assert told[3] is False


def finish(store: KVStore, writer: Later) -> None:
    over: list[tuple[int, bool]] = []
    while not over:
        writer.run_some()
        over += store.take_over()
    assert all(ok for _, ok in over)


def test_a_stream_gathers_blocks_that_came_up_when_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, whose computing stream does not wait for what comes up by itself."""
    pool, timeline = make_pool(), Timeline()
    transfer = make_transfer(pool)
    timeline.install(monkeypatch)
    monkeypatch.setattr(transfer, "_on_cpu", False)
    monkeypatch.setattr(transfer.main, "copies", StreamCopies(pool))
    monkeypatch.setattr(transfer, "_land", lambda: None)  # nothing is over yet
    with timeline:
        transfer.move(down(ids(1, 2), ids(0, 1)))
        transfer.move(up(ids(0), ids(5)))
        transfer.move(down(ids(3), ids(2)))
        transfer.move(down(ids(5), ids(3)))
    placed = timeline.places("index_copy_")[-1]
    other, gathered = timeline.places("index_select")[-2:]
    assert timeline.before(placed, gathered)
    assert not timeline.before(placed, other)


def test_moves_to_the_disk_pass_through_the_same_memory_again(tmp_path: Path) -> None:
    class Counting(ThreadCopies):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.made: list[int] = []
            self.dropped: list[int] = []

        def new_rows(self, count: int) -> ByteRows:
            self.made.append(count)
            return super().new_rows(count)

        def drop_rows(self, rows: ByteRows) -> None:
            self.dropped.append(len(rows))

    pool, writer = make_pool(), Later(random.Random(0))
    size = pool.blocks[:, :, 0].numel() * 4
    file = SlotFile(tmp_path, num_blocks=9, block_size=BLOCK_SIZE, block_bytes=size, identity="m")
    with mock.patch("runtime.offload.copies.ThreadCopies", Counting):
        transfer = make_transfer(pool, AtOnce(), KVStore(file, writer))
    copies = transfer.main.copies
    assert isinstance(copies, Counting)
    copies.made.clear()
    cache = mock.Mock()
    for slot in range(4):
        transfer.move(order(Tier.DEVICE, Tier.DISK, ids(slot), ids(slot)))
        writer.run_one()
        transfer.report(cache)
    assert (copies.made, copies.dropped) == ([64], [])
    for slot in range(4, 6):  # two under way at once
        transfer.move(order(Tier.DEVICE, Tier.DISK, ids(slot - 4), ids(slot)))
    assert copies.made == [64, 64]
    writer.run_one()
    writer.run_one()
    transfer.report(cache)
    assert len(copies.dropped) == 1
    assert cache.moved.call_count == 6


# Rows of layers with a window, in blocks of their own

WINDOWED = random_model_config("gpt-oss-tiny")
WINDOW_BLOCKS, NEAR_ROWS = 7, 5


def windowed_pool() -> KVPool:
    pool = KVPool(
        WINDOWED,
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        window_blocks=WINDOW_BLOCKS,
    )
    for seed, group in enumerate(pool.groups):
        group.copy_(torch.randn(group.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


def windowed_transfer(pool: KVPool, worker: Executor, store: KVStore | None = None) -> KVTransfer:
    return KVTransfer(pool, host_blocks=HOST, near_rows=NEAR_ROWS, store=store, worker=worker)


def parted(move: BlockMove, source_near: np.ndarray, target_near: np.ndarray) -> BlockMove:
    return replace(move, source_near=source_near, target_near=target_near)


def near_of(pool: KVPool) -> torch.Tensor:
    assert pool.near is not None
    (group,) = pool.near.groups
    return group


def main_of(pool: KVPool) -> torch.Tensor:
    (group,) = pool.main.groups
    return group


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_windows_go_down_and_up_in_places_of_their_own(seed: int) -> None:
    pool, worker = windowed_pool(), Later(random.Random(seed))
    main, near = main_of(pool).clone(), near_of(pool).clone()
    transfer = windowed_transfer(pool, worker)
    transfer.move(parted(down(ids(4, 5, 1), ids(9, 0, 2)), ids(6, -1, 2), ids(0, -1, 3)))
    transfer.settle(ids(4, 5, 1), ids(6, 2))
    main_of(pool)[:, :, [4, 5, 1]] = 0
    near_of(pool)[:, :, [6, 2]] = 0
    transfer.move(parted(up(ids(9, 0, 2), ids(7, 8, 3)), ids(0, -1, 3), ids(1, -1, 5)))
    transfer.settle(ids(7), ids(0))
    assert torch.equal(main_of(pool)[:, :, [7, 8, 3]], main[:, :, [4, 5, 1]])
    assert torch.equal(near_of(pool)[:, :, [1, 5]], near[:, :, [6, 2]])
    assert torch.equal(near_of(pool)[:, :, [0, 3, 4]], near[:, :, [0, 3, 4]])
    sizes = [group[:, :, 0].numel() * group.element_size() for group in (main, near)]
    moved = 3 * sizes[0] + 2 * sizes[1]
    assert [count for count, _ in transfer.totals().values()] == [moved, moved]
    assert transfer.memory_bytes == 10 * sizes[0] + 4 * sizes[1]


@pytest.mark.parametrize("arriving", [False, True])
def test_a_step_waits_for_copies_that_touch_its_window_blocks(arriving: bool) -> None:
    """Its blocks are others: the window block had another owner."""

    class Unlucky(random.Random):
        def random(self) -> float:
            return 1.0  # nothing is done before somebody waits for it

    worker = Later(Unlucky())
    transfer = windowed_transfer(windowed_pool(), worker)
    if arriving:
        transfer.move(parted(down(ids(4), ids(9)), ids(6), ids(0)))
        while worker.num_waiting:
            worker.run_one()
        transfer.move(parted(up(ids(9), ids(3)), ids(0), ids(2)))
    else:
        transfer.move(parted(down(ids(4), ids(9)), ids(2), ids(0)))
    waiting = worker.num_waiting
    transfer.settle(ids(7, 8), ids(0, 1))
    transfer.settle(ids(7, 8))
    assert worker.num_waiting == waiting
    transfer.settle(ids(7, 8), ids(2))
    assert worker.num_waiting < waiting
    assert transfer.arrived(ids(3))


def test_rows_of_windows_pass_through_the_disk(tmp_path: Path) -> None:
    pool = windowed_pool()
    main, near = main_of(pool).clone(), near_of(pool).clone()
    sizes = [group[:, :, 0].numel() * group.element_size() for group in (main, near)]
    file = SlotFile(
        tmp_path,
        num_blocks=9,
        block_size=BLOCK_SIZE,
        block_bytes=sum(sizes),
        near_bytes=sizes[1],
        identity="m",
    )
    store = KVStore(file, AtOnce())
    transfer = windowed_transfer(pool, AtOnce(), store)
    disk = (Tier.DISK, Tier.HOST)
    transfer.move(parted(down(ids(4, 5), ids(1, 2)), ids(-1, 3), ids(-1, 4)))
    transfer.move(parted(order(*disk[::-1], ids(1, 2), ids(0, 1)), ids(-1, 4), ids(-1, 1)))
    transfer.move(
        parted(order(Tier.DEVICE, Tier.DISK, ids(6, 7), ids(2, 3)), ids(0, -1), ids(2, -1))
    )
    transfer.move(parted(order(Tier.DEVICE, Tier.DISK, ids(8), ids(4)), ids(-1), ids(-1)))
    main_of(pool).zero_()
    near_of(pool).zero_()
    sources, targets = ids(0, 1, 2, 3, 4), ids(11, 12, 13, 14, 15)
    back = ids(-1, 0, 1, -1, -1)
    transfer.move(parted(order(*disk, sources, targets), ids(-1, 1, 2, -1, -1), back))
    transfer.move(parted(up(targets, ids(0, 1, 2, 3, 4)), back, ids(-1, 6, 5, -1, -1)))
    assert [ok for _, ok in store.take_over()] == [True] * 4
    transfer.settle(ids(0, 1, 2, 3, 4), ids(5, 6))
    assert torch.equal(main_of(pool)[:, :, [0, 1, 2, 3, 4]], main[:, :, [4, 5, 6, 7, 8]])
    assert torch.equal(near_of(pool)[:, :, [6, 5]], near[:, :, [3, 0]])
    assert not near_of(pool)[:, :, :5].any()
    written = 5 * sizes[0] + 2 * sizes[1]
    assert (store.bytes_written, store.bytes_read) == (written, written)
    transfer.close()


@pytest.mark.parametrize("kind", ["main", "near"])
def test_a_row_of_either_kind_that_was_harmed_is_noticed(kind: str) -> None:
    pool = windowed_pool()
    transfer = windowed_transfer(pool, AtOnce())
    transfer.move(parted(down(ids(4, 5), ids(9, 8)), ids(-1, 3), ids(-1, 2)))
    if kind == "main":
        transfer.main.rows[8, 3] ^= 1
    else:
        assert transfer.near is not None
        transfer.near.rows[[0, 1, 3, 4]] = 7
        transfer.move(parted(up(ids(9), ids(0)), ids(-1), ids(-1)))
        transfer.settle(ids(0), ids(0))
        transfer.near.rows[2, 3] ^= 1
    transfer.move(parted(up(ids(8), ids(7)), ids(2), ids(1)))
    with pytest.raises(HostMemoryDamaged):
        transfer.settle(ids(7), ids(1))


def test_a_stream_gathers_window_blocks_that_came_up_when_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, timeline = windowed_pool(), Timeline()
    transfer = windowed_transfer(pool, AtOnce())
    assert transfer.near is not None
    timeline.install(monkeypatch)
    monkeypatch.setattr(transfer, "_on_cpu", False)
    monkeypatch.setattr(transfer.main, "copies", StreamCopies(pool.main))
    monkeypatch.setattr(transfer.near, "copies", StreamCopies(near_part(pool)))
    monkeypatch.setattr(transfer, "_land", lambda: None)  # nothing is over yet
    with timeline:
        transfer.move(parted(down(ids(1), ids(0)), ids(3), ids(0)))
        transfer.move(parted(up(ids(0), ids(5)), ids(0), ids(2)))
        transfer.move(parted(down(ids(3), ids(2)), ids(1), ids(1)))
        transfer.move(parted(down(ids(6), ids(3)), ids(2), ids(2)))
    placed = timeline.places("index_copy_")[-1]
    other, gathered = (timeline.places("index_select")[at] for at in (-3, -1))
    assert timeline.before(placed, gathered)
    assert not timeline.before(placed, other)


def near_part(pool: KVPool) -> PoolPart:
    assert pool.near is not None
    return pool.near
