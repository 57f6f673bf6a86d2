"""Triton's norm, rotation and KV write against the reference."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.qkv import norm_rope_write_reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(6, 2, 32), (1, 1, 24), (16, 4, 16), (8, 8, 64)]
)
def test_agrees_with_the_reference_and_touches_no_other_slot(
    dtype: torch.dtype,
    with_norm: bool,
    heads: int,
    kv_heads: int,
    head_dim: int,
    device: torch.device,
) -> None:
    tokens, block_size, num_blocks = 9, 16, 4
    torch.manual_seed(0)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    angles = torch.randn(tokens, head_dim // 2)
    rotation = angles.cos().to(dtype), angles.sin().to(dtype)
    weight = torch.randn(heads + kv_heads, head_dim).to(dtype) if with_norm else None
    slots = torch.randperm(num_blocks * block_size)[:tokens]
    shape = num_blocks, kv_heads, block_size, head_dim
    expected_blocks = tuple(torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    blocks = tuple(part.to(device, copy=True) for part in expected_blocks)
    kernels = triton_kernels("kv", qkv)
    assert kernels is not None

    queries = kernels.norm_rope_write(
        qkv.to(device),
        norm_weight=None if weight is None else weight.to(device),
        eps=1e-6,
        rotation=(rotation[0].to(device), rotation[1].to(device)),
        blocks=blocks,
        slots=slots.to(device),
    )

    expected = norm_rope_write_reference(
        qkv, norm_weight=weight, eps=1e-6, rotation=rotation, blocks=expected_blocks, slots=slots
    )
    limit = TOLERANCE[dtype]
    assert torch.allclose(queries.cpu(), expected, rtol=limit, atol=limit)
    for written, wanted in zip(blocks, expected_blocks, strict=True):
        assert torch.allclose(written.cpu(), wanted, rtol=limit, atol=limit, equal_nan=True)
        assert (~written.isnan()).all(-1).sum() == tokens * kv_heads


def test_values_are_stored_as_they_are_and_padding_is_not(device: torch.device) -> None:
    qkv = torch.randn(3, 4, 16, device=device)
    blocks = tuple(torch.full((2, 1, 4, 16), torch.nan, device=device) for _ in range(2))
    kernels = triton_kernels("kv", qkv)
    assert kernels is not None
    kernels.norm_rope_write(
        qkv,
        norm_weight=None,
        eps=1e-6,
        rotation=(torch.ones(3, 8, device=device), torch.zeros(3, 8, device=device)),
        blocks=blocks,
        slots=torch.tensor([6, -1, 0], device=device),
    )
    assert torch.equal(blocks[1][1, 0, 2], qkv[0, 3])
    assert torch.equal(blocks[0][0, 0, 0], qkv[2, 2])
    assert (~blocks[1].isnan()).all(-1).sum() == 2
