"""Inputs for a step of delta layers, and what agrees with what."""

import torch

from kernels.gated_delta import DeltaInputs, DeltaRings

LIMIT = 1e-5
RING, LAYERS, SLOTS = 8, 2, 5
SHAPES = [(1, 1, 5, 7), (2, 4, 16, 40)]
"""Heads of keys, of values, numbers of a key, of a value."""
WAYS = {"as they are": (False, False), "corrected": (True, False), "by channel": (True, True)}
"""Whether values are corrected, and whether decays are by channel."""


def drawn(
    shape: tuple[int, int, int, int],
    tokens: int,
    *,
    corrects: bool,
    device: torch.device,
    by_channel: bool = False,
) -> tuple[DeltaInputs, torch.Tensor, DeltaRings]:
    key_heads, heads, key_dim, value_dim = shape
    generator = torch.Generator().manual_seed(tokens)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device)

    decays = (heads, key_dim) if by_channel else (heads,)
    inputs = DeltaInputs(
        queries=normal(tokens, key_heads, key_dim) / key_dim,
        keys=torch.nn.functional.normalize(normal(tokens, key_heads, key_dim), dim=-1),
        values=normal(tokens, heads, value_dim),
        decays=-normal(tokens, *decays).abs(),
        betas=normal(tokens, heads).sigmoid() if corrects else None,
    )
    rings = DeltaRings(
        keys=normal(3, LAYERS, RING, key_heads, key_dim),
        corrected=normal(3, LAYERS, RING, heads, value_dim),
        decays=-normal(3, LAYERS, RING, *decays).abs(),
    )
    return inputs, normal(SLOTS, LAYERS, heads, key_dim, value_dim), rings


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=LIMIT, atol=LIMIT)
