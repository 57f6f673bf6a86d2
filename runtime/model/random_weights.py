"""Weights of random models, drawn from a seed.

Each tensor has a generator of its own, keyed by the seed and the tensor's name, so the
order of loading does not matter. Values are uniform, of 16 random bits each, which is quick
to draw; nothing hangs on the shape of their distribution.
"""

import math
import zlib

import numpy as np
import torch
from torch import Tensor


class RandomWeights:
    """A ``WeightSource`` of seeded weights.

    Matrices keep the variance of their input, norms are near one, and embeddings are large
    enough that next-token distributions are uneven.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._seed = seed
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See ``WeightSource.tensor``; every name exists."""
        key = [self._seed, zlib.crc32(name.encode())]
        generator = np.random.Generator(np.random.SFC64(key))
        bits = generator.integers(-(1 << 15), 1 << 15, shape, dtype=np.int16)
        values = torch.from_numpy(bits).float().mul_(math.sqrt(3) * _deviation(name, shape) / 2**15)
        if name.endswith("norm.weight"):
            values += 1
        return values.to(self._device, self._dtype)


def _deviation(name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of a tensor's values."""
    if name.endswith(("norm.weight", ".bias")):
        return 0.1
    gain = 2.0 if "embed" in name or "lm_head" in name else 1.0
    return gain / math.sqrt(shape[-1])
