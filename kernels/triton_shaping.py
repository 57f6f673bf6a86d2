"""The inputs of the gated delta rule, also as Kimi has it, and of Mamba-2, of what a layer's
projections say, in Triton.

What ``kernels.delta_shaping``, ``kernels.kimi_shaping`` and ``kernels.mamba_shaping`` say, in one
launch each.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_shaping import LEAST_LENGTH, DeltaShape
from kernels.gated_delta import DeltaInputs
from kernels.kimi_shaping import KimiShape
from kernels.launching import launch
from kernels.mamba_shaping import MambaShape
from kernels.triton_elementwise import sigmoid

WARPS: Final = 1
"""Of a program, which has one head of one token."""


@triton.jit
def _silu(x):
    return x * sigmoid(x)


@triton.jit
def _softplus(x):
    """log(1 + e^x), also where e^x is lost beside 1; from 20 on x, as torch has it."""
    grown = tl.exp(tl.where(x > 20.0, 20.0, x))
    total = 1.0 + grown
    lost = total == 1.0
    beside = tl.where(lost, grown, tl.log(total) * (grown / tl.where(lost, 1.0, total - 1.0)))
    return tl.where(x > 20.0, x, beside)


@triton.jit
def delta_shaping_kernel(
    convolved_ptr,
    paces_ptr,
    rates_ptr,
    bias_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    betas_ptr,
    scale,
    LEAST: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One head of one token, of queries, of keys, or of values with its paces.
    Grid: (tokens, 2 * KEY_HEADS + VALUE_HEADS)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = convolved_ptr + token * (2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM)
    if head < 2 * KEY_HEADS:
        k = tl.arange(0, BLOCK_K)
        x = tl.load(row + head * KEY_DIM + k, mask=k < KEY_DIM, other=0.0).to(tl.float32)
        x = _silu(x)
        x = x * tl.rsqrt(tl.sum(x * x, 0) + LEAST)
        place = token * KEY_HEADS * KEY_DIM + k
        if head < KEY_HEADS:
            tl.store(queries_ptr + place + head * KEY_DIM, x * scale, mask=k < KEY_DIM)
        else:
            tl.store(keys_ptr + place + (head - KEY_HEADS) * KEY_DIM, x, mask=k < KEY_DIM)
    else:
        own = head - 2 * KEY_HEADS
        v = tl.arange(0, BLOCK_V)
        before = 2 * KEY_HEADS * KEY_DIM + own * VALUE_DIM
        value = tl.load(row + before + v, mask=v < VALUE_DIM, other=0.0).to(tl.float32)
        of_head = token * VALUE_HEADS + own
        tl.store(values_ptr + of_head * VALUE_DIM + v, _silu(value), mask=v < VALUE_DIM)
        paces = paces_ptr + token * 2 * VALUE_HEADS + own
        beta = tl.load(paces).to(tl.float32)
        tl.store(betas_ptr + of_head, sigmoid(beta))
        step = tl.load(paces + VALUE_HEADS).to(tl.float32) + tl.load(bias_ptr + own)
        tl.store(decays_ptr + of_head, -tl.load(rates_ptr + own) * _softplus(step))


@triton.jit
def kimi_shaping_kernel(
    convolved_ptr,
    steps_ptr,
    said_ptr,
    rates_ptr,
    bias_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    betas_ptr,
    steps_stride,
    said_stride,
    scale,
    LEAST: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token, of queries, of keys, or of values with its decays and its beta.
    Grid: (tokens, 3 * HEADS)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = tl.arange(0, BLOCK)
    known = k < HEAD_DIM
    row = convolved_ptr + token * 3 * HEADS * HEAD_DIM
    x = _silu(tl.load(row + head * HEAD_DIM + k, mask=known, other=0.0).to(tl.float32))
    own = head % HEADS
    place = (token * HEADS + own) * HEAD_DIM + k
    if head < 2 * HEADS:
        x = x * tl.rsqrt(tl.sum(x * x, 0) + LEAST)
        if head < HEADS:
            tl.store(queries_ptr + place, x * scale, mask=known)
        else:
            tl.store(keys_ptr + place, x, mask=known)
    else:
        tl.store(values_ptr + place, x, mask=known)
        beta = tl.load(said_ptr + token * said_stride + own).to(tl.float32)
        tl.store(betas_ptr + token * HEADS + own, sigmoid(beta))
        of_head = own * HEAD_DIM + k
        step = tl.load(steps_ptr + token * steps_stride + of_head, mask=known, other=0.0)
        step = step.to(tl.float32) + tl.load(bias_ptr + of_head, mask=known, other=0.0)
        decay = -tl.load(rates_ptr + own) * _softplus(step)
        tl.store(decays_ptr + place, decay, mask=known)


@triton.jit
def mamba_shaping_kernel(
    convolved_ptr,
    steps_ptr,
    pace_ptr,
    bias_ptr,
    values_ptr,
    taken_ptr,
    keys_ptr,
    queries_ptr,
    decays_ptr,
    steps_stride,
    least_step,
    most_step,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One head of values with its step, or one group of keys or queries, of one token.
    Grid: (tokens, HEADS + 2 * GROUPS)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = convolved_ptr + token * (HEADS * HEAD_DIM + 2 * GROUPS * STATE_DIM)
    if head < HEADS:
        v = tl.arange(0, BLOCK_V)
        value = tl.load(row + head * HEAD_DIM + v, mask=v < HEAD_DIM, other=0.0).to(tl.float32)
        value = _silu(value)
        step = tl.load(steps_ptr + token * steps_stride + head).to(tl.float32)
        step = _softplus(step + tl.load(bias_ptr + head))
        step = tl.where(step < least_step, least_step, tl.where(step > most_step, most_step, step))
        of_head = token * HEADS + head
        tl.store(values_ptr + of_head * HEAD_DIM + v, value, mask=v < HEAD_DIM)
        tl.store(taken_ptr + of_head * HEAD_DIM + v, value * step, mask=v < HEAD_DIM)
        tl.store(decays_ptr + of_head, step * tl.load(pace_ptr + head))
    else:
        group = head - HEADS
        k = tl.arange(0, BLOCK_K)
        before = HEADS * HEAD_DIM + group * STATE_DIM
        x = tl.load(row + before + k, mask=k < STATE_DIM, other=0.0).to(tl.float32)
        place = token * GROUPS * STATE_DIM + k
        if group < GROUPS:
            tl.store(keys_ptr + place + group * STATE_DIM, _silu(x), mask=k < STATE_DIM)
        else:
            own = (group - GROUPS) * STATE_DIM
            tl.store(queries_ptr + place + own, _silu(x), mask=k < STATE_DIM)


def delta_shaping(convolved: Tensor, paces: Tensor, shape: DeltaShape) -> DeltaInputs:
    """See ``kernels.delta_shaping.delta_shaping_reference``; states are in float32."""
    convolved, paces, tokens = convolved.contiguous(), paces.contiguous(), len(convolved)
    queries, keys = (
        shape.rates.new_empty(tokens, shape.key_heads, shape.key_dim) for _ in range(2)
    )
    values = shape.rates.new_empty(tokens, shape.value_heads, shape.value_dim)
    decays, betas = (shape.rates.new_empty(tokens, shape.value_heads) for _ in range(2))
    if tokens:
        launch(delta_shaping_kernel, (tokens, 2 * shape.key_heads + shape.value_heads))(
            convolved,
            paces,
            shape.rates,
            shape.bias,
            queries,
            keys,
            values,
            decays,
            betas,
            shape.key_dim**-0.5,
            LEAST=LEAST_LENGTH,
            KEY_HEADS=shape.key_heads,
            VALUE_HEADS=shape.value_heads,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            BLOCK_K=triton.next_power_of_2(shape.key_dim),
            BLOCK_V=triton.next_power_of_2(shape.value_dim),
            num_warps=WARPS,
        )
    return DeltaInputs(queries=queries, keys=keys, values=values, decays=decays, betas=betas)


def kimi_shaping(convolved: Tensor, steps: Tensor, betas: Tensor, shape: KimiShape) -> DeltaInputs:
    """See ``kernels.kimi_shaping.kimi_shaping_reference``; states are in float32."""
    convolved, tokens = convolved.contiguous(), len(convolved)
    queries, keys, values, decays = (
        shape.rates.new_empty(tokens, shape.heads, shape.head_dim) for _ in range(4)
    )
    made = shape.rates.new_empty(tokens, shape.heads)
    steps, betas = (each if each.stride(1) == 1 else each.contiguous() for each in (steps, betas))
    if tokens:
        launch(kimi_shaping_kernel, (tokens, 3 * shape.heads))(
            convolved,
            steps,
            betas,
            shape.rates,
            shape.bias,
            queries,
            keys,
            values,
            decays,
            made,
            steps.stride(0),
            betas.stride(0),
            shape.head_dim**-0.5,
            LEAST=LEAST_LENGTH,
            HEADS=shape.heads,
            HEAD_DIM=shape.head_dim,
            BLOCK=triton.next_power_of_2(shape.head_dim),
            num_warps=WARPS,
        )
    return DeltaInputs(queries=queries, keys=keys, values=values, decays=decays, betas=made)


def mamba_shaping(
    convolved: Tensor, steps: Tensor, shape: MambaShape
) -> tuple[DeltaInputs, Tensor]:
    """See ``kernels.mamba_shaping.mamba_shaping_reference``; states are in float32."""
    convolved, tokens = convolved.contiguous(), len(convolved)
    values, taken = (shape.pace.new_empty(tokens, shape.heads, shape.head_dim) for _ in range(2))
    keys, queries = (shape.pace.new_empty(tokens, shape.groups, shape.state_dim) for _ in range(2))
    decays = shape.pace.new_empty(tokens, shape.heads)
    steps = steps if steps.stride(1) == 1 else steps.contiguous()
    if tokens:
        launch(mamba_shaping_kernel, (tokens, shape.heads + 2 * shape.groups))(
            convolved,
            steps,
            shape.pace,
            shape.step_bias,
            values,
            taken,
            keys,
            queries,
            decays,
            steps.stride(0),
            shape.least_step,
            shape.most_step,
            HEADS=shape.heads,
            GROUPS=shape.groups,
            HEAD_DIM=shape.head_dim,
            STATE_DIM=shape.state_dim,
            BLOCK_V=triton.next_power_of_2(shape.head_dim),
            BLOCK_K=triton.next_power_of_2(shape.state_dim),
            num_warps=WARPS,
        )
    delta = DeltaInputs(queries=queries, keys=keys, values=taken, decays=decays, betas=None)
    return delta, values
