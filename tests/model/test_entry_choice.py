"""Which entries queries choose: those that sorting all scores gives, whatever is beside them."""

import pytest
import torch
from torch import Tensor

from kernels import entry_choice as module
from kernels.entry_choice import ChoosingRows, chosen_entries, chosen_entries_reference
from kernels.token_choice import IndexQueries

BLOCK, BLOCKS, DIM, HEADS = 8, 120, 12, 9
DRAW = torch.Generator().manual_seed(0)
SLOTS = torch.randperm(BLOCK * BLOCKS, generator=DRAW).to(torch.int32)
SPANS = (
    ChoosingRows(first_row=0, seen=torch.tensor([40]), slots=SLOTS[:40]),
    ChoosingRows(first_row=1, seen=torch.arange(130, 370) // 4, slots=SLOTS[40:132]),
    ChoosingRows(first_row=241, seen=torch.tensor([600, 601, 601]), slots=SLOTS[200:801]),
)
"""Each query sees 32 entries at least; the last sequence has more than a stretch."""
ROWS = 244


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module, "native_library", lambda _: None)
    return str(request.param)


def given(dtype: torch.dtype, *, whole: bool) -> tuple[IndexQueries, Tensor]:
    """``whole``: of whole numbers, so that sums are exact and many are equal. Keys are within
    longer rows."""
    draw = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=draw).double()
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    beside = torch.full((BLOCKS, 1, BLOCK, 5), torch.nan)
    rows = torch.cat((beside, numbers(BLOCKS, 1, BLOCK, DIM), beside), 3).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    asked = IndexQueries(
        queries=numbers(ROWS, HEADS, DIM).to(dtype), weights=numbers(ROWS, HEADS).to(wide)
    )
    return asked, rows[..., 5 : 5 + DIM]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [1, 17, 31])
def test_the_choice_is_that_of_sorting_earliest_first_among_equals(
    dtype: torch.dtype, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, keys = given(dtype, whole=True)
    expected = chosen_entries_reference(asked, keys, SPANS, top_k)
    assert torch.equal(chosen_entries(asked, keys, SPANS, top_k), expected)
    monkeypatch.setattr(module, "_NUMBERS", 20_000)
    assert torch.equal(chosen_entries(asked, keys, SPANS, top_k), expected)


def test_a_row_chooses_the_same_alone() -> None:
    """Where compiled kernels are: sums of torch may differ in their last bits."""
    asked, keys = given(torch.float32, whole=False)
    together = chosen_entries(asked, keys, SPANS, 17)
    span = SPANS[1]
    for at in (0, 1, 100, 239):
        row = slice(span.first_row + at, span.first_row + at + 1)
        seen = span.seen[at : at + 1]
        one = ChoosingRows(first_row=0, seen=seen, slots=span.slots[: int(seen)])
        own = IndexQueries(queries=asked.queries[row], weights=asked.weights[row])
        assert torch.equal(chosen_entries(own, keys, [one], 17), together[row])
