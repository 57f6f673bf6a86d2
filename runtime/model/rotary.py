"""Angles of the rotary position embedding, with each family's way of stretching the context.

Angles are computed in float32 as ``transformers`` does, because models were trained so; in
float64 for float64 models. The rotation itself is ``kernels.rope``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.model.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int, dtype: torch.dtype) -> Tensor:
    """[head_dim / 2] radians per position, in float32 or float64; of ``head_dim`` dimensions that
    are all rotated, or (proportional) of a whole head, 0 where it is not."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(dtype) / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "proportional":
        turned = torch.arange(head_dim // 2) < (rope.rotated or head_dim) // 2
        return torch.where(turned, plain / rope.factor, 0)
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.factors, dtype=dtype) * rope.theta**exponents)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    return _yarn(rope, plain, head_dim)


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, a linear ramp in between."""
    wavelengths = 2 * math.pi / plain
    turns = rope.original_max_position / wavelengths
    ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - ramp) * plain / rope.factor + ramp * plain
    long = wavelengths > rope.original_max_position / rope.low_freq_factor
    short = wavelengths < rope.original_max_position / rope.high_freq_factor
    return torch.where(long, plain / rope.factor, torch.where(short, plain, blended))


def _yarn(rope: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """YaRN, section 3.2 of arXiv:2309.00071: the ramp is over dimensions."""

    def dimension_with(rotations: float) -> float:
        angle = rope.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(angle) / (2 * math.log(rope.theta))

    low, high = dimension_with(rope.beta_fast), dimension_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(head_dim // 2, dtype=plain.dtype) - low) / (high - low)
    stretched = ramp.clamp(0, 1)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which angles of a model in ``dtype`` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Rotation(NamedTuple):
    """The rotation of queries and keys by a step's positions."""

    cos: Tensor
    """[tokens, head_dim / 2]"""
    sin: Tensor
    """Sines of the angles, as ``cos`` has the cosines."""
    query_scale: Tensor | None
    """[tokens]: queries are multiplied by it; None: they are not."""


class RotaryTable:
    """Cosines and sines of positions, made when first asked for and kept. Dimensions that are not
    rotated have an angle of 0, whatever the position; without a ``rope`` all have."""

    def __init__(
        self, rope: RopeConfig | None, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._rope = rope
        self._wide = angle_dtype(dtype)
        self._dtype = dtype
        self._device = device
        self._pairs = head_dim // 2
        self._table = torch.empty(2, 0, self._pairs, dtype=dtype, device=device)

    @property
    def is_plain(self) -> bool:
        """Whether it rotates and does nothing else."""
        return self._rope is None or not self._rope.query_beta

    def at(self, positions: Tensor, highest: int) -> Rotation:
        """The rotation of ``positions`` [tokens] int64, none of which is above ``highest``."""
        if highest >= self._table.shape[1]:
            self._grow(highest + 1)
        cos, sin = self._table.index_select(1, positions)
        return Rotation(cos, sin, self._query_scale(positions))

    def _query_scale(self, positions: Tensor) -> Tensor | None:
        rope = self._rope
        if rope is None or not rope.query_beta:
            return None
        times = positions // rope.original_max_position
        scale = 1 + rope.query_beta * torch.log1p(times.to(self._wide))
        return scale.to(self._dtype)

    def _grow(self, num_positions: int) -> None:
        size = 1024
        while size < num_positions:
            size *= 2
        table = torch.zeros(2, size, self._pairs, dtype=self._wide)
        table[0] = 1
        rope = self._rope
        if rope is not None:
            rotated = 2 * self._pairs
            if rope.rotated is not None and rope.kind != "proportional":
                rotated = rope.rotated
            frequencies = inverse_frequencies(rope, rotated, self._wide)
            angles = torch.outer(torch.arange(size, dtype=self._wide), frequencies)
            turned = torch.stack((angles.cos(), angles.sin())) * rope.attention_factor
            table[:, :, : rotated // 2] = turned
        self._table = table.to(self._device, self._dtype)
