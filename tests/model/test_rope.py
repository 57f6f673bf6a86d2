"""The rotation of queries and keys: it turns pairs, and only relative positions matter."""

import torch

from kernels.rope import apply_rope, apply_rope_reference


def angles(positions: torch.Tensor, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 100.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turned = torch.outer(positions.double(), frequencies)
    return turned.cos(), turned.sin()


def test_pairs_half_a_head_apart_turn_as_complex_numbers() -> None:
    x = torch.randn(5, 2, 8, dtype=torch.float64)
    cos, sin = angles(torch.arange(5), 4)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.complex(cos, sin)[:, None]
    expected = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(apply_rope_reference(x, cos, sin), expected)
    assert torch.equal(apply_rope(x, cos, sin), apply_rope_reference(x, cos, sin))


def test_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64).unbind()

    def product(query_at: int, key_at: int) -> torch.Tensor:
        turned = [
            apply_rope(x, *angles(torch.tensor([at]), 8)) for x, at in ((q, query_at), (k, key_at))
        ]
        return (turned[0] * turned[1]).sum()

    assert torch.allclose(product(7, 3), product(107, 103))
    assert not torch.allclose(product(7, 3), product(7, 4))
