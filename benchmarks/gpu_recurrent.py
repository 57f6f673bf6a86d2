"""The GPU benchmark's recurrent layers: a decode, a commit, a prompt, and a snapshot's copy.

Each is checked against its reference first, then timed; what has to move is the matrices, read and
written once, and shares are of a copy of the same bytes. Calls go round several pools of matrices,
so that the second-level cache does not serve them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_cases import Wrong, seconds
from benchmarks.gpu_plan import Plan, RecurrentPlan
from benchmarks.gpu_timing import copies_to_rotate
from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaDue,
    DeltaInputs,
    DeltaRings,
    fold_rings,
    fold_rings_reference,
    gated_delta,
    gated_delta_reference,
)

_COMMITTED = 8
_RING = 32
_ERROR = 1e-4
"""Of a result's norm: sums in single precision, in another order."""


def measure_recurrent(plan: Plan, rate: float, device: torch.device) -> list[dict[str, Any]]:
    """Rows for each kind of layer of ``plan.recurrent``.

    Raises:
        Wrong: a kernel disagrees with its reference.
    """
    return [row for each in plan.recurrent for row in _of_kind(each, plan, rate, device)]


def _of_kind(
    kind: RecurrentPlan, plan: Plan, rate: float, device: torch.device
) -> list[dict[str, Any]]:
    count, each = kind.sequences, np.arange(kind.sequences)
    shape = count, 1, kind.heads, kind.key_dim, kind.value_dim
    one = torch.randn(shape, device=device)
    pools = [one.clone() for _ in range(copies_to_rotate(one.nbytes, plan.rotated_bytes))]
    rings, step = _rings(kind, device), _inputs(kind, count, device)
    rows = DeltaRows(slots=each, starts=np.arange(count + 1), positions=64 * each)
    prompt = _inputs(kind, kind.prompt, device)
    whole = DeltaRows(
        slots=each[:1], starts=np.array([0, kind.prompt]), positions=np.zeros(1, dtype=np.int64)
    )

    def spans(tokens: int) -> DeltaSpans:
        counts = np.full(count, tokens)
        return DeltaSpans(slots=each, rings=each, committed=5 * each, counts=counts)

    def decode(pool: Tensor) -> Tensor:
        due = DeltaDue(matrices=pool, rings=rings, spans=spans(1), layer=0)
        return gated_delta(step, pool[:, 0], rows, due).mixed

    ours, theirs = one.clone(), one.clone()
    mixed = decode(ours)
    fold_rings_reference(theirs, rings, spans(1))
    _check(kind, "decode", mixed, gated_delta_reference(step, theirs[:, 0], rows).mixed)
    for fold, pool in ((fold_rings, ours), (fold_rings_reference, theirs)):
        fold(pool, rings, spans(_COMMITTED))
    _check(kind, "commit", ours, theirs)
    read = gated_delta(prompt, one[:, 0], whole).mixed
    _check(kind, "prefill", read, gated_delta_reference(prompt, one[:, 0], whole).mixed)
    target = torch.empty_like(one)

    def commit(pool: Tensor) -> None:
        fold_rings(pool, rings, spans(_COMMITTED))

    def prefill(pool: Tensor) -> object:
        return gated_delta(prompt, pool[:, 0], whole)

    ways: dict[str, Callable[[Tensor], object]] = {
        "decode": decode,
        "commit": commit,
        "snapshot copy": target.copy_,
        "prefill": prefill,
    }
    found = []
    for name, way in ways.items():
        taken = seconds([partial(way, pool) for pool in pools], device)
        share = 2 * one.nbytes / taken / rate if name != "prefill" else None
        found.append({"layer": kind.name, "what": name, "us": taken * 1e6, "share_of_copy": share})
    return found


def _check(kind: RecurrentPlan, name: str, found: Tensor, expected: Tensor) -> None:
    error = float((found - expected).norm() / expected.norm())
    if not error <= _ERROR:
        raise Wrong(f"{name} of {kind.name} is off by {error:.2g} of the reference's norm")


def _inputs(kind: RecurrentPlan, tokens: int, device: torch.device) -> DeltaInputs:
    queries, keys = torch.randn(2, tokens, kind.key_heads, kind.key_dim, device=device)
    return DeltaInputs(
        queries=functional.normalize(queries, dim=-1),
        keys=functional.normalize(keys, dim=-1),
        values=torch.randn(tokens, kind.heads, kind.value_dim, device=device),
        decays=-torch.rand(tokens, *_decays(kind), device=device),
        betas=torch.rand(tokens, kind.heads, device=device) if kind.corrects else None,
    )


def _rings(kind: RecurrentPlan, device: torch.device) -> DeltaRings:
    size = kind.sequences, 1, _RING
    keys = torch.randn(*size, kind.key_heads, kind.key_dim, device=device)
    return DeltaRings(
        keys=functional.normalize(keys, dim=-1),
        corrected=torch.randn(*size, kind.heads, kind.value_dim, device=device),
        decays=-torch.rand(*size, *_decays(kind), device=device),
    )


def _decays(kind: RecurrentPlan) -> tuple[int, ...]:
    """The shape of one token's decays."""
    return (kind.heads, kind.key_dim) if kind.by_channel else (kind.heads,)
