"""The GPU benchmark's case of experts: a layer's, in the model's dtype and in few bits.

Checked against a loop over the experts, for which the host waits, and timed beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_cases import Wrong, seconds, wall_seconds
from benchmarks.gpu_plan import Plan
from kernels.activation import silu_mul
from kernels.codes import CodeKind, Codes
from kernels.expert_routing import Routing, combined, route, sorted_picks
from kernels.grouped_codes import grouped_coded_matmul, grouped_coded_matmul_reference
from kernels.grouped_matmul import grouped_matmul, grouped_matmul_reference

Map = Callable[[Tensor, Tensor | None, Tensor], Tensor]
"""Picked rows, sorted by expert, by their experts' matrices: x, rows, starts."""
KINDS: tuple[CodeKind | None, ...] = (None, "e4m3", "int4", "e2m1")
"""How matrices are kept; None: in the model's dtype."""
GROUPS = {"e4m3": 128, "int4": 128, "int8": 128, "e2m1": 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maps:
    """A map of each expert."""

    multiply: Map
    reference: Map
    bytes_each: int


def measure_experts(
    plan: Plan, rate: float, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """One layer's experts as in service: chosen, picks sorted, two products in one launch each with
    the gate between them, and the sum of each token's parts. What has to be read is the matrices
    of the experts that some token takes.

    Raises:
        Wrong: a result is not the loop's.
    """
    return [
        _row(plan, kind, tokens, rate=rate, dtype=dtype, device=device)
        for kind in KINDS
        for tokens in plan.expert_tokens
    ]


def _row(
    plan: Plan,
    kind: CodeKind | None,
    tokens: int,
    *,
    rate: float,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Any]:
    experts, hidden = plan.experts, plan.experts_hidden
    count, size = experts.router.num_experts, experts.each.size
    routing = Routing(per_token=experts.router.per_token)
    gate_up, down = (
        _maps(kind, (count, *shape), dtype, device)
        for shape in ((2 * size, hidden), (hidden, size))
    )
    x = torch.randn(tokens, hidden, device=device).to(dtype)

    def run(first: Map, second: Map, logits: Tensor) -> Tensor:
        weights, chosen = route(logits, None, routing, dtype)
        picks = sorted_picks(chosen, count, x)
        gated = silu_mul(first(x, picks.rows, picks.starts))
        return combined(second(gated, None, picks.starts), picks.places, weights)

    # Drawn anew for each call: no cache holds what all of them read.
    drawn = [torch.randn(tokens, count, device=device) for _ in range(4)]
    found = run(gate_up.multiply, down.multiply, drawn[0]).float()
    expected = run(gate_up.reference, down.reference, drawn[0]).float()
    error = float((found - expected).norm() / expected.norm())
    if not error <= max(2 * torch.finfo(dtype).eps, 1e-5):
        kept = kind or "the model's dtype"
        raise Wrong(f"experts in {kept} of {tokens} tokens are off by {error:.2g} of the norm")
    calls = [lambda each=each: run(gate_up.multiply, down.multiply, each) for each in drawn]
    taken = seconds(calls, device)
    used = sum(len(route(each, None, routing, dtype)[1].unique()) for each in drawn) // len(drawn)
    loop = wall_seconds(lambda: run(gate_up.reference, down.reference, drawn[0]), device)
    return {
        "kept": kind or "dtype",
        "tokens": tokens,
        "experts_used": used,
        "us": taken * 1e6,
        "loop_us": loop * 1e6,
        "share_of_copy": used * (gate_up.bytes_each + down.bytes_each) / taken / rate,
    }


def _maps(
    kind: CodeKind | None, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> _Maps:
    count, outputs, inputs = shape
    if kind is None:
        matrices = torch.empty(shape, dtype=dtype, device=device).normal_(std=inputs**-0.5)
        return _Maps(
            multiply=lambda x, rows, starts: grouped_matmul(x, matrices, rows, starts),
            reference=lambda x, rows, starts: grouped_matmul_reference(x, matrices, rows, starts),
            bytes_each=matrices[0].nbytes,
        )
    codes = _codes(kind, count * outputs, inputs, device)

    def product(way: Callable[..., Tensor]) -> Map:
        return lambda x, rows, starts: way(x, codes, count, rows, starts)

    return _Maps(
        multiply=product(grouped_coded_matmul),
        reference=product(grouped_coded_matmul_reference),
        bytes_each=codes.num_bytes // count,
    )


def _codes(kind: CodeKind, outputs: int, inputs: int, device: torch.device) -> Codes:
    """Codes of weights that are about as large as those of a model."""
    width = inputs if kind in ("int8", "e4m3") else inputs // 2
    values = torch.randint(0, 256, (outputs, width), dtype=torch.uint8, device=device)
    group = GROUPS[kind] if inputs % GROUPS[kind] == 0 else inputs
    shape = outputs, -(-inputs // group)
    scales = torch.full(shape, inputs**-0.5 / 8, device=device)
    if kind == "e2m1":
        scales = torch.full(shape, 127 - 7, dtype=torch.uint8, device=device)
    if kind == "e4m3":
        values &= 0xBF  # below 2: none of them is no number
    return Codes(kind=kind, values=values, scales=scales, group=group)
