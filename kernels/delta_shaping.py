"""What the gated delta rule is given, of what a layer's projections and its convolution say.

Queries, keys and values are what SiLU leaves of the convolved numbers, queries and keys of length
one; decays and betas follow from each head's paces. All of it is in the dtype of states, which is
never narrower than that of the rows. A token's numbers are those of its own row alone.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.gated_delta import DeltaInputs
from kernels.native_arguments import DeltaShapingArgs
from kernels.native_library import native_library

LEAST_LENGTH: Final = 1e-6
"""Added to the squared length that queries and keys are divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Heads of a layer, K of keys and V of values, and how fast each of the latter forgets."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    rates: Tensor
    """[V] in the dtype of states, above 0."""
    bias: Tensor
    """[V] in the same: added to what a token says of its decays."""
    most_beta: float = 1.0
    """Multiplies betas."""


def delta_shaping_reference(convolved: Tensor, paces: Tensor, shape: DeltaShape) -> DeltaInputs:
    """In torch.

    Args:
        convolved: [T, 2 * K * key_dim + V * value_dim]: queries, keys, values.
        paces: [T, 2 * V]: what tokens say of betas, then of decays.
    """
    wide, keys = shape.rates.dtype, shape.key_heads * shape.key_dim
    sizes = [keys, keys, shape.value_heads * shape.value_dim]
    queries, own_keys, values = torch.split(functional.silu(convolved.to(wide)), sizes, dim=1)
    by_key = (-1, shape.key_heads, shape.key_dim)
    betas, steps = paces.to(wide).chunk(2, dim=1)
    return DeltaInputs(
        queries=of_length_one(queries.reshape(by_key)) * shape.key_dim**-0.5,
        keys=of_length_one(own_keys.reshape(by_key)),
        values=values.reshape(-1, shape.value_heads, shape.value_dim),
        decays=-shape.rates * functional.softplus(steps + shape.bias),
        betas=betas.sigmoid() * shape.most_beta,
    )


def of_length_one(rows: Tensor) -> Tensor:
    """Rows [..., size] divided by their length."""
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + LEAST_LENGTH)


def delta_shaping(convolved: Tensor, paces: Tensor, shape: DeltaShape) -> DeltaInputs:
    """See ``delta_shaping_reference``."""
    shaped = _shaped(convolved, paces, replace(shape, most_beta=1.0))
    if shape.most_beta == 1 or shaped.betas is None:
        return shaped
    return replace(shaped, betas=shaped.betas * shape.most_beta)


def _shaped(convolved: Tensor, paces: Tensor, shape: DeltaShape) -> DeltaInputs:
    """The same with betas up to 1."""
    gpu = triton_kernels("shaping", shape.rates)
    if gpu is not None:
        shaped: DeltaInputs = gpu.delta_shaping(convolved, paces, shape)
        return shaped
    library = native_library(convolved.dtype) if convolved.device.type == "cpu" else None
    if library is None or shape.rates.dtype != torch.float32 or paces.dtype != convolved.dtype:
        return delta_shaping_reference(convolved, paces, shape)
    convolved, paces, tokens = convolved.contiguous(), paces.contiguous(), len(convolved)
    queries, keys = (
        shape.rates.new_empty(tokens, shape.key_heads, shape.key_dim) for _ in range(2)
    )
    values = shape.rates.new_empty(tokens, shape.value_heads, shape.value_dim)
    decays, betas = (shape.rates.new_empty(tokens, shape.value_heads) for _ in range(2))
    library.delta_shaping(
        DeltaShapingArgs(
            convolved=convolved.data_ptr(),
            paces=paces.data_ptr(),
            rates=shape.rates.data_ptr(),
            bias=shape.bias.data_ptr(),
            queries=queries.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            decays=decays.data_ptr(),
            betas=betas.data_ptr(),
            tokens=tokens,
            key_heads=shape.key_heads,
            value_heads=shape.value_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
        )
    )
    return DeltaInputs(queries=queries, keys=keys, values=values, decays=decays, betas=betas)
