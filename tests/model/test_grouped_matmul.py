"""Rows sorted by expert, and each multiplied with its own expert's matrix."""

import pytest
import torch

from kernels.grouped_matmul import (
    grouped_matmul,
    grouped_matmul_reference,
    multiplies_grouped,
    sorted_by_expert,
)


@pytest.mark.parametrize("experts", [1, 4, 9])
def test_picks_are_sorted_and_multiplied_one_by_one(experts: int) -> None:
    torch.manual_seed(experts)
    x, matrices = torch.randn(12, 6).double(), torch.randn(experts, 5, 6).double()
    chosen = torch.randint(0, experts, (24,))
    order, starts = sorted_by_expert(chosen, experts)
    assert sorted(order.tolist()) == list(range(24))
    product = grouped_matmul_reference(x, matrices, order // 2, starts)
    for place, pick in enumerate(order.tolist()):
        assert torch.allclose(product[place], matrices[chosen[pick]] @ x[pick // 2])
    assert torch.equal(grouped_matmul(x, matrices, order // 2, starts), product)


def test_an_expert_that_nobody_takes_has_no_rows_and_order_is_kept() -> None:
    order, starts = sorted_by_expert(torch.tensor([3, 1, 3, 0, 1]), 5)
    assert starts.tolist() == [0, 1, 3, 3, 5, 5]
    assert order.tolist() == [3, 1, 4, 0, 2]


def test_a_cpu_without_triton_does_without() -> None:
    assert not multiplies_grouped(torch.zeros(1))
