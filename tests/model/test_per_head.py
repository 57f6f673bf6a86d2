"""Linear maps of heads, beside the plainest way."""

import pytest
import torch

from kernels.per_head import HeadMaps, per_head_reference

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [1, 7])
def test_each_head_has_a_matrix_of_its_own(dtype: torch.dtype, tokens: int) -> None:
    x = torch.randn(tokens, 5, 12).to(dtype)
    weights = (torch.randn(5, 12, 9) / 4).to(dtype)
    maps = HeadMaps(weights.transpose(1, 2).contiguous().transpose(1, 2))
    found, limit = maps(x), TOLERANCE[dtype]
    assert found.dtype == dtype
    expected = per_head_reference(x.double(), weights.double())
    assert torch.allclose(found.double(), expected, rtol=limit, atol=limit)


def test_without_units_for_bfloat16_the_matrices_are_kept_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.per_head.dtype_of_products", lambda _: torch.float32)
    maps = HeadMaps(torch.randn(2, 4, 3).bfloat16())
    assert maps.num_bytes == 2 * 4 * 3 * 4
    assert maps(torch.randn(3, 2, 4).bfloat16()).dtype == torch.bfloat16
