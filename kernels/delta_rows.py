"""Which tokens of a step belong to which sequence, for the gated delta rule and for Mamba-2.

Sequences of few tokens are computed token by token, longer ones chunk by chunk. Which are which,
and where their chunks are, is worked out once a step, for all of its layers. Arrays are int64.
"""

from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.upload import upload

CHUNK: Final = 64
MOST_TOKENS: Final = 33
"""Of a sequence that is computed token by token: a token and the longest draft. More are for
products of matrices."""

IntArray = npt.NDArray[np.int64]
Array = TypeVar("Array")


class DeltaPlaces(NamedTuple, Generic[Array]):
    """S sequences and the C chunks of those among them that are computed by chunks, each sequence's
    behind each other; arrays of the host, or tensors of the device."""

    slots: Array
    """[S]"""
    starts: Array
    """[S] the first row of each."""
    ends: Array
    """[S] behind the last row of those that are computed token by token; of others ``starts``."""
    rings: Array
    """[S]"""
    committed: Array
    """[S] where the matrix of each stands."""
    counts: Array
    """[S] by how many tokens of its ring it is due to be taken on."""
    begins: Array
    """[S + 1] where the chunks of each begin."""
    firsts: Array
    """[C] the row that a token at a chunk's beginning would have, below 0 where the step begins
    inside."""
    lows: Array
    """[C] the first token of a chunk that is of the step."""
    highs: Array
    """[C] behind the last one."""
    handed_in: Array
    """[S] the chunk within which a matrix is handed out, -1 for none."""
    handed_at: Array
    """[S] behind so many of that chunk's tokens."""
    handed_to: Array
    """[S] at which place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpans:
    """Spans of some sequences: where each one's matrices are, at which position, and by how many
    tokens they are to be taken on; all int64 [N]."""

    slots: IntArray
    rings: IntArray
    committed: IntArray
    counts: IntArray
    there: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    """The four on the device, where they are there already; of a recorded step, whose arrays here
    only say how many there are."""

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four on ``device``."""
        if self.there is not None:
            return self.there
        return (
            upload(self.slots, device),
            upload(self.rings, device),
            upload(self.committed, device),
            upload(self.counts, device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRows:
    """Which tokens of a step belong together: S sequences, T tokens."""

    slots: IntArray
    """[S]: where in the matrices each one's is."""
    starts: IntArray
    """[S + 1] where each one's tokens begin."""
    positions: IntArray
    """[S] of the first token of each in its transcript."""
    handed: tuple[tuple[int, int], ...] = ()
    """Sequences and, behind so many of their tokens, places at which their matrices are handed
    out; one for a sequence at most, in their order."""
    there: DeltaPlaces[Tensor] | None = None
    """Where all of it is on the device already, for Triton."""
    recorded: bool = False
    """The arrays here only say how many there are, and there may be rows of nobody."""

    def tokens(self, sequence: int) -> slice:
        """Rows of a sequence, one for each token."""
        return slice(int(self.starts[sequence]), int(self.starts[sequence + 1]))

    def by_chunks(self) -> npt.NDArray[np.bool_]:
        """[S] whether each is computed chunk by chunk."""
        chosen: npt.NDArray[np.bool_] = self.starts[1:] - self.starts[:-1] > MOST_TOKENS
        for sequence, _ in self.handed:
            chosen[sequence] = True
        return chosen

    def places(self, spans: DeltaSpans | None) -> DeltaPlaces[IntArray]:
        """Where all of it is, with what is due of each sequence's matrix; None: nothing."""
        starts, positions, chosen = self.starts[:-1], self.positions, self.by_chunks()
        counts = np.where(chosen, self.starts[1:] - starts, 0)
        of_first = positions // CHUNK
        many = np.where(counts > 0, -(-(positions + counts) // CHUNK) - of_first, 0)
        begins = np.concatenate(([0], np.cumsum(many)))
        owner = np.repeat(np.arange(len(counts)), many)
        begin = (of_first[owner] + np.arange(len(owner)) - begins[owner]) * CHUNK
        handed_in = np.full(len(counts), -1, dtype=np.int64)
        handed_at, handed_to = np.zeros_like(handed_in), np.zeros_like(handed_in)
        for number, (sequence, place) in enumerate(self.handed):
            last = int(positions[sequence]) + place - 1
            handed_in[sequence] = begins[sequence] + last // CHUNK - int(of_first[sequence])
            handed_at[sequence] = last % CHUNK + 1
            handed_to[sequence] = number
        nothing = np.zeros_like(handed_in)
        return DeltaPlaces(
            slots=self.slots,
            starts=starts,
            ends=np.where(chosen, starts, self.starts[1:]),
            rings=nothing if spans is None else spans.rings,
            committed=nothing if spans is None else spans.committed,
            counts=nothing if spans is None else spans.counts,
            begins=begins,
            firsts=starts[owner] + begin - positions[owner],
            lows=np.maximum(positions[owner] - begin, 0),
            highs=np.minimum((positions + counts)[owner] - begin, CHUNK),
            handed_in=handed_in,
            handed_at=handed_at,
            handed_to=handed_to,
        )
