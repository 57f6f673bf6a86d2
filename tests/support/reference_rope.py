"""Rotary positions of the reference engine, by complex numbers and in float64."""

import math

import torch
from torch import Tensor

from runtime.model.rope_config import RopeConfig


def rotate(x: Tensor, rope: RopeConfig) -> Tensor:
    """[tokens, heads, head_dim] of the first positions, rotated."""
    rotated = x.shape[-1] if rope.kind == "proportional" else rope.rotated or x.shape[-1]
    x, rest = x[..., :rotated], x[..., rotated:]
    half = rotated // 2
    scale = rope.attention_factor if rope.kind in ("yarn", "longrope") else 1.0
    frequencies = [_frequency(rope, pair, 2 * half) for pair in range(half)]
    angles = torch.outer(
        torch.arange(len(x), dtype=torch.float64), torch.tensor(frequencies, dtype=torch.float64)
    )[:, None, :]
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.full_like(angles, scale), angles
    )
    return torch.cat((turned.real, turned.imag, rest), -1)


def _frequency(rope: RopeConfig, pair: int, head_dim: int) -> float:
    """Radians per position of one pair of dimensions."""
    plain = rope.theta ** (-2 * pair / head_dim)
    stretched = plain / rope.factor
    if rope.kind == "default":
        return plain
    if rope.kind == "proportional":
        return stretched if 2 * pair < rope.rotated else 0.0
    if rope.kind == "linear":
        return stretched
    if rope.kind == "longrope":
        return plain / rope.factors[pair]
    turns = rope.original_max_position * plain / (2 * math.pi)
    if rope.kind == "llama3":
        low, high = rope.low_freq_factor, rope.high_freq_factor
        keep = min(max((turns - low) / (high - low), 0), 1)
        return keep * plain + (1 - keep) * stretched

    def pair_turning(times: float) -> float:
        context = rope.original_max_position
        return head_dim / 2 * math.log(context / (2 * math.pi * times)) / math.log(rope.theta)

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    share = min(max((pair - low) / max(high - low, 1e-3), 0), 1)
    return share * stretched + (1 - share) * plain


def grow(queries: Tensor, rope: RopeConfig) -> None:
    """Multiply each token's queries by what its position has them grow by, in place."""
    for at in range(len(queries) if rope.query_beta else 0):
        times = at // rope.original_max_position
        queries[at] *= 1 + rope.query_beta * math.log(1 + times)
