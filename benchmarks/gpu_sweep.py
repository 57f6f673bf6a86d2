"""How a decode's attention is best cut up: tilings, splits and the join, swept on a GPU.

All variants are compiled side by side first. Every tiling is timed with the plan as it is, and the
best few of them with every plan; so are verifications of drafts, and prefixes that are read once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from itertools import product
from math import exp, log
from typing import Any
from unittest import mock

import torch

from benchmarks import gpu_timing
from benchmarks.gpu_cases import attention_calls, blocks_for, make_layout, shared_prefix_case
from benchmarks.gpu_kernels import attend, fp8_pool
from benchmarks.gpu_plan import Plan
from kernels import triton_decode, triton_prefix, triton_split_plan, triton_tiles
from kernels.launching import compiling_ahead
from kernels.paged_layout import PagedLayout
from kernels.triton_tiles import Tiling

Calls = Sequence[Callable[[], object]]
_REPEATS = 7
_BEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to cut up a decode, or a verification, whose programs have so many rows."""

    rows: int = 16
    keys: int = 64
    warps: int = 4
    stages: int = 2
    min_tiles: int = triton_split_plan.MIN_TILES
    programs: int = triton_split_plan.PROGRAMS
    at_once: int = triton_decode.SPLITS_AT_ONCE
    join_warps: int = triton_decode.JOIN_WARPS


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixVariant:
    """One way to cut a shared prefix up."""

    rows: int = 64
    keys: int = 64
    warps: int = 4
    stages: int = 3
    splits: int = triton_prefix.SPLITS


