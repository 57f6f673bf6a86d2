"""Triton's norm, rotation and KV write against the reference."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.qkv import norm_rope_write_reference
from kernels.quantised_kv import FP8, SCALE_BYTES, fp8_parts, quantise_fp8, widened

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 32), (1, 1, 24), (4, 4, 64)])
def test_an_fp8_pool_gets_the_references_bytes_and_no_others(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> None:
    """The norm left out and angles of plain sums, so that the numbers before they are rounded
    are the same to the bit."""
    tokens, block_size, num_blocks = 12, 16, 3
    torch.manual_seed(1)
    spread = torch.logspace(-4, 3, tokens)[:, None, None]
    qkv = (torch.randn(tokens, heads + 2 * kv_heads, head_dim) * spread).to(dtype)
    qkv[3], qkv[4, -1, 0], qkv[5, heads, 1], qkv[6, :, 1:] = 0, -torch.inf, torch.nan, 1e-4
    ones = torch.ones(tokens, head_dim // 2, dtype=dtype).to(device)
    slots = torch.randperm(num_blocks * block_size)[:tokens]
    slots[2] = -1
    shape = num_blocks, kv_heads, block_size, head_dim + SCALE_BYTES
    blocks = tuple(
        torch.full(shape, 0x7F, dtype=torch.uint8).to(device).view(FP8) for _ in range(2)
    )
    kernels = triton_kernels("kv", qkv)
    assert kernels is not None
    kernels.norm_rope_write(
        qkv.to(device),
        norm_weight=None,
        eps=1e-6,
        rotation=(ones, ones),
        blocks=blocks,
        slots=slots.to(device),
    )
    keys, values = qkv[:, heads:].float().split(kv_heads, dim=1)
    low, high = keys.split(head_dim // 2, dim=2)
    rows = torch.cat((low - high, high + low), 2).to(dtype), values.to(dtype)
    written = slots >= 0
    for given, pool in zip(rows, blocks, strict=True):
        pool = pool.cpu()
        values, scales = quantise_fp8(given[written])
        whole = ~scales.isnan()
        assert (~whole).sum() == 1
        at = slots[written] // block_size, slice(None), slots[written] % block_size
        found, found_scales = (part[at] for part in fp8_parts(pool))
        assert torch.equal(found_scales.nan_to_num(7), scales.nan_to_num(7))
        assert torch.equal(found.view(torch.uint8)[whole], values.view(torch.uint8)[whole])
        untouched = torch.ones(num_blocks, block_size, dtype=torch.bool)
        untouched[at[0], at[2]] = False
        for part in fp8_parts(pool):
            left = part.transpose(1, 2)[untouched].contiguous().view(torch.uint8)
            assert (left == 0x7F).all()


@pytest.mark.parametrize("with_norm", [True, False])
def test_what_an_fp8_pool_gives_back_is_near(with_norm: bool, device: torch.device) -> None:
    tokens, heads, kv_heads, head_dim = 7, 4, 2, 32
    torch.manual_seed(2)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim)
    angles = torch.randn(tokens, head_dim // 2)
    weight = torch.randn(heads + kv_heads, head_dim) if with_norm else None
    shape = 1, kv_heads, 16, head_dim + SCALE_BYTES
    blocks, expected = (tuple(torch.zeros(shape).to(FP8) for _ in range(2)) for _ in range(2))
    blocks = tuple(part.to(device) for part in blocks)
    rest = {"eps": 1e-6, "slots": torch.arange(tokens)}
    norm_rope_write_reference(
        qkv, norm_weight=weight, rotation=(angles.cos(), angles.sin()), blocks=expected, **rest
    )
    kernels = triton_kernels("kv", qkv)
    assert kernels is not None
    kernels.norm_rope_write(
        qkv.to(device),
        norm_weight=None if weight is None else weight.to(device),
        rotation=(angles.cos().to(device), angles.sin().to(device)),
        blocks=blocks,
        eps=1e-6,
        slots=torch.arange(tokens).to(device),
    )
    for found, wanted in zip(blocks, expected, strict=True):
        near, exact = widened(found.cpu(), torch.float32), widened(wanted, torch.float32)
        assert exact.any()
        assert torch.allclose(near, exact, rtol=0.07, atol=0.02)
