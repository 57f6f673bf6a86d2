"""The shape of several residual streams (``runtime.model.hyper_connections``). No torch here."""

from dataclasses import dataclass

MOST_ROUNDS = 1000
"""Rounds that bring rows and columns to a sum of 1; beyond it no model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Several residual streams in the place of one sum."""

    count: int
    iterations: int | None
    """How often the rows and columns of a matrix that mixes streams are brought to a sum of 1;
    None: there is no such matrix, each stream is kept as it is (Hy4)."""
    eps: float
    largest: float = 2.0
    """A result is added to a stream by so much of a sigmoid."""
    behind_eps: float = 0.0
    """Added to these weights."""
    learnt_end: bool = True
    """What logits are made of is a mixture by learnt weights (DeepSeek-V4); else the streams'
    mean."""

    def __post_init__(self) -> None:
        for name in ("count", "iterations"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} of streams is {number}, not at least 1")
        if self.largest <= 0:
            raise ValueError(f"results are added to streams by {self.largest} of a sigmoid")

    @property
    def parts(self) -> list[int]:
        """Outputs of the map that makes the weights around a half: those before it, those behind
        it and, where streams are mixed, the matrix."""
        mixing = [] if self.iterations is None else [self.count * self.count]
        return [self.count, self.count, *mixing]

    def num_parameters(self, hidden: int, halves: int) -> int:
        """Weights of so many halves of layers, and of the mixture behind the last."""
        inputs, outputs = self.count * hidden, sum(self.parts)
        end = (self.count * (inputs + 1) + 1) * self.learnt_end
        return halves * (outputs * (inputs + 1) + len(self.parts)) + end
