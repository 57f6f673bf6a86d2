"""Blocks go to host memory and disk and come back bit by bit, in the order of the orders."""

import random
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, RunContent
from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.offload.checksums import HostChecksums, HostMemoryDamaged
from runtime.offload.copies import Copy, StreamCopies, ThreadCopies
from runtime.offload.disk import ByteRows, KVStore, SlotFile
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
