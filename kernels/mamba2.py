"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a state space whose decay is one number a head.

    S_t = exp(d_t a) S_{t-1} + b_t (d_t x_t)^T,    y_t = S_t^T c_t

With b for keys, d x for values and c for queries this is the rule of ``kernels.gated_delta``
without its correction: values are taken up as they are. So chunks, factors to go back by, compiled
kernels and what holds of their bits are those of that module.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.delta_rows import DeltaRows
from kernels.gated_delta import DeltaInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Inputs:
    """Inputs of a step's T tokens, in the dtype of matrices: G groups of H heads."""

    values: Tensor
    """[T, H, head_dim]: x."""
    steps: Tensor
    """[T, H]: d, at least 0."""
    pace: Tensor
    """[H]: a, below 0."""
    into: Tensor
    """[T, G, state_dim]: b."""
    out_of: Tensor
    """[T, G, state_dim]: c."""

    def as_delta(self) -> DeltaInputs:
        """The inputs as ``kernels.gated_delta`` takes them."""
        return DeltaInputs(
            queries=self.out_of,
            keys=self.into,
            values=self.values * self.steps[:, :, None],
            decays=self.steps * self.pace,
            betas=None,
        )


def mamba2_reference(inputs: Mamba2Inputs, matrices: Tensor, rows: DeltaRows) -> Tensor:
    """Token by token.

    Args:
        inputs: of the step's tokens.
        matrices: [slots, H, state_dim, head_dim] before them; not changed.
        rows: whose they are.

    Returns:
        y, [T, H, head_dim].
    """
    shared = inputs.values.shape[1] // inputs.into.shape[1]
    mixed = torch.empty_like(inputs.values)
    for sequence, slot in enumerate(rows.slots.tolist()):
        state, span = matrices[slot].clone(), rows.tokens(sequence)
        for token in range(span.start, span.stop):
            step = inputs.steps[token][:, None]
            state = state * (step * inputs.pace[:, None]).exp()[:, :, None]
            taken = inputs.into[token].repeat_interleave(shared, 0)[:, :, None]
            state = state + taken * (step * inputs.values[token])[:, None, :]
            read = inputs.out_of[token].repeat_interleave(shared, 0)[:, :, None]
            mixed[token] = (state * read).sum(1)
    return mixed
