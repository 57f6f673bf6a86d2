"""Products by expert with matrices of codes."""

import pytest
import torch

from kernels.codes import CodeKind, widen_codes
from kernels.grouped_codes import grouped_coded_matmul, grouped_coded_matmul_reference
from kernels.grouped_matmul import grouped_matmul_reference, sorted_by_expert
from tests.support.coded import KINDS, random_codes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("experts", [1, 3, 8])
def test_each_pick_is_multiplied_with_its_experts_numbers(kind: CodeKind, experts: int) -> None:
    codes = random_codes(kind, experts * 6, 32, 16, zeros=True, seed=experts)
    generator = torch.Generator().manual_seed(experts)
    x = torch.randn(10, 32, generator=generator)
    chosen = torch.randint(0, experts, (20,), generator=generator)
    order, starts = sorted_by_expert(chosen, experts)
    wide = widen_codes(codes, torch.float32).view(experts, 6, 32)
    expected = grouped_matmul_reference(x, wide, order // 2, starts)
    for product in (grouped_coded_matmul, grouped_coded_matmul_reference):
        assert torch.equal(product(x, codes, experts, order // 2, starts), expected)
