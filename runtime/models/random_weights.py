"""Weights of random models, drawn from a seed.

Each tensor has a generator of its own, keyed by the seed and the tensor's name, so the
order of loading does not matter.
"""

import zlib

import torch
from torch import Tensor


class RandomWeights:
    """A ``WeightSource`` of seeded normal weights.

    Matrices keep the variance of their input, norms are near one, and embeddings are large
    enough that next-token distributions are uneven.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._seed = seed
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See ``WeightSource.tensor``; every name exists."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.endswith(".bias"):
            values *= 0.1
        else:
            gain = 2.0 if "embed" in name or "lm_head" in name else 1.0
            values *= gain * shape[-1] ** -0.5
        return values.to(self._device, self._dtype)
