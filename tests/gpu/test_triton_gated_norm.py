"""Triton's norms with a gate against torch's."""

import pytest
import torch

from kernels.gated_norm import (
    gated_norm,
    gated_norm_reference,
    skipped_group_norm,
    skipped_group_norm_reference,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def normal(seed: int, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "size"), [(1, 7), (4, 40)])
@pytest.mark.parametrize("by_sigmoid", [True, False])
def test_heads_are_normed_and_then_gated(
    by_sigmoid: bool, heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Gates are columns of a wider projection."""
    mixed, weight = normal(0, 3, heads, size), normal(1, size)
    gates = normal(2, 3, 5 + heads * size).to(dtype)
    wanted = gated_norm_reference(mixed, gates[:, 5:], weight, 1e-6, by_sigmoid=by_sigmoid)
    there = mixed.to(device), gates.to(device)[:, 5:], weight.to(device)
    found = gated_norm(*there, 1e-6, by_sigmoid=by_sigmoid)
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(found.cpu(), wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "head_dim", "groups"), [(1, 7, 1), (6, 10, 2), (4, 300, 4)])
def test_groups_are_gated_and_then_normed(
    heads: int, head_dim: int, groups: int, dtype: torch.dtype, device: torch.device
) -> None:
    size = heads * head_dim
    mixed, values = normal(0, 3, heads, head_dim), normal(1, 3, heads, head_dim)
    skip, weight = normal(2, heads), normal(3, size)
    gates = normal(4, 3, size + 5).to(dtype)
    wanted = skipped_group_norm_reference(
        mixed, values, skip, gates[:, :size], weight, groups=groups, eps=1e-5
    )
    there = [each.to(device) for each in (mixed, values, skip)]
    own_gates, own_weight = gates.to(device)[:, :size], weight.to(device)
    found = skipped_group_norm(*there, own_gates, own_weight, groups=groups, eps=1e-5)
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(found.cpu(), wanted, rtol=limit, atol=limit)
