"""What the gated delta rule is given: compiled beside torch, each row for itself."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

import kernels.delta_shaping
from kernels.delta_shaping import DeltaShape, delta_shaping, delta_shaping_reference
from kernels.gated_delta import DeltaInputs
from kernels.native_library import native_library, own_threads

SIZES = [(1, 1, 5, 7), (2, 4, 16, 24), (3, 6, 128, 128), (1, 2, 300, 520)]
TOKENS = (1, 3, 90)
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


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
            torch.testing.assert_close({name: found}, {name: expected[name]}, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_bit_of_a_row_depends_on_the_others_or_on_threads(
    dtype: torch.dtype, threads: int
) -> None:
    shape = shape_of((3, 6, 128, 128), dtype)
    convolved, paces = said(shape, 70, dtype)
    own_threads(threads)
    together = parts_of(delta_shaping(convolved, paces, shape))
    own_threads(1)
    for rows in (slice(0, 1), slice(1, 9), slice(68, 70)):
        for name, found in parts_of(delta_shaping(convolved[rows], paces[rows], shape)).items():
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


@compiled_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_one_is_taken_where_it_is(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("torch does it")

    shape = shape_of((1, 2, 8, 8), dtype)
    given = said(shape, 4, dtype)
    monkeypatch.setattr(kernels.delta_shaping, "delta_shaping_reference", refuse)
    delta_shaping(*given, shape)
    monkeypatch.setattr(kernels.delta_shaping, "native_library", lambda _: None)
    with pytest.raises(AssertionError, match="torch does it"):
        delta_shaping(*given, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_betas_may_be_up_to_two_and_all_else_is_the_same(dtype: torch.dtype) -> None:
    shape = shape_of((2, 4, 16, 24), dtype)
    given = said(shape, 90, dtype)
    once, twice = (delta_shaping(*given, replace(shape, most_beta=most)) for most in (1.0, 2.0))
    for name, part in parts_of(twice).items():
        assert torch.equal(part, parts_of(once)[name] * (2 if name == "betas" else 1)), name
    reference = delta_shaping_reference(*given, replace(shape, most_beta=2.0))
    assert torch.allclose(twice.betas, reference.betas, rtol=1e-5, atol=1e-6)
    assert twice.betas.max() > 1
