"""Entries of windows beside the sum as it is written down, and beside each other."""

import pytest
import torch

from kernels.window_entries import window_entries, window_entries_reference

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def given(
    dtype: torch.dtype, windows: int, tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(tokens)
    values, gates = torch.randn(2, windows, tokens, 21, generator=draw).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return values, 3 * gates, torch.randn(tokens, 21, generator=draw).to(wide)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [1, 8, 128])
def test_each_number_is_a_mixture_of_the_windows(dtype: torch.dtype, tokens: int) -> None:
    arguments, limit = given(dtype, 5, tokens), TOLERANCE[dtype]
    found, expected = window_entries(*arguments), window_entries_reference(*arguments)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)


def test_a_token_without_weight_gives_nothing() -> None:
    values, gates, bias = given(torch.float64, 3, 8)
    gates[:, :4] = -torch.inf
    rest = window_entries_reference(values[:, 4:], gates[:, 4:], bias[4:])
    assert torch.allclose(window_entries(values, gates, bias), rest, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_an_entry_has_the_same_bits_whatever_windows_are_beside_it(dtype: torch.dtype) -> None:
    values, gates, bias = given(dtype, 40, 128)
    together = window_entries(values, gates, bias)
    alone = [
        window_entries(values[at : at + 1], gates[at : at + 1], bias) for at in range(len(values))
    ]
    assert torch.equal(together, torch.cat(alone))
