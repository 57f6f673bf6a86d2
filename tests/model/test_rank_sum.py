"""A row's sum has the same bits alone and at any place of a batch, on every rank, in every type."""

import random

import pytest
import torch

from runtime.model.rank_sum import RankSum, SumKind, in_rank_order
from tests.support.rank_groups import Groups

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HIDDEN = 64


@pytest.fixture(scope="module", params=[2, 3, 4])
def groups(request: pytest.FixtureRequest) -> Groups:
    return Groups(request.param)


def _differing(groups: Groups, kind: SumKind, dtype: torch.dtype, seed: int) -> int:
    """Batches of 15 in which a row's sum has other bits than alone, on any rank."""
    rng, ranks = random.Random(seed), len(groups.groups)
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(ranks, 1, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    alone = groups.sums(list(row), kind)
    differing = sum(not torch.equal(each, alone[0]) for each in alone)
    for rows in (2, 3, 5, 7, 8, 16, 17, 31, 33, 64, 100, 128, 200, 256, 512):
        parts = torch.randn(ranks, rows, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
        place = rng.randrange(rows)
        parts[:, place] = row[:, 0]
        found = groups.sums(list(parts), kind)
        differing += any(not torch.equal(each[place], alone[0][0]) for each in found)
    return differing


@pytest.mark.samples(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_at_any_place_and_on_every_rank(
    groups: Groups, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    assert _differing(groups, "exact", dtype, seed) == 0


def test_the_librarys_own_sum_has_not_above_two_ranks(
    groups: Groups, request: pytest.FixtureRequest
) -> None:
    """The reason for a sum of our own: where this fails, the library can be used."""
    seed = request.config.getoption("--seed")
    found = _differing(groups, "fast", torch.float32, seed)
    assert found == 0 if len(groups.groups) == 2 else found > 10


@pytest.mark.parametrize("dtype", TYPES)
def test_parts_are_added_in_the_order_of_ranks_and_rounded_once(dtype: torch.dtype) -> None:
    parts = [torch.tensor([value], dtype=dtype) for value in (1.0, 2.0**-9, 2.0**-9)]
    wide = torch.promote_types(dtype, torch.float32)
    expected = (parts[0].to(wide) + parts[1].to(wide) + parts[2].to(wide)).to(dtype)
    assert torch.equal(in_rank_order(parts), expected)
    huge = [torch.tensor([value], dtype=torch.float64) for value in (1e30, -1e30, 1.0)]
    assert in_rank_order(huge).item() == 1.0
    assert in_rank_order([huge[2], huge[0], huge[1]]).item() == 0.0
    assert parts[0].item() == 1.0  # what was given is left as it is


def test_the_time_that_sums_take_is_told_once() -> None:
    ticks = iter([1.0, 1.5, 3.0, 3.25])
    group = Groups(2)
    parts = [torch.ones(2, 3), torch.ones(2, 3)]
    timed = RankSum(group.groups[0], "exact", clock=lambda: next(ticks))
    for _ in range(2):
        group.on_all(
            lambda rank: (timed if rank == 0 else RankSum(group.groups[1], "exact"))(parts[rank])
        )
    assert timed.pop_wait_s() == 0.75
    assert timed.pop_wait_s() == 0.0
