"""What Mamba-2 is given, of what a layer's projection and its convolution say.

Values, keys and queries are what SiLU leaves of the convolved numbers; steps are softplus of what a
token says of each head, within bounds. All of it is in the dtype of states, which is never narrower
than that of the rows. A token's numbers are those of its own row alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.gated_delta import DeltaInputs
from kernels.mamba2 import Mamba2Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaShape:
    """A layer's heads, G groups of which share keys and queries, and how fast each forgets."""

    heads: int
    groups: int
    head_dim: int
    state_dim: int
    pace: Tensor
    """[heads] in the dtype of states, below 0."""
    step_bias: Tensor
    """[heads] in the same: added to what a token says of its steps."""
    least_step: float
    most_step: float


def mamba_shaping_reference(
    convolved: Tensor, steps: Tensor, shape: MambaShape
) -> tuple[DeltaInputs, Tensor]:
    """In torch.

    Args:
        convolved: [T, heads * head_dim + 2 * G * state_dim]: values, keys, queries.
        steps: [T, heads]; rows may lie apart.

    Returns:
        The inputs as ``kernels.gated_delta`` takes them, and the values, [T, heads, head_dim].
    """
    wide, shared = shape.pace.dtype, shape.groups * shape.state_dim
    values, into, out_of = torch.split(
        functional.silu(convolved.to(wide)), [shape.heads * shape.head_dim, shared, shared], dim=1
    )
    by_group = (-1, shape.groups, shape.state_dim)
    paced = functional.softplus(steps.to(wide) + shape.step_bias)
    inputs = Mamba2Inputs(
        values=values.reshape(-1, shape.heads, shape.head_dim),
        steps=paced.clamp(shape.least_step, shape.most_step),
        pace=shape.pace,
        into=into.reshape(by_group),
        out_of=out_of.reshape(by_group),
    )
    return inputs.as_delta(), inputs.values


def mamba_shaping(
    convolved: Tensor, steps: Tensor, shape: MambaShape
) -> tuple[DeltaInputs, Tensor]:
    """See ``mamba_shaping_reference``."""
    gpu = triton_kernels("shaping", shape.pace)
    if gpu is None:
        return mamba_shaping_reference(convolved, steps, shape)
    shaped: tuple[DeltaInputs, Tensor] = gpu.mamba_shaping(convolved, steps, shape)
    return shaped
