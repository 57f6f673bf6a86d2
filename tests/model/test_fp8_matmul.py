"""Products in fp8: near the exact ones, row by row, and what a GPU is asked for."""

import pytest
import torch
from torch import Tensor

from kernels import fp8_matmul
from kernels.fp8_matmul import Fp8Matrix, fp8_matmul_reference, multiplies_fp8
from kernels.quantised_kv import quantise_fp8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 48), (9, 40, 33), (0, 16, 16)])
def test_the_product_is_near_the_exact_one(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    product = Fp8Matrix(weight).multiply(x)
    assert (product.shape, product.dtype) == ((rows, outputs), dtype)
    exact = x.double() @ weight.double().T
    # Each factor is off by 2 ** -4 of itself at most, about 0.6 of that by the mean square.
    limit = 0.06 * (x.double().square() @ weight.double().square().T).sqrt() * 4
    assert ((product.double() - exact).abs() <= limit).all()
    assert rows == 0 or (product.double() - exact).norm() > 0


def test_scales_of_rows_and_outputs_keep_small_ones_apart_from_large_ones() -> None:
    x = torch.tensor([[1.0, 2.0], [1e-6, 3e-6], [1e6, 0.0], [0.0, 0.0]])
    weight = torch.tensor([[1.0, 1.0], [1e-5, 0.0], [0.0, 0.0]])
    product = Fp8Matrix(weight).multiply(x)
    assert torch.allclose(product, x @ weight.T, rtol=0.07, atol=0)


def test_a_row_that_is_not_finite_spoils_itself_alone() -> None:
    x = torch.randn(3, 16)
    x[1, 4] = torch.inf
    product = Fp8Matrix(torch.randn(16, 16)).multiply(x)
    assert product[1].isnan().all()
    assert product[[0, 2]].isfinite().all()


def test_where_8_bits_are_multiplied_the_call_is_the_reference_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The GPU's product is replaced by what its documentation says of it."""
    calls = []

    def scaled_mm(
        a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype
    ) -> Tensor:
        assert a.is_contiguous()
        assert b.t().is_contiguous()
        assert (scale_a.shape, scale_b.shape) == ((a.shape[0], 1), (1, b.shape[1]))
        calls.append(a.shape)
        return (a.float() @ b.float() * scale_a * scale_b).to(out_dtype)

    monkeypatch.setattr(fp8_matmul, "multiplies_fp8", lambda device: True)
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    x, weight = torch.randn(5, 32).bfloat16(), torch.randn(48, 32).bfloat16()
    expected = fp8_matmul_reference(x, *quantise_fp8(weight))
    assert torch.equal(Fp8Matrix(weight).multiply(x), expected)
    assert torch.equal(Fp8Matrix(weight[:40]).multiply(x), expected[:, :40])
    assert len(calls) == 1  # 40 outputs are not a multiple of 16


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_torchs_own_rules_for_a_gpus_product_are_kept(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without memory take the checks of a GPU: layout of both matrices, shapes and
    dtypes of scales, multiples of 16."""
    monkeypatch.setattr(fp8_matmul, "multiplies_fp8", lambda device: True)
    weight = torch.empty(48, 64, dtype=torch.bfloat16, device="meta")
    x = torch.empty(rows, 64, dtype=torch.bfloat16, device="meta")
    product = Fp8Matrix(weight).multiply(x)
    assert (product.shape, product.dtype) == ((rows, 48), torch.bfloat16)


def test_a_cpu_does_not_multiply_in_8_bits() -> None:
    assert not multiplies_fp8(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_that_multiplies_in_8_bits_agrees_with_the_reference() -> None:
    device = torch.device("cuda")
    if not multiplies_fp8(device):
        pytest.skip("the GPU is older than Hopper")
    x, weight = torch.randn(33, 256).bfloat16(), torch.randn(512, 256).bfloat16()
    expected = fp8_matmul_reference(x, *quantise_fp8(weight))
    found = Fp8Matrix(weight.to(device)).multiply(x.to(device)).cpu()
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-1)
