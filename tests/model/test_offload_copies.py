"""Copies of blocks: which pieces, that their bytes lie together below, what waits for what."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.offload import copies as kv_copies
from runtime.offload.copies import StreamCopies, ThreadCopies, runs
from tests.support.executors import AtOnce
from tests.support.model_shapes import with_other_keys
from tests.support.streams import MAIN, Timeline


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_runs_count_up_on_both_sides() -> None:
    assert list(runs(ids(3, 4, 5, 9, 8), ids(0, 1, 3, 4, 5))) == [
        (3, 0, 2),
        (5, 3, 1),
        (9, 4, 1),
        (8, 5, 1),
    ]
    assert list(runs(ids(), ids())) == []


def test_a_block_lies_in_one_row_layer_by_layer() -> None:
    pool = KVPool(
        random_model_config("qwen3-tiny"),
        num_blocks=6,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pool.blocks.copy_(torch.randn(pool.blocks.shape, generator=torch.Generator().manual_seed(0)))
    copies = ThreadCopies(pool, AtOnce())
    rows = copies.new_rows(3)
    copies.down(ids(5, 2), rows, ids(0, 2)).wait()
    for block, row in ((5, 0), (2, 2)):
        expected = pool.blocks[:, :, block].contiguous().flatten()
        assert torch.equal(torch.from_numpy(rows[row]).view(torch.float32), expected)


def of_two_groups() -> KVPool:
    """A pool of random keys and values whose layers differ in their shapes."""
    pool = KVPool(
        with_other_keys(random_model_config("qwen3-tiny")),
        num_blocks=6,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    generator = torch.Generator().manual_seed(0)
    for group in pool.groups:
        group.copy_(torch.randn(group.shape, generator=generator))
    return pool


def test_groups_lie_in_a_row_one_after_the_other() -> None:
    pool = of_two_groups()
    before = [group.clone() for group in pool.groups]
    copies = ThreadCopies(pool, AtOnce())
    rows = copies.new_rows(4)
    assert rows.shape == (4, pool.num_bytes // 6)
    copies.down(ids(4, 5, 2), rows, ids(2, 3, 0)).wait()
    expected = torch.cat([group[:, :, 5].flatten() for group in before])
    assert torch.equal(torch.from_numpy(rows[3]).view(torch.float32), expected)
    for group in pool.groups:
        group.zero_()
    copies.up(rows, ids(3, 0, 2), ids(1, 3, 4)).wait()
    for group, old in zip(pool.groups, before, strict=True):
        assert torch.equal(group[:, :, [1, 3, 4]], old[:, :, [5, 2, 4]])
        assert not group[:, :, [0, 2, 5]].any()


@pytest.mark.usefixtures("stream_pool")
def test_streams_carry_every_group_and_a_thread_reads_what_they_wrote() -> None:
    pool = of_two_groups()
    before = [group.clone() for group in pool.groups]
    rows = ThreadCopies(pool, AtOnce()).new_rows(4)
    copies = StreamCopies(pool)
    copies.down(ids(4, 5, 1), rows, ids(2, 3, 0)).wait()
    same = np.zeros_like(rows)
    ThreadCopies(pool, AtOnce()).down(ids(4, 5, 1), same, ids(2, 3, 0)).wait()
    assert np.array_equal(rows[[2, 3, 0]], same[[2, 3, 0]])
    for group in pool.groups:
        group.zero_()
    copies.up(rows, ids(0, 3, 2), ids(3, 2, 0)).wait()
    for group, old in zip(pool.groups, before, strict=True):
        assert torch.equal(group[:, :, [3, 2, 0]], old[:, :, [1, 5, 4]])
        assert not group[:, :, [1, 4, 5]].any()


@pytest.fixture
def stream_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Timeline, KVPool]]:
    """A pool in main memory whose copies take it for a GPU's."""
    pool = KVPool(
        random_model_config("qwen3-tiny"),
        num_blocks=6,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pool.blocks.copy_(torch.randn(pool.blocks.shape, generator=torch.Generator().manual_seed(0)))
    timeline = Timeline()
    timeline.install(monkeypatch)
    with timeline:
        yield timeline, pool


def host_rows(pool: KVPool, count: int) -> np.ndarray:
    """In place of pinned ones, which need a GPU."""
    return np.zeros((count, pool.blocks[:, :, 0].numel() * 4), dtype=np.uint8)


def test_what_streams_carry_down_and_up_is_the_same(
    stream_pool: tuple[Timeline, KVPool],
) -> None:
    _, pool = stream_pool
    before = pool.blocks.clone()
    copies, rows = StreamCopies(pool), host_rows(pool, 4)
    copies.down(ids(4, 5, 1), rows, ids(2, 3, 0)).wait()
    assert torch.equal(
        torch.from_numpy(rows[0]).view(torch.float32), before[:, :, 1].contiguous().flatten()
    )
    copies.up(rows, ids(0, 3, 2), ids(3, 2, 0)).wait()
    assert torch.equal(pool.blocks[:, :, [3, 2, 0]], before[:, :, [1, 5, 4]])


def test_a_device_gathers_blocks_before_they_are_written_again_and_copies_aside(
    stream_pool: tuple[Timeline, KVPool],
) -> None:
    timeline, pool = stream_pool
    copies, rows = StreamCopies(pool), host_rows(pool, 2)
    copy = copies.down(ids(4, 1), rows, ids(0, 1))
    gathered, copied = timeline.places("index_select")[-1], timeline.places("copy_")[-1]
    assert timeline.stream_of("index_select") == MAIN
    assert timeline.entries[copied][0] != MAIN
    assert timeline.before(gathered, copied)
    ends = timeline.places("record")
    assert timeline.before(ends[0], copied)
    assert timeline.before(copied, ends[-1])
    assert timeline.places("kept")
    settled = len(timeline.entries)
    copy.settle()
    pool.blocks[:, :, 4] = 0  # a step; it need not wait for the copy
    assert not timeline.before(copied, len(timeline.entries) - 1)
    assert len(timeline.entries) > settled
    assert not timeline.places("host waits")
    copy.wait()
    assert timeline.entries[timeline.places("host waits")[-1]][2] == ends[-1]


def test_what_comes_up_is_put_in_place_between_the_steps_before_and_those_that_need_it(
    stream_pool: tuple[Timeline, KVPool],
) -> None:
    timeline, pool = stream_pool
    copies, rows = StreamCopies(pool), host_rows(pool, 2)
    pool.blocks[:, :, 2] = 0
    step = len(timeline.entries) - 1
    copy = copies.up(rows, ids(0, 1), ids(2, 3))
    placed = timeline.places("index_copy_")[-1]
    assert timeline.entries[placed][0] != MAIN
    assert timeline.before(step, placed)
    pool.blocks[:, :, 5] = 0
    assert not timeline.before(placed, len(timeline.entries) - 1)
    copy.settle()
    pool.blocks[:, :, 2] = 0
    assert timeline.before(placed, len(timeline.entries) - 1)
    assert not timeline.places("host waits")


def test_a_thread_that_waits_for_a_copy_sleeps(stream_pool: tuple[Timeline, KVPool]) -> None:
    timeline, pool = stream_pool
    StreamCopies(pool).down(ids(1), host_rows(pool, 1), ids(0))
    events = [timeline.entries[at][2] for at in timeline.places("record")]
    assert [event.options.get("blocking", False) for event in events] == [False, True]


def test_much_host_memory_is_pinned_as_it_is_and_not_rounded_up(
    stream_pool: tuple[Timeline, KVPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pool = stream_pool
    registered: list[tuple[int, int, int]] = []
    answers = [0, 2]

    released: list[int] = []

    class Runtime:
        @staticmethod
        def cudaHostRegister(place: int, size: int, flags: int) -> int:
            registered.append((place, size, flags))
            return answers.pop(0)

        @staticmethod
        def cudaHostUnregister(place: int) -> int:
            released.append(place)
            return 0

    def check_error(code: int) -> None:
        if code:
            raise RuntimeError(f"code {code}")

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    monkeypatch.setattr(kv_copies, "_ROUNDED_BYTES", 1)
    rows = StreamCopies(pool).new_rows(3)
    assert rows.shape == host_rows(pool, 3).shape
    assert registered == [(rows.ctypes.data, rows.nbytes, 0)]
    StreamCopies(pool).drop_rows(rows)
    assert released == [rows.ctypes.data]
    with pytest.raises(RuntimeError, match="code 2"):
        StreamCopies(pool).new_rows(3)


def test_long_moves_go_in_pieces_and_lose_nothing(
    stream_pool: tuple[Timeline, KVPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, pool = stream_pool
    monkeypatch.setattr(kv_copies, "PIECE_BLOCKS", 2)
    before = pool.blocks.clone()
    copies, rows = StreamCopies(pool), host_rows(pool, 5)
    copies.down(ids(4, 5, 1, 0, 2), rows, ids(2, 3, 0, 1, 4)).wait()
    gathers = timeline.places("index_select")
    assert [timeline.entries[at][2][2].numel() for at in gathers] == [2, 2, 1]
    pool.blocks.zero_()
    copies.up(rows, ids(2, 3, 0, 1, 4), ids(4, 5, 1, 0, 2)).wait()
    assert torch.equal(pool.blocks[:, :, [0, 1, 2, 4, 5]], before[:, :, [0, 1, 2, 4, 5]])