@contextmanager
def cut(variant: Variant) -> Iterator[None]:
    """Decodes are cut up as ``variant`` says."""

    def tiling(rows: int, element_size: int, head_dim: int, *, scaled: bool) -> Tiling:
        found = triton_tiles.decode_tiling(rows, element_size, head_dim, scaled=scaled)
        if found.rows != variant.rows:
            return found
        return replace(found, keys=variant.keys, num_warps=variant.warps, num_stages=variant.stages)

    with ExitStack() as stack:
        for module, name, value in (
            (triton_decode, "decode_tiling", tiling),
            (triton_split_plan, "MIN_TILES", variant.min_tiles),
            (triton_split_plan, "PROGRAMS", variant.programs),
            (triton_decode, "SPLITS_AT_ONCE", variant.at_once),
            (triton_decode, "JOIN_WARPS", variant.join_warps),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@contextmanager
def cut_prefix(variant: PrefixVariant) -> Iterator[None]:
    """Shared prefixes are cut up as ``variant`` says."""
    tiling = Tiling(
        rows=variant.rows, keys=variant.keys, num_warps=variant.warps, num_stages=variant.stages
    )
    with (
        mock.patch.object(triton_prefix, "decode_tiling", return_value=tiling),
        mock.patch.object(triton_prefix, "SPLITS", variant.splits),
        mock.patch.object(triton_prefix, "WIDE_SPLITS", variant.splits),
    ):
        yield


def tilings(most: int | None) -> list[Variant]:
    """Every tiling, with the plan as it is."""
    every = [
        Variant(keys=keys, warps=warps, stages=stages)
        for keys, warps, stages in product((32, 64, 128), (2, 4, 8), (2, 3, 4, 5, 6))
    ]
    return every[:most]


def plans(variant: Variant, most: int | None) -> list[Variant]:
    """``variant``'s tiling with every plan."""
    every = [
        replace(variant, min_tiles=least, programs=programs, at_once=at_once, join_warps=warps)
        for least, programs, (at_once, warps) in product(
            (1, 2, 4), (264, 528, 1056), ((16, 4), (32, 4), (64, 4), (64, 8))
        )
    ]
    return every[:most]


def prefix_variants(most: int | None) -> list[PrefixVariant]:
    """Every way to cut a prefix up."""
    every = [
        PrefixVariant(rows=rows, keys=keys, warps=warps, stages=stages, splits=splits)
        for rows, keys, warps, stages, splits in product(
            (32, 64, 128), (32, 64), (4, 8), (2, 3, 4), (8, 16)
        )
    ]
    return every[:most]


def verifying(rows: int, most: int | None) -> list[Variant]:
    """Every tiling of programs with so many rows."""
    every = [
        Variant(rows=rows, keys=keys, warps=warps, stages=stages)
        for keys, warps, stages in product((32, 64), (4, 8), (2, 3, 4))
    ]
    return every[:most]


def measure_sweep(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Microseconds of decodes by variant and case."""
    cases = {
        name: _case(plan, [(length, 1) for length in lengths], dtype, device)
        for name, lengths in plan.attention
    }
    first = tilings(plan.swept)
    rows = _swept(first, cut, cases, device)
    best = sorted(first, key=lambda variant: _mean_us(rows, variant))[:_BEST]
    second = [one for variant in best for one in plans(variant, plan.swept)]
    return rows + _swept(second, cut, cases, device)


def measure_sweep_verify(
    plan: Plan, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """Microseconds of verifications by variant and case."""
    batch, context, _ = plan.verify
    rows = []
    for queries, tile in ((8, 32), (32, 64)):
        cases = {
            f"{count} of {queries}": _case(plan, [(context, queries)] * count, dtype, device)
            for count in (1, batch)
        }
        rows += _swept(verifying(tile, plan.swept), cut, cases, device)
    return rows


def measure_sweep_prefix(
    plan: Plan, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """Microseconds of a decode whose prefix is read once, by how that is cut up."""
    prefixes = prefix_variants(plan.swept)
    case = shared_prefix_case(plan, dtype, device)
    return _swept(prefixes, cut_prefix, {"shared prefix": case}, device)


def measure_sweep_fp8(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Microseconds of decodes over keys and values in fp8, by variant and case."""
    cases: dict[str, tuple[Calls, PagedLayout]] = {}
    for name, lengths in plan.fp8_decodes:
        shapes = [(length, 1) for length in lengths]
        layout = make_layout(shapes, blocks_for(shapes), device)
        size = sum(lengths) * 2 * plan.kv_heads * plan.head_dim
        queries = torch.randn(len(lengths), plan.heads, plan.head_dim, device=device).to(dtype)
        pools = [
            fp8_pool(plan, blocks_for(shapes), device)
            for _ in range(max(1, plan.rotated_bytes // size))
        ]
        cases[name] = [partial(attend, queries, pool, layout) for pool in pools], layout
    return _swept(tilings(plan.swept), cut, cases, device)


def _case(
    plan: Plan, shapes: list[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> tuple[Calls, PagedLayout]:
    layout = make_layout(shapes, blocks_for(shapes), device)
    return attention_calls(plan, shapes, dtype, device, layout)[0], layout


def _mean_us(rows: list[dict[str, Any]], variant: Variant) -> float:
    """Geometric mean over the cases; infinite where one could not be run."""
    times = [row["us"] for row in rows if row["variant"] == list(astuple(variant))]
    if any(time is None for time in times):
        return float("inf")
    return exp(sum(map(log, times)) / len(times))


def _swept(
    variants: Sequence[Any],
    cutting: Callable[[Any], Any],
    cases: dict[str, tuple[Calls, PagedLayout]],
    device: torch.device,
) -> list[dict[str, Any]]:
    with compiling_ahead(os.cpu_count() or 1):
        for variant in variants:
            for calls, layout in cases.values():
                layout.plans.clear()
                with cutting(variant):
                    calls[0]()
    rows: list[dict[str, Any]] = []
    for variant in variants:
        for name, (calls, layout) in cases.items():
            layout.plans.clear()
            row = {"case": name, "variant": list(astuple(variant))}
            try:
                with cutting(variant):
                    row["us"] = _seconds(calls, device) * 1e6
            except Exception as error:
                row |= {"us": None, "failed": f"{type(error).__name__}: {error}"[:200]}
            rows.append(row)
    if rows:
        rows[0]["fields"] = [field.name for field in fields(variants[0])]
    return rows


def _seconds(calls: Calls, device: torch.device) -> float:
    if device.type != "cuda":
        calls[0]()
        return 1.0
    return gpu_timing.seconds(calls, gpu_timing.CudaStream(), _REPEATS)
