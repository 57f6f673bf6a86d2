"""Inputs of the gated delta rule in Kimi Delta Attention (arXiv:2510.26692), of what a layer's
projections and its convolution say.

Queries, keys and values are made as by ``kernels.delta_shaping``; decays follow from what a token
says of each number of a key, betas of each head. All of it is in the dtype of states, which is
never narrower than that of the rows. A token's numbers are those of its own row alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.delta_shaping import of_length_one
from kernels.dispatch import triton_kernels
from kernels.gated_delta import DeltaInputs
from kernels.native_arguments import KimiShapingArgs
from kernels.native_library import native_library


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiShape:
    """Heads of a layer, of keys as of values, and how fast each forgets."""

    heads: int
    head_dim: int
    rates: Tensor
    """[heads] in the dtype of states, above 0."""
    bias: Tensor
    """[heads * head_dim] in the same: added to what a token says of its decays."""
    lowest: float | None = None
    """The logarithm of a decay is a part of this, below 0, by a sigmoid; None: it has no bound."""


def kimi_shaping_reference(
    convolved: Tensor, steps: Tensor, betas: Tensor, shape: KimiShape
) -> DeltaInputs:
    """In torch.

    Args:
        convolved: [T, 3 * heads * head_dim]: queries, keys, values.
        steps: [T, heads * head_dim]: what tokens say of decays; rows may lie apart.
        betas: [T, heads]: what they say of betas; rows may lie apart.
    """
    wide, by_head = shape.rates.dtype, (-1, shape.heads, shape.head_dim)
    queries, keys, values = functional.silu(convolved.to(wide)).chunk(3, dim=1)
    said, rates = (steps.to(wide) + shape.bias).reshape(by_head), shape.rates[:, None]
    if shape.lowest is None:
        decays = -rates * functional.softplus(said)
    else:
        decays = shape.lowest * (rates * said).sigmoid()
    return DeltaInputs(
        queries=of_length_one(queries.reshape(by_head)) * shape.head_dim**-0.5,
        keys=of_length_one(keys.reshape(by_head)),
        values=values.reshape(by_head),
        decays=decays,
        betas=betas.to(wide).sigmoid(),
    )


def kimi_shaping(convolved: Tensor, steps: Tensor, betas: Tensor, shape: KimiShape) -> DeltaInputs:
    """See ``kimi_shaping_reference``, by which decays that are bound are made everywhere."""
    if shape.lowest is not None:
        return kimi_shaping_reference(convolved, steps, betas, shape)
    gpu = triton_kernels("shaping", shape.rates)
    if gpu is not None:
        shaped: DeltaInputs = gpu.kimi_shaping(convolved, steps, betas, shape)
        return shaped
    library = native_library(convolved.dtype) if convolved.device.type == "cpu" else None
    said = steps, betas
    plain = all(each.dtype == convolved.dtype and each.stride(1) == 1 for each in said)
    if library is None or shape.rates.dtype != torch.float32 or not plain:
        return kimi_shaping_reference(convolved, steps, betas, shape)
    convolved, tokens = convolved.contiguous(), len(convolved)
    queries, keys, values, decays = (
        shape.rates.new_empty(tokens, shape.heads, shape.head_dim) for _ in range(4)
    )
    made = shape.rates.new_empty(tokens, shape.heads)
    library.kimi_shaping(
        KimiShapingArgs(
            convolved=convolved.data_ptr(),
            steps=steps.data_ptr(),
            said_betas=betas.data_ptr(),
            rates=shape.rates.data_ptr(),
            bias=shape.bias.data_ptr(),
            queries=queries.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            decays=decays.data_ptr(),
            betas=made.data_ptr(),
            tokens=tokens,
            heads=shape.heads,
            head_dim=shape.head_dim,
            steps_stride=steps.stride(0),
            betas_stride=betas.stride(0),
        )
    )
    return DeltaInputs(queries=queries, keys=keys, values=values, decays=decays, betas=made)
