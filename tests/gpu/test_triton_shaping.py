"""Triton's shaping of what the gated delta rule, also Kimi's, and Mamba-2 are given against
torch's."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from kernels.delta_shaping import DeltaShape, delta_shaping, delta_shaping_reference
from kernels.kimi_shaping import KimiShape, kimi_shaping, kimi_shaping_reference
from kernels.mamba_shaping import MambaShape, mamba_shaping, mamba_shaping_reference

DTYPES = [torch.bfloat16, torch.float32]
REACH = torch.tensor([1.0, 1e-4, 40.0, 0.0, 1.0])[:, None]
"""How far the numbers of five tokens are from 0."""


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def normal(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def agree(found: Tensor | None, wanted: Tensor | None) -> None:
    if wanted is None:
        assert found is None
        return
    assert found is not None
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-7, equal_nan=True)


def on(shape: MambaShape | DeltaShape | KimiShape, device: torch.device) -> dict[str, Tensor]:
    return {
        each.name: getattr(shape, each.name).to(device)
        for each in fields(shape)
        if isinstance(getattr(shape, each.name), Tensor)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1, 5, 7), (2, 4, 16, 40)])
def test_the_rule_is_given_what_the_reference_gives_it(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    key_heads, heads, key_dim, value_dim = sizes
    shape = DeltaShape(
        key_heads=key_heads,
        value_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        rates=normal(0, heads).abs() * 16,
        bias=normal(1, heads),
    )
    convolved = (normal(2, 5, 2 * key_heads * key_dim + heads * value_dim) * REACH).to(dtype)
    paces = (normal(3, 5, 2 * heads) * REACH).to(dtype)
    convolved[4, 1] = paces[4, -1] = torch.nan
    wanted = delta_shaping_reference(convolved, paces, shape)
    there = replace(shape, **on(shape, device))
    found = delta_shaping(convolved.to(device), paces.to(device), there)
    for each in fields(wanted):
        agree(getattr(found, each.name), getattr(wanted, each.name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 5), (4, 24)])
def test_kimis_rule_is_given_what_the_reference_gives_it(
    heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    """What tokens say of betas are columns of a wider projection."""
    size = heads * head_dim
    shape = KimiShape(
        heads=heads,
        head_dim=head_dim,
        rates=normal(0, heads).abs() * 16,
        bias=normal(1, size),
    )
    convolved, steps, said = (
        (normal(seed, 5, width) * REACH).to(dtype)
        for seed, width in ((2, 3 * size), (3, size), (4, 6 + heads))
    )
    convolved[4, 1] = steps[4, -1] = said[4, -1] = torch.nan
    wanted = kimi_shaping_reference(convolved, steps, said[:, 6:], shape)
    there = replace(shape, **on(shape, device))
    given = convolved.to(device), steps.to(device), said.to(device)[:, 6:]
    found = kimi_shaping(*given, there)
    for each in fields(wanted):
        agree(getattr(found, each.name), getattr(wanted, each.name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most_step", [3.0, torch.inf])
@pytest.mark.parametrize("sizes", [(1, 1, 5, 7), (6, 2, 24, 16)])
def test_mamba_is_given_what_the_reference_gives_it(
    sizes: tuple[int, int, int, int], most_step: float, dtype: torch.dtype, device: torch.device
) -> None:
    """Its steps are columns of a wider projection."""
    heads, groups, head_dim, state_dim = sizes
    shape = MambaShape(
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        state_dim=state_dim,
        pace=-normal(0, heads).abs() * 16,
        step_bias=normal(1, heads),
        least_step=0.2,
        most_step=most_step,
    )
    convolved = (normal(2, 5, heads * head_dim + 2 * groups * state_dim) * REACH).to(dtype)
    steps = (normal(3, 5, 9 + heads) * REACH).to(dtype)
    convolved[4, 1] = steps[4, -1] = torch.nan
    wanted, values = mamba_shaping_reference(convolved, steps[:, 9:], shape)
    there = replace(shape, **on(shape, device))
    found, own_values = mamba_shaping(convolved.to(device), steps.to(device)[:, 9:], there)
    agree(own_values, values)
    for each in fields(wanted):
        agree(getattr(found, each.name), getattr(wanted, each.name))
