"""Rows to their places in rings: compiled beside torch, and none where there is none."""

import pytest
import torch
from torch import Tensor

import kernels.ring_write
from kernels.native_library import native_library
from kernels.ring_write import RingPlaces, ring_write, ring_write_reference

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


def drawn_rings(dtype: torch.dtype) -> tuple[list[tuple[Tensor, Tensor]], RingPlaces]:
    """Five rings of three layers, rows of 40 tokens, and 17 places for some of them."""
    order = torch.randperm(5 * 8)[:17]
    places = order // 8, order % 8, torch.randint(0, 40, (17,))
    sizes = (2, 16), (4, 3), (5,)
    pairs = [
        (torch.randn(5, 3, 8, *size).to(dtype), torch.randn(40, *size).to(dtype)) for size in sizes
    ]
    return pairs, places


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_to_the_places_that_the_reference_puts_them_to(dtype: torch.dtype) -> None:
    for layer in range(3):
        pairs, places = drawn_rings(dtype)
        copies = [(rings.clone(), rows) for rings, rows in pairs]
        ring_write(layer, places, *pairs)
        ring_write_reference(layer, places, *copies)
        for (rings, _), (expected, _) in zip(pairs, copies, strict=True):
            assert torch.equal(rings, expected)


def test_rows_of_another_dtype_or_apart_are_written_as_well() -> None:
    rings, rows = torch.zeros(2, 1, 4, 6), torch.randn(3, 12)
    places = torch.tensor([1, 0]), torch.tensor([3, 2]), torch.tensor([2, 0])
    for given in (rows[:, ::2], rows[:, :6].bfloat16()):
        ring_write(0, places, (rings, given))
        assert torch.equal(rings[1, 0, 3], given[2].float())
        assert torch.equal(rings[0, 0, 2], given[0].float())
    ring_write(0, tuple(each[:0] for each in places), (rings, rows[:, :6]))  # type: ignore[arg-type]


@compiled_here
@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("number", [-1, 40])
def test_a_place_that_is_not_there_is_refused_and_nothing_written(wrong: int, number: int) -> None:
    pairs, places = drawn_rings(torch.float32)
    before = [rings.clone() for rings, _ in pairs]
    places[wrong][-1] = number
    with pytest.raises(IndexError, match="not within"):
        ring_write(1, places, *pairs)
    for (rings, _), same in zip(pairs, before, strict=True):
        assert torch.equal(rings, same)


@compiled_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_one_is_taken_where_it_is(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("torch does it")

    pairs, places = drawn_rings(dtype)
    monkeypatch.setattr(kernels.ring_write, "ring_write_reference", refuse)
    ring_write(0, places, *pairs)
    monkeypatch.setattr(kernels.ring_write, "native_library", lambda _: None)
    with pytest.raises(AssertionError, match="torch does it"):
        ring_write(0, places, *pairs)
