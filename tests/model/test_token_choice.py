"""Which tokens queries choose: those that sorting all scores gives, whatever is beside them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import token_choice as module
from kernels.native_library import native_library
from kernels.paged_layout import SequenceSpan
from kernels.token_choice import IndexQueries, best, chosen_slots, chosen_slots_reference

BLOCK, BLOCKS, DIM = 8, 120, 12
COMPILED = native_library(torch.float32) is not None
SPANS = (
    SequenceSpan(first_row=0, num_queries=1, context_length=40, runs=((3, 2), (90, 3))),
    SequenceSpan(first_row=1, num_queries=60, context_length=90, runs=((10, 12),)),
    SequenceSpan(first_row=61, num_queries=7, context_length=541, runs=((40, 60), (5, 8))),
)
"""Each query sees 30 tokens at least; the last context is longer than a stretch."""
ROWS = 68


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module, "native_library", lambda _: None)
    return str(request.param)


def given(dtype: torch.dtype, heads: int, seed: int, *, whole: bool) -> tuple[IndexQueries, Tensor]:
    """``whole``: of whole numbers, so that sums are exact and many are equal. Keys are the last
    numbers of longer rows."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=draw).double()
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    rows = torch.cat(
        (torch.full((BLOCKS, 1, BLOCK, 5), torch.nan), numbers(BLOCKS, 1, BLOCK, DIM)), 3
    )
    wide = torch.promote_types(dtype, torch.float32)
    asked = IndexQueries(
        queries=numbers(ROWS, heads, DIM).to(dtype), weights=numbers(ROWS, heads).to(wide)
    )
    return asked, rows.to(dtype)[..., 5:]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 3, 8, 21])
@pytest.mark.parametrize("top_k", [1, 17, 30])
def test_the_choice_is_that_of_sorting_earliest_first_among_equals(
    dtype: torch.dtype, heads: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, keys = given(dtype, heads, heads + top_k, whole=True)
    expected = chosen_slots_reference(asked, keys, SPANS, top_k)
    assert torch.equal(chosen_slots(asked, keys, SPANS, top_k), expected)
    monkeypatch.setattr(module, "_NUMBERS", 20_000)
    assert torch.equal(chosen_slots(asked, keys, SPANS, top_k), expected)


@pytest.mark.usefixtures("way")
def test_of_equal_scores_the_earliest_tokens_are_taken() -> None:
    asked, keys = given(torch.float32, 4, 0, whole=True)
    asked = replace(asked, weights=torch.zeros(ROWS, 4))
    found = chosen_slots(asked, keys, SPANS[1:2], 9)[1:61]
    assert torch.equal(found, torch.arange(80, 89, dtype=torch.int32).expand(60, -1))


@pytest.mark.usefixtures("way")
def test_a_query_that_sees_as_many_as_it_may_choose_takes_all() -> None:
    asked, keys = given(torch.float32, 4, 0, whole=False)
    found = chosen_slots(asked, keys, SPANS[1:2], 31)[1]
    assert torch.equal(found, torch.arange(80, 111, dtype=torch.int32))


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [3, 64])
def test_scores_have_the_same_bits_whatever_is_beside_them(dtype: torch.dtype, heads: int) -> None:
    asked, keys = given(dtype, heads, 5, whole=False)
    span = SPANS[2]
    places, queries = module.slots_of(span, keys), asked.queries.float()
    whole = module.compiled_scores(queries, asked.weights, keys, places)
    assert (whole > -torch.inf).sum() == sum(range(541 - ROWS + 1, 542))
    for low, count in ((0, 1), (0, 7), (5, 9), (30, 2), (67, 1)):
        rows = slice(low, low + count)
        end = 541 - ROWS + low + count
        some = module.compiled_scores(queries[rows], asked.weights[rows], keys, places[:end])
        assert torch.equal(some, whole[rows, :end])


@pytest.mark.usefixtures("way")
def test_a_query_chooses_beside_others_as_it_does_alone() -> None:
    asked, keys = given(torch.float32, 16, 3, whole=False)
    together = chosen_slots(asked, keys, SPANS, 30)
    span = SPANS[1]
    for row in (0, 1, 31, 59):
        own = slice(1 + row, 2 + row)
        alone = IndexQueries(queries=asked.queries[own], weights=asked.weights[own])
        seen = replace(span, first_row=0, num_queries=1, context_length=31 + row)
        seen = replace(seen, runs=((10, -(-(31 + row) // BLOCK)),))
        assert torch.equal(chosen_slots(alone, keys, [seen], 30)[0], together[1 + row])


@pytest.mark.usefixtures("way")
def test_a_query_that_is_no_number_spoils_no_other() -> None:
    asked, keys = given(torch.float32, 4, 2, whole=True)
    expected = chosen_slots(asked, keys, SPANS, 30)
    asked.queries[20] = torch.nan
    found = chosen_slots(asked, keys, SPANS, 30)
    others = torch.arange(ROWS) != 20
    assert torch.equal(found[others], expected[others])
    assert torch.equal(found[20], torch.arange(80, 110, dtype=torch.int32))


def test_no_number_counts_as_infinite_and_the_smallest_as_a_score() -> None:
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([[0.0, nan, 1.0, inf, nan], [-inf, -inf, -0.0, 0.0, -inf]])
    assert best(scores.clone(), 3).tolist() == [[1, 3, 4], [0, 2, 3]]
    assert best(scores.clone(), 1).tolist() == [[1], [2]]
    assert best(scores.clone(), 5).tolist() == [[0, 1, 2, 3, 4]] * 2
