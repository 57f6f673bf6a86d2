"""Which blocks queries choose: those that sorting their best scores gives, whatever is beside."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import block_choice as module
from kernels.block_choice import chosen_blocks, chosen_blocks_reference
from kernels.paged_layout import SequenceSpan

BLOCK, BLOCKS, DIM, HEADS, SIZE = 8, 120, 12, 3, 16
SPANS = (
    SequenceSpan(first_row=0, num_queries=1, context_length=90, runs=((3, 4), (90, 8))),
    SequenceSpan(first_row=1, num_queries=40, context_length=120, runs=((10, 15),)),
    SequenceSpan(first_row=41, num_queries=7, context_length=541, runs=((40, 60), (5, 8))),
)
"""Each query has five blocks at least up to its own."""
ROWS = 48


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module, "native_library", lambda _: None)
    return str(request.param)


def given(dtype: torch.dtype, seed: int, *, whole: bool) -> tuple[Tensor, Tensor]:
    """Index queries and keys; ``whole``: of whole numbers, so that products are exact and many
    blocks are equal."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=draw).to(dtype)
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    return numbers(ROWS, HEADS, DIM), numbers(BLOCKS, 1, BLOCK, DIM)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "local"), [(1, 1), (3, 1), (5, 2), (4, 4)])
def test_the_choice_is_that_of_sorting_earliest_first_among_equals(
    dtype: torch.dtype, count: int, local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys = given(dtype, count, whole=True)
    how = {"size": SIZE, "count": count, "local": local}
    expected = chosen_blocks_reference(queries, keys, SPANS, **how)
    assert torch.equal(chosen_blocks(queries, keys, SPANS, **how), expected)
    monkeypatch.setattr(module, "_NUMBERS", 2000)
    assert torch.equal(chosen_blocks(queries, keys, SPANS, **how), expected)


@pytest.mark.usefixtures("way")
def test_a_querys_own_blocks_are_chosen_and_none_behind_it() -> None:
    queries, keys = given(torch.float32, 7, whole=False)
    found = chosen_blocks(queries, keys, SPANS, size=SIZE, count=4, local=2)[1:41]
    own = torch.arange(80, 120) // SIZE
    assert torch.equal(found[:, :, -1], own[:, None].expand(-1, HEADS).int())
    assert torch.equal(found[:, :, -2], own[:, None].expand(-1, HEADS).int() - 1)
    assert (found.diff(dim=2) > 0).all()
    assert len({tuple(row) for row in found[-1].tolist()}) > 1


@pytest.mark.usefixtures("way")
def test_a_query_chooses_beside_others_as_it_does_alone() -> None:
    queries, keys = given(torch.float32, 3, whole=False)
    how = {"size": SIZE, "count": 3, "local": 1}
    together = chosen_blocks(queries, keys, SPANS, **how)
    for row in (0, 1, 20, 39):
        seen = replace(SPANS[1], first_row=0, num_queries=1, context_length=81 + row)
        seen = replace(seen, runs=((10, -(-(81 + row) // BLOCK)),))
        alone = chosen_blocks(queries[1 + row : 2 + row], keys, [seen], **how)
        assert torch.equal(alone[0], together[1 + row])


@pytest.mark.usefixtures("way")
def test_negative_scores_are_told_apart() -> None:
    """All products are below 0: the block of the least one is not taken."""
    queries = -torch.ones(ROWS, HEADS, DIM)
    keys = torch.ones(BLOCKS, 1, BLOCK, DIM)
    keys[12] = 0.5  # of the second sequence's tokens 16 to 23, in its second block
    found = chosen_blocks(queries, keys, SPANS, size=SIZE, count=2, local=1)[40]
    assert found.tolist() == [[1, 7]] * HEADS


@pytest.mark.usefixtures("way")
def test_a_query_that_is_no_number_spoils_no_other() -> None:
    queries, keys = given(torch.float32, 2, whole=False)
    how = {"size": SIZE, "count": 3, "local": 1}
    expected = chosen_blocks(queries, keys, SPANS, **how)
    queries[20] = torch.nan
    found = chosen_blocks(queries, keys, SPANS, **how)
    others = torch.arange(ROWS) != 20
    assert torch.equal(found[others], expected[others])
