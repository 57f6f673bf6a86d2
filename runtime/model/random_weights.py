"""Weights of random models, drawn from a seed.

Each tensor has a generator of its own, keyed by the seed and the tensor's name, so the
order of loading does not matter. Values are uniform, of 16 random bits each, which is quick
to draw; nothing hangs on the shape of their distribution. A GPU draws its own, which are others
than a CPU's: billions of numbers need not cross to it.
"""

import math
import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from runtime.model.adapters import MapPlace

_NEAR_ONE = ("norm.weight", "norm.scale", "_scale")
"""How names of factors end."""


class RandomWeights:
    """A ``WeightSource`` of seeded weights.

    Matrices keep the variance of their input, norms are near one, and embeddings are large
    enough that next-token distributions are uneven. Heads of gated delta layers forget half of what
    they know within some tokens, or within some hundreds.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._seed = seed
        self._dtype = dtype
        self._device = device

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        wide: bool = False,
        part: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """See ``WeightSource.tensor``; every name exists. A part is cut from the whole, which is
        drawn first."""
        dtype = torch.promote_types(self._dtype, torch.float32) if wide else self._dtype
        key = [self._seed, zlib.crc32(name.encode())]
        most = math.sqrt(3) * _deviation(name, shape)
        if self._device.type == "cpu":
            values = _drawn_on_host(key, shape, most)
        else:
            values = drawn_on_device(key, shape, most, dtype, self._device)
        if name.endswith(_NEAR_ONE):
            values += 1
        if name.endswith("A_log"):
            values -= 3
        if name.endswith(".tid2eid"):  # experts of a token id: some of the first ones, no two alike
            values = values.argsort(1)
        if part is not None:
            values = part(values).clone()
        return values.to(self._device, dtype)

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        """See ``WeightSource.matrix``; in the model's dtype."""
        return self.tensor(name, shape)

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """See ``PlacesMaps``: each map is by itself, under the decoder's name."""
        return MapPlace(module=name, outputs=outputs, own=outputs, inputs=inputs)


def _drawn_on_host(key: list[int], shape: tuple[int, ...], most: float) -> Tensor:
    """Uniform float32 numbers between -``most`` and ``most``."""
    generator = np.random.Generator(np.random.SFC64(key))
    bits = generator.integers(-(1 << 15), 1 << 15, shape, dtype=np.int16)
    return torch.from_numpy(bits).float().mul_(most / 2**15)


def drawn_on_device(
    key: list[int], shape: tuple[int, ...], most: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Uniform numbers between -``most`` and ``most``, by the device's own generator."""
    seed = zlib.crc32(repr(key).encode())  # some generators take no more than 32 bits
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, dtype=dtype, device=device).uniform_(-most, most, generator=generator)


def _deviation(name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of a tensor's values."""
    if name.endswith((*_NEAR_ONE, ".bias", ".dt_bias")):
        return 0.1
    if name.endswith("A_log"):
        return 1.5
    if name.endswith(".skip"):
        return 1.0
    gain = 2.0 if "embed" in name or "lm_head" in name else 1.0
    return gain / math.sqrt(shape[-1])
