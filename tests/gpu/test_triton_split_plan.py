"""The plan of a decode's items: every key of every decode once, in pieces of like size."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from kernels.paged_layout import MAX_DECODE_QUERIES, PagedLayout, SharedPrefixes
from tests.support.attention_on_triton import on

TILE = 64
PLAIN = "plain"
WINDOW = "window"
SHARED = "shared"


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def layout(
    lengths: list[int], queries: list[int], skips: list[int] | None, device: torch.device
) -> PagedLayout:
    starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    shared = None
    if skips is not None:
        shared = SharedPrefixes(
            members=torch.zeros((1, 2), dtype=torch.int32, device=device),
            lengths=torch.zeros(1, dtype=torch.int32, device=device),
            skips=torch.tensor(skips, dtype=torch.int32, device=device),
        )
    made = PagedLayout(
        query_starts=starts,
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.zeros((len(lengths), 1), dtype=torch.int32),
        max_query_tokens=max(queries),
        max_decode_tokens=max(queries),
        shared=shared,
    )
    return on(device, made)


@dataclass(frozen=True, kw_only=True)
class Item:
    sequence: int
    low: int
    high: int
    first_row: int
    num_queries: int
    length: int
    whole: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """Of one sequence."""

    first_item: int
    parts: int
    first: int
    first_row: int
    num_queries: int


def plan_of(
    step: PagedLayout, *, shares: int = 8, window: int = 0, items: int | None = None
) -> tuple[list[Item], list[Row]]:
    """All items, those that there are not among them, and all sequences."""
    from kernels.triton_split_plan import most_items, split_plan

    if items is None:
        sequences, longest = len(step.context_lengths), int(step.context_lengths.max())
        items = most_items(sequences, shares=shares, max_keys=max(longest, 1), tile_keys=TILE)
    plan = split_plan(step, shares=shares, items=items, tile_keys=TILE, window=window).tolist()
    return (
        [Item(**dict(zip(Item.__annotations__, row, strict=False))) for row in plan[:items]],
        [Row(**dict(zip(Row.__annotations__, row, strict=False))) for row in plan[items:]],
    )


def counts(items: list[Item], sequences: int) -> list[int]:
    """Items of each sequence."""
    found = [item.sequence for item in items]
    return [found.count(index) for index in range(sequences)]


def mixed(count: int, seed: int, kind: str) -> tuple[list[int], list[int], list[int] | None]:
    """(lengths, queries, skips) of decodes, prefill chunks and padding."""
    rng = random.Random(seed)
    lengths, queries, skips = [], [], []
    for _ in range(count):
        most = rng.choice((1, 60, 65, 700, 700, 3000, 20000))
        new = rng.choice((1, 1, 1, 2, 5, MAX_DECODE_QUERIES, MAX_DECODE_QUERIES + 1, 0))
        length = rng.randint(new, max(new, most)) if new else 0
        lengths.append(length)
        queries.append(new)
        skips.append(rng.randint(0, (length - new) // TILE) * TILE if rng.random() < 0.5 else 0)
    return lengths, queries, skips if kind == SHARED else None


@pytest.mark.parametrize("shares", [1, 8, 600])
@pytest.mark.parametrize("kind", [PLAIN, WINDOW, SHARED])
@pytest.mark.parametrize(("count", "seed"), [(1, 0), (1, 1), (2, 2), (17, 3), (128, 4), (300, 5)])
def test_every_key_of_every_decode_is_in_one_item(
    count: int, seed: int, kind: str, shares: int, device: torch.device
) -> None:
    lengths, queries, skips = mixed(count, seed, kind)
    window = 100 if kind == WINDOW else 0
    step = layout(lengths, queries, skips, device)
    items, rows = plan_of(step, shares=shares, window=window)
    used = [item for item in items if item.sequence >= 0]
    assert items[: len(used)] == used
    assert {item.sequence for item in items[len(used) :]} <= {-1}
    starts = step.query_starts.tolist()
    for index, (length, new, row) in enumerate(zip(lengths, queries, rows, strict=True)):
        own = [at for at, item in enumerate(used) if item.sequence == index]
        assert (row.first_row, row.num_queries) == (starts[index], new)
        if not 0 < new <= MAX_DECODE_QUERIES:
            assert (own, row.parts) == ([], 0)
            continue
        seen_from = max(length - new - window + 1, 0) // TILE * TILE if window else 0
        first = skips[index] if skips else seen_from
        whole = len(own) == 1 and not (skips and first)
        assert own == list(range(row.first_item, row.first_item + len(own)))
        assert (row.parts, row.first) == (0 if whole else len(own), first)
        edges = [first, *(used[at].high for at in own)]
        assert [used[at].low for at in own] == edges[:-1]
        assert edges[-1] == length
        assert all(low % TILE == 0 and low < high for low, high in pairwise(edges))
        for item in (used[at] for at in own):
            assert (item.first_row, item.num_queries) == (starts[index], new)
            assert (item.length, item.whole) == (length, whole)


@pytest.mark.parametrize("shares", [1, 7, 8, 528, 529])
def test_there_is_room_for_the_worst_lengths(shares: int) -> None:
    """The bound, without a device: ``split_plan_kernel``'s sums, over lengths made to break it."""
    from kernels.triton_split_plan import PROGRAMS, most_items

    rng = random.Random(shares)
    for _ in range(2000):
        longest = rng.choice((1, 2, 70, 1024))
        tiles = [rng.choice((1, 2, rng.randint(1, longest))) for _ in range(rng.randint(1, 20))]
        wanted = -(-sum(tiles) * shares // PROGRAMS)
        needed = [-(-count // wanted) for count in tiles]
        room = most_items(len(tiles), shares=shares, max_keys=max(tiles) * TILE, tile_keys=TILE)
        assert sum(needed) <= room
        assert max(needed) == 1 or room > len(tiles)


def test_what_there_is_no_room_for_is_not_written(device: torch.device) -> None:
    step = layout([5000, 20, 4000, 30], [1, 1, 1, 1], None, device)
    for room in (1, 3, 80, 144):
        items, rows = plan_of(step, shares=1, items=room)
        assert [row.first_row for row in rows] == [0, 1, 2, 3]
        assert all(row.first_item + row.parts <= room for row in rows if row.parts > 0)
        assert [item.sequence for item in items] == ([0] * 79 + [2] * 63 + [1, 3])[:room]


def test_a_decode_without_keys_of_its_own_has_an_empty_item(device: torch.device) -> None:
    items, rows = plan_of(layout([512, 700], [1, 1], [512, 512], device))
    empty = next(item for item in items if item.sequence == 0)
    assert (empty.low, empty.high, empty.whole) == (512, 512, 0)
    assert [row.parts for row in rows] == [1, 3]


def test_what_is_no_decode_and_what_a_prefix_has_are_not_in_it(device: torch.device) -> None:
    step = layout([900, 400, 50, 0], [1, 40, 2, 0], [512, 0, 0, 0], device)
    items, rows = plan_of(step)
    assert counts(items, 4) == [7, 0, 1, 0]
    assert rows[0].first == min(item.low for item in items if item.sequence == 0) == 512
    assert [row.parts for row in rows] == [7, 0, 0, 0]


def test_a_step_works_its_plan_out_once(device: torch.device) -> None:
    from kernels.triton_split_plan import split_plan

    step = layout([900, 50], [1, 1], None, device)
    made = split_plan(step, shares=8, items=16, tile_keys=64, window=0)
    assert split_plan(step, shares=8, items=16, tile_keys=64, window=0) is made
    assert split_plan(step, shares=8, items=16, tile_keys=64, window=128) is not made


@pytest.mark.parametrize("short", [100, 512])
def test_one_long_context_among_short_ones_is_split_and_they_are_not(
    short: int, device: torch.device
) -> None:
    items, _ = plan_of(layout([short] * 15 + [65536], [1] * 16, None, device))
    found = counts(items, 16)
    assert found[:15] == [1] * 15
    assert 56 < found[15] <= 66
    assert items[0].sequence == 15, "what takes long starts first"


@pytest.mark.parametrize(("length", "splits"), [(64, 1), (1024, 16), (4224, 66), (65536, 64)])
def test_a_context_alone_makes_all_programs(length: int, splits: int, device: torch.device) -> None:
    items, _ = plan_of(layout([length], [1], None, device))
    assert counts(items, 1) == [splits]
    assert len(items) <= 66
