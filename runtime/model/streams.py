"""The shape of several residual streams (``runtime.model.hyper_connections``). No torch here."""

from dataclasses import dataclass

MOST_ROUNDS = 1000
"""Rounds that bring rows and columns to a sum of 1; beyond it no model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Several residual streams in the place of one sum."""

    count: int
    iterations: int
    """How often the rows and columns of a matrix that mixes streams are brought to a sum of 1."""
    eps: float
    learnt_end: bool = True
    """What logits are made of is a mixture by learnt weights (DeepSeek-V4); else the streams'
    mean."""

    def __post_init__(self) -> None:
        for name in ("count", "iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of streams is {getattr(self, name)}, not at least 1")

    def num_parameters(self, hidden: int, halves: int) -> int:
        """Weights of so many halves of layers, and of the mixture behind the last."""
        inputs, outputs = self.count * hidden, (2 + self.count) * self.count
        end = (self.count * (inputs + 1) + 1) * self.learnt_end
        return halves * (outputs * (inputs + 1) + 3) + end
