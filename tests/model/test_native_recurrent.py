"""The small operations around the gated delta rule: compiled beside torch, each row for itself."""

from collections.abc import Callable, Iterator
from dataclasses import fields

import pytest
import torch
from torch import Tensor

import kernels.delta_shaping
import kernels.gated_norm
import kernels.ring_write
from kernels.delta_shaping import DeltaShape, delta_shaping, delta_shaping_reference
from kernels.gated_delta import DeltaInputs
from kernels.gated_norm import gated_norm, gated_norm_reference
from kernels.native_library import native_library, own_threads
from kernels.ring_write import RingPlaces, ring_write, ring_write_reference

SIZES = [(1, 1, 5, 7), (2, 4, 16, 24), (3, 6, 128, 128), (1, 2, 300, 520)]
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
TOKENS = (1, 3, 90)
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


@pytest.fixture(autouse=True)
def theirs_again() -> Iterator[None]:
    yield
    own_threads(None)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def shape_of(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> DeltaShape:
    key_heads, value_heads, key_dim, value_dim = sizes
    return DeltaShape(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        rates=torch.rand(value_heads, dtype=wide(dtype)) * 16,
        bias=torch.randn(value_heads, dtype=wide(dtype)),
    )


def said(shape: DeltaShape, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Convolved numbers and paces, those of some rows far from 0; the last row is all zeros."""
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    reach = torch.tensor([1.0, 1e-4, 40.0]).repeat(tokens)[:tokens, None]
    convolved = torch.randn(tokens, 2 * keys + values) * reach
    paces = torch.randn(tokens, 2 * shape.value_heads) * reach
    convolved[-1] = 0
    return convolved.to(dtype), paces.to(dtype)


def parts_of(inputs: DeltaInputs) -> dict[str, Tensor]:
    return {each.name: getattr(inputs, each.name) for each in fields(inputs)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_rule_is_given_what_the_reference_gives_it(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    shape = shape_of(sizes, dtype)
    for tokens in TOKENS:
        convolved, paces = said(shape, tokens, dtype)
        expected = parts_of(delta_shaping_reference(convolved, paces, shape))
        for name, found in parts_of(delta_shaping(convolved, paces, shape)).items():
            assert found.dtype == wide(dtype)
            torch.testing.assert_close(
                found, expected[name], rtol=4e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_heads_are_normed_and_weighed_as_by_the_reference(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    heads, size = sizes[1], sizes[3]
    weight = torch.randn(size, dtype=wide(dtype))
    for tokens in TOKENS:
        mixed = torch.randn(tokens, heads, size, dtype=wide(dtype)) * 3
        mixed[0] = 0
        apart = (torch.randn(tokens, 5 + heads * size) * 20).to(dtype)
        for gates in (apart[:, 5:], apart[:, 5:].contiguous()):
            found = gated_norm(mixed, gates, weight, 1e-6)
            expected = gated_norm_reference(mixed, gates, weight, 1e-6)
            assert found.dtype == dtype
            one = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 4e-6
            torch.testing.assert_close(found, expected, rtol=one, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_bit_of_a_row_depends_on_the_others_or_on_threads(
    dtype: torch.dtype, threads: int
) -> None:
    shape = shape_of((3, 6, 128, 128), dtype)
    convolved, paces = said(shape, 70, dtype)
    mixed, weight = torch.randn(70, 6, 128), torch.randn(128)
    gates = torch.randn(70, 6 * 128).to(dtype)
    own_threads(threads)
    together = parts_of(delta_shaping(convolved, paces, shape))
    together["normed"] = gated_norm(mixed, gates, weight, 1e-6)
    own_threads(1)
    for low, high in ((0, 1), (1, 9), (68, 70)):
        rows = slice(low, high)
        alone = parts_of(delta_shaping(convolved[rows], paces[rows], shape))
        alone["normed"] = gated_norm(mixed[rows], gates[rows], weight, 1e-6)
        for name, found in alone.items():
            assert torch.equal(found, together[name][rows]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_no_number_stays_none_in_its_own_row_alone(dtype: torch.dtype) -> None:
    shape = shape_of((2, 4, 16, 24), dtype)
    convolved, paces = said(shape, 6, dtype)
    convolved[2, 3], convolved[2, 40], convolved[2, 70], paces[4, 1], paces[4, 6] = [torch.nan] * 5
    found = delta_shaping(convolved, paces, shape)
    expected = delta_shaping_reference(convolved, paces, shape)
    for name, part in parts_of(found).items():
        assert torch.equal(part.isnan(), parts_of(expected)[name].isnan()), name
        assert part.isnan().any()
    mixed, gates = torch.randn(6, 4, 24), torch.randn(6, 96).to(dtype)
    mixed[1, 2, 3], gates[5, 0] = torch.nan, torch.nan
    normed = gated_norm(mixed, gates, torch.ones(24), 1e-6)
    assert torch.equal(
        normed.isnan(), gated_norm_reference(mixed, gates, torch.ones(24), 1e-6).isnan()
    )
    assert normed.isnan().sum() == 24 + 1


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
def test_the_compiled_ones_are_taken_where_they_are(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("torch does it")

    shape = shape_of((1, 2, 8, 8), dtype)
    pairs, places = drawn_rings(dtype)
    gates, calls = torch.zeros(4, 16, dtype=dtype), list[Callable[[], object]]()
    calls.append(lambda: delta_shaping(*said(shape, 4, dtype), shape))
    calls.append(lambda: gated_norm(torch.zeros(4, 2, 8), gates, torch.ones(8), 1e-6))
    calls.append(lambda: ring_write(0, places, *pairs))
    for name, call in zip(("delta_shaping", "gated_norm", "ring_write"), calls, strict=True):
        module = getattr(kernels, name)
        monkeypatch.setattr(module, f"{name}_reference", refuse)
        call()
        monkeypatch.setattr(module, "native_library", lambda _: None)
        with pytest.raises(AssertionError, match="torch does it"):
            call()
