"""Linear maps: every form multiplies as the plain one does."""

import pytest
import torch
from torch.nn import functional

from runtime.models.layers import WeightBits, fused_linear, make_linear
from runtime.models.random_weights import RandomWeights

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 3, 100])
def test_every_form_agrees_with_the_plain_product(
    dtype: torch.dtype, limit: float, with_bias: bool, tokens: int
) -> None:
    weight, x = (torch.randn(70, 64) / 8).to(dtype), torch.randn(tokens, 64).to(dtype)
    bias = torch.randn(70).to(dtype) if with_bias else None
    expected = functional.linear(x, weight, bias)
    linear = make_linear(weight.clone(), bias, 16)
    assert torch.allclose(linear(x), expected, rtol=limit, atol=limit)
    assert (
        linear.num_bytes
        == (-(-70 // 16) * 16 if dtype == torch.bfloat16 else 70) * 64 * dtype.itemsize
    )


@pytest.mark.parametrize("bits", [8, 4, "fp8"])
def test_fewer_bits_take_less_memory_and_keep_the_bias(bits: WeightBits) -> None:
    weight, bias, x = torch.randn(64, 64), torch.randn(64) * 100, torch.randn(3, 64)
    linear = make_linear(weight.clone(), bias, bits)
    assert linear.num_bytes < weight.numel() * 2
    expected = functional.linear(x, weight, bias)
    assert (linear(x) - expected).norm() < 0.15 * (expected - bias).norm()


def test_fused_maps_lie_side_by_side() -> None:
    source = RandomWeights(0, torch.float64, CPU)
    fused = fused_linear(source, ["a", "b"], [3, 5], 4, bias=True, bits=16)
    x = torch.randn(2, 4, dtype=torch.float64)
    for name, size, columns in (("a", 3, slice(0, 3)), ("b", 5, slice(3, 8))):
        weight, bias = (
            source.tensor(f"{name}.weight", (size, 4)),
            source.tensor(f"{name}.bias", (size,)),
        )
        assert torch.allclose(fused(x)[:, columns], x @ weight.T + bias)
