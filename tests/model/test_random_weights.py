"""Random weights: a function of seed and name, of sensible size."""

import torch

from runtime.models.random_weights import RandomWeights

CPU = torch.device("cpu")


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    first, again = (RandomWeights(3, torch.float64, CPU) for _ in range(2))
    again.tensor("b.weight", (5, 5))
    assert torch.equal(first.tensor("a.weight", (4, 6)), again.tensor("a.weight", (4, 6)))
    assert not torch.equal(first.tensor("a.weight", (4, 6)), first.tensor("b.weight", (4, 6)))
    other = RandomWeights(4, torch.float64, CPU)
    assert not torch.equal(first.tensor("a.weight", (4, 6)), other.tensor("a.weight", (4, 6)))


def test_matrices_keep_the_variance_of_their_input() -> None:
    weight = RandomWeights(0, torch.float64, CPU).tensor("x_proj.weight", (400, 300))
    output = weight @ torch.randn(300, 50, dtype=torch.float64)
    assert 0.9 < output.std() < 1.1


def test_the_same_numbers_in_every_dtype() -> None:
    wide = RandomWeights(1, torch.float64, CPU).tensor("x.weight", (8, 8))
    narrow = RandomWeights(1, torch.bfloat16, CPU).tensor("x.weight", (8, 8))
    assert torch.equal(wide.to(torch.bfloat16), narrow)
