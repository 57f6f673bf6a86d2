"""What Kimi's delta rule is given: compiled beside torch, each row for itself."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

import kernels.kimi_shaping
from kernels.gated_delta import DeltaInputs
from kernels.kimi_shaping import KimiShape, kimi_shaping, kimi_shaping_reference
from kernels.native_library import native_library, own_threads

SIZES = [(1, 5), (4, 16), (3, 128), (2, 300)]
TOKENS = (1, 3, 90)
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def shape_of(sizes: tuple[int, int], dtype: torch.dtype) -> KimiShape:
    heads, head_dim = sizes
    return KimiShape(
        heads=heads,
        head_dim=head_dim,
        rates=torch.rand(heads, dtype=wide(dtype)) * 16,
        bias=torch.randn(heads * head_dim, dtype=wide(dtype)),
    )


def said(shape: KimiShape, tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """Convolved numbers, steps and betas, those of some rows far from 0; the last two are columns
    of wider rows, and the last row of the first is all zeros."""
    size = shape.heads * shape.head_dim
    reach = torch.tensor([1.0, 1e-4, 40.0]).repeat(tokens)[:tokens, None]
    convolved, steps, betas = (
        (torch.randn(tokens, width) * reach).to(dtype)
        for width in (3 * size, size + 3, shape.heads + 7)
    )
    convolved[-1] = 0
    return [convolved, steps[:, 3:], betas[:, 7:]]


def parts_of(inputs: DeltaInputs) -> dict[str, Tensor]:
    return {each.name: getattr(inputs, each.name) for each in fields(inputs)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_rule_is_given_what_the_reference_gives_it(
    sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    shape = shape_of(sizes, dtype)
    for tokens in TOKENS:
        given = said(shape, tokens, dtype)
        expected = parts_of(kimi_shaping_reference(*given, shape))
        for name, found in parts_of(kimi_shaping(*given, shape)).items():
            assert found.dtype == wide(dtype)
            torch.testing.assert_close({name: found}, {name: expected[name]}, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize("step", [-80.0, -20.0, -3.0, 0.0, 0.3, 3.0, 19.9, 20.1, 300.0])
def test_decays_have_their_digits_wherever_steps_are(step: float) -> None:
    """Of numbers near 0, too, against float64."""
    shape = KimiShape(heads=1, head_dim=40, rates=torch.ones(1), bias=torch.zeros(40))
    steps = torch.linspace(step - 0.1, step + 0.1, 40)[None]
    found = kimi_shaping(torch.zeros(1, 120), steps, torch.zeros(1, 1), shape)
    wanted = -torch.nn.functional.softplus(steps.double())
    assert torch.allclose(found.decays[0].double(), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_bit_of_a_row_depends_on_the_others_or_on_threads(
    dtype: torch.dtype, threads: int
) -> None:
    shape = shape_of((6, 128), dtype)
    given = said(shape, 70, dtype)
    own_threads(threads)
    together = parts_of(kimi_shaping(*given, shape))
    own_threads(1)
    for rows in (slice(0, 1), slice(1, 9), slice(68, 70)):
        alone = kimi_shaping(*(each[rows] for each in given), shape)
        for name, found in parts_of(alone).items():
            assert torch.equal(found, together[name][rows]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_no_number_stays_none_in_its_own_row_alone(dtype: torch.dtype) -> None:
    shape = shape_of((4, 16), dtype)
    convolved, steps, betas = said(shape, 6, dtype)
    convolved[2, 3], convolved[2, 70], convolved[2, 140] = [torch.nan] * 3
    steps[4, 1], betas[4, 2] = torch.nan, torch.nan
    found = kimi_shaping(convolved, steps, betas, shape)
    expected = kimi_shaping_reference(convolved, steps, betas, shape)
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

    shape = shape_of((2, 8), dtype)
    given = said(shape, 4, dtype)
    monkeypatch.setattr(kernels.kimi_shaping, "kimi_shaping_reference", refuse)
    kimi_shaping(*given, shape)
    monkeypatch.setattr(kernels.kimi_shaping, "native_library", lambda _: None)
    with pytest.raises(AssertionError, match="torch does it"):
        kimi_shaping(*given, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decays_that_are_bound_are_between_the_bound_and_one(dtype: torch.dtype) -> None:
    """And all else is as without a bound; rows are a token's own."""
    shape = shape_of((4, 16), dtype)
    given = said(shape, 90, dtype)
    bound = kimi_shaping(*given, replace(shape, lowest=-5.0))
    free = kimi_shaping_reference(*given, shape)
    for name, part in parts_of(bound).items():
        if name != "decays":
            assert torch.equal(part, parts_of(free)[name]), name
    assert bound.decays.min() >= -5
    assert bound.decays.max() <= 0
    by_hand = (given[1].to(shape.bias.dtype) + shape.bias).view(-1, 4, 16)
    by_hand = -5 / (1 + (-shape.rates[:, None] * by_hand).exp())
    assert torch.allclose(bound.decays, by_hand, rtol=1e-5, atol=1e-6)
    alone = kimi_shaping(*(each[7:8] for each in given), replace(shape, lowest=-5.0))
    assert torch.equal(alone.decays, bound.decays[7:8])
