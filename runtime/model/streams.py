"""The shape of several residual streams (``runtime.model.hyper_connections``). No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Several residual streams in the place of one sum."""

    count: int
    iterations: int
    """How often the rows and columns of a matrix that mixes streams are brought to a sum of 1."""
    eps: float

    def __post_init__(self) -> None:
        for name in ("count", "iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of streams is {getattr(self, name)}, not at least 1")

    def num_parameters(self, hidden: int, halves: int) -> int:
        """Weights of so many halves of layers, and of the mixture behind the last."""
        inputs, outputs = self.count * hidden, (2 + self.count) * self.count
        return halves * (outputs * (inputs + 1) + 3) + self.count * (inputs + 1) + 1
