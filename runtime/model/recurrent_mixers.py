"""The mixers of recurrent layers, by what they are described as.

Knows each kind's module and nothing of what they compute. Always true: a mixer leaves what the next
step needs of its layer in the rings of the step's sequences.
"""

from typing import Protocol

from torch import Tensor

from runtime.model.delta_mixer import DeltaMixer
from runtime.model.kimi_mixer import KimiMixer
from runtime.model.layers import MapLoader
from runtime.model.mamba_mixer import MambaMixer
from runtime.model.mixer import ConvMixer
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, Recurrent
from runtime.model.state_step import StateStep


class RecurrentMixer(Protocol):
    """[T, hidden] -> [T, hidden]."""

    def __call__(self, x: Tensor, states: StateStep, layer: int) -> Tensor:
        """``layer`` is counted among the recurrent ones."""
        ...

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        ...


def load_recurrent(
    spec: Recurrent, prefix: str, hidden: int, loader: MapLoader, *, eps: float
) -> RecurrentMixer:
    """The mixer of a layer, from the weights of ``prefix``.

    Raises:
        LoadError: see ``WeightSource.tensor``.
    """
    if isinstance(spec, GatedDelta):
        return DeltaMixer(spec, prefix, hidden, loader, eps=eps)
    if isinstance(spec, KimiDelta):
        return KimiMixer(spec, prefix, hidden, loader, eps=eps)
    if isinstance(spec, Mamba2):
        return MambaMixer(spec, prefix, hidden, loader, eps=eps)
    return ConvMixer(spec, prefix, hidden, loader)
