"""Norm, rotation and KV write in one pass, against the same done one after another."""

import pytest
import torch

import kernels.qkv
from kernels.qkv import norm_rope_write, norm_rope_write_reference
from kernels.quantised_kv import widened

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [1, 5, 60])
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kept_in_8_bits", [True, False])
def test_every_way_agrees_with_the_reference(
    dtype: torch.dtype,
    tokens: int,
    with_norm: bool,
    compiled: bool,
    kept_in_8_bits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels.qkv, "native_library", lambda _: None)
    heads, kv_heads, dim, block_size = 6, 2, 32, 16
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
    angles = torch.randn(tokens, dim // 2)
    arguments = {
        "norm_weight": torch.randn(heads + kv_heads, dim).to(dtype) if with_norm else None,
        "eps": 1e-6,
        "rotation": (angles.cos().to(dtype), angles.sin().to(dtype)),
        "slots": torch.randperm(5 * block_size)[:tokens],
    }
    pools = [
        [torch.full((5, kv_heads, block_size, dim), 7.0).to(dtype) for _ in range(2)]
        for _ in range(2)
    ]
    if kept_in_8_bits:
        pools = [[torch.full((5, kv_heads, block_size, dim + 4), 7).char()] * 2 for _ in pools]
        pools = [[part.clone() for part in pool] for pool in pools]

    queries = norm_rope_write(qkv.clone(), blocks=tuple(pools[0]), **arguments)
    expected = norm_rope_write_reference(qkv.clone(), blocks=tuple(pools[1]), **arguments)

    limit = TOLERANCE[dtype]
    assert torch.allclose(queries, expected, rtol=limit, atol=limit)
    for written, wanted in zip(pools[0], pools[1], strict=True):
        untouched = (wanted == 7).all(-1)
        assert torch.equal((written == 7).all(-1), untouched)
        written, wanted = (widened(part[~untouched], dtype) for part in (written, wanted))
        limit = TOLERANCE[dtype] + (0.02 if kept_in_8_bits else 0)
        assert torch.allclose(written, wanted, rtol=limit, atol=limit)
