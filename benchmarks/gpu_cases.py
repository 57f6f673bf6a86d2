"""The GPU benchmark's cases: kernels checked against their references, then timed.

A call is timed as ``benchmarks.gpu_timing`` says: medians of events, kernels only. Calls go
round several pools, so that the second-level cache does not serve them.
"""

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import gpu_timing
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from kernels.attention import paged_attention, paged_attention_reference
from kernels.paged_layout import PagedLayout
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.decoder import Decoder, StepInputs
from runtime.model.kv_pool import KVPool, block_bytes

SHARE_OF_FREE_MEMORY = 0.9


class Wrong(Exception):
    """A kernel disagrees with its reference: there is nothing to measure."""


class RandomSource:
    """Weights drawn on the device: their speed matters here, their values do not."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> Tensor:
        dtype = torch.float32 if wide else self._dtype
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype, device=self._device)
        weight = torch.empty(shape, dtype=dtype, device=self._device)
        return weight.normal_(std=shape[-1] ** -0.5)

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        return self.tensor(name, shape)


def seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Median time of one of ``calls``, which run one after another.

    On a GPU as ``benchmarks.gpu_timing`` says; on a CPU, where only the plumbing is of
    interest, plainly.
    """
    if device.type != "cuda":
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) / len(calls)
    return gpu_timing.seconds(calls, gpu_timing.CudaStream())


def wall_seconds(call: Callable[[], object], device: torch.device, repeats: int = 9) -> float:
    """Median time of ``call`` by the clock, what the host does in it included."""
    times: list[float] = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[repeats // 3 :])


def make_layout(
    shapes: Sequence[tuple[int, int]], num_blocks: int, device: torch.device
) -> PagedLayout:
    return make_batch(shapes, num_blocks).layout(device)


def make_batch(
    shapes: Sequence[tuple[int, int]], num_blocks: int, *, all_logits: bool = False
) -> StepBatch:
    """(context, new tokens) of each sequence, over blocks in random order.

    Args:
        all_logits: of all new tokens, as for drafts, and not of the last alone.
    """
    order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    inputs, at = [], 0
    for length, new in shapes:
        count = -(-length // BLOCK_SIZE)
        inputs.append(
            SequenceInput(
                tokens=np.zeros(new, dtype=np.int32),
                start=length - new,
                block_table=order[at : at + count],
                num_logits=new if all_logits else 1,
            )
        )
        at += count
    return StepBatch.build(inputs, BLOCK_SIZE)


def blocks_for(shapes: Sequence[tuple[int, int]]) -> int:
    return sum(-(-length // BLOCK_SIZE) for length, _ in shapes)


def make_pool(plan: Plan, num_blocks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2, blocks, kv_heads, block_size, head_dim] of random keys and values."""
    shape = 2, num_blocks, plan.kv_heads, BLOCK_SIZE, plan.head_dim
    return torch.empty(shape, dtype=dtype, device=device).normal_()


def check(plan: Plan, dtype: torch.dtype, device: torch.device) -> float:
    """Largest error of attention over ``plan.checks``, relative to the reference's norm.

    Raises:
        Wrong: it is above what rounding to ``dtype`` explains.
    """
    worst = 0.0
    for shapes in plan.checks:
        num_blocks = blocks_for(shapes) + 1
        pool = make_pool(plan, num_blocks, dtype, device)
        layout = make_layout(shapes, num_blocks, device)
        rows = sum(new for _, new in shapes)
        queries = torch.randn(rows, plan.heads, plan.head_dim, device=device).to(dtype)
        scale = plan.head_dim**-0.5
        actual = paged_attention(queries, pool[0], pool[1], layout, scale=scale, window=None)
        wide = queries.float(), pool[0].float(), pool[1].float()
        expected = paged_attention_reference(*wide, layout, scale=scale, window=None)
        error = float((actual.float() - expected).norm() / expected.norm())
        if not error <= max(torch.finfo(dtype).eps, 1e-6):
            raise Wrong(f"attention of {shapes} is off by {error:.2g} of the reference's norm")
        worst = max(worst, error)
    return worst


def copy_rate(plan: Plan, device: torch.device) -> float:
    """Bytes read and written per second by a kernel that changes a sign on the way: a copy by name
    becomes a node of the graph that reaches two thirds of that (H200, 2.7 of 4.2 TB/s)."""
    source = torch.randn(plan.copy_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * plan.copy_bytes / seconds([lambda: torch.neg(source, out=target)], device)


def attention_calls(
    plan: Plan,
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    layout: PagedLayout | None = None,
) -> tuple[list[Callable[[], object]], int]:
    """Calls that go round pools of KV, and the bytes of KV one of them reads."""
    num_blocks = blocks_for(shapes)
    layout = layout or make_layout(shapes, num_blocks, device)
    per_token = 2 * plan.kv_heads * plan.head_dim * dtype.itemsize
    size = sum(length for length, _ in shapes) * per_token
    pools = [
        make_pool(plan, num_blocks, dtype, device) for _ in range(max(1, plan.round_bytes // size))
    ]
    rows = sum(new for _, new in shapes)
    queries = torch.randn(rows, plan.heads, plan.head_dim, device=device).to(dtype)
    scale = plan.head_dim**-0.5

    def call_on(pool: Tensor) -> Callable[[], object]:
        return lambda: paged_attention(queries, pool[0], pool[1], layout, scale=scale, window=None)

    return [call_on(pool) for pool in pools], size


def dense_calls(
    plan: Plan, batch: int, context: int, dtype: torch.dtype, device: torch.device
) -> list[Callable[[], object]]:
    """The same decode by torch's SDPA over keys and values that lie end to end."""
    shape = 2, batch, plan.kv_heads, context, plan.head_dim
    size = 2 * batch * plan.kv_heads * context * plan.head_dim * dtype.itemsize
    queries = torch.randn(batch, plan.heads, 1, plan.head_dim, device=device).to(dtype)

    def call_on(kv: Tensor) -> Callable[[], object]:
        attend = functional.scaled_dot_product_attention
        return lambda: attend(queries, kv[0], kv[1], enable_gqa=True)

    return [
        call_on(torch.empty(shape, dtype=dtype, device=device).normal_())
        for _ in range(max(1, plan.round_bytes // size))
    ]


def flashinfer_calls(
    plan: Plan, batch: int, context: int, dtype: torch.dtype, device: torch.device
) -> list[Callable[[], object]]:
    """The same decode by flashinfer over pages like ours."""
    flashinfer: Any = importlib.import_module("flashinfer")
    pages = -(-context // BLOCK_SIZE)
    pool = make_pool(plan, batch * pages, dtype, device)
    order = torch.randperm(batch * pages, device=device).to(torch.int32)
    starts = torch.arange(batch + 1, device=device, dtype=torch.int32) * pages
    last = torch.full_like(starts[1:], (context - 1) % BLOCK_SIZE + 1)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, kv_layout="HND")
    heads = plan.heads, plan.kv_heads, plan.head_dim, BLOCK_SIZE
    wrapper.plan(starts, order, last, *heads, q_data_type=dtype, kv_data_type=dtype)
    queries = torch.randn(batch, plan.heads, plan.head_dim, device=device).to(dtype)
    return [lambda: wrapper.run(queries, (pool[0], pool[1]))]


def measure_attention(
    plan: Plan, rate: float, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    rows = []
    for name, lengths in plan.attention:
        calls, size = attention_calls(plan, [(length, 1) for length in lengths], dtype, device)
        taken = seconds(calls, device)
        row = {
            "case": name,
            "kv_bytes": size,
            "us": taken * 1e6,
            "share_of_copy": size / taken / rate,
        }
        del calls
        if len(set(lengths)) == 1:
            case = plan, len(lengths), lengths[0], dtype, device
            row["sdpa_dense_us"] = seconds(dense_calls(*case), device) * 1e6
            if importlib.util.find_spec("flashinfer") is not None:
                row["flashinfer_us"] = seconds(flashinfer_calls(*case), device) * 1e6
        rows.append(row)
    return rows


def measure_verify(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    batch, context, counts = plan.verify
    rows: list[dict[str, Any]] = []
    for count in counts:
        calls, _ = attention_calls(plan, [(context, count)] * batch, dtype, device)
        rows.append({"queries": count, "us": seconds(calls, device) * 1e6})
    for row in rows:
        row["over_decode"] = row["us"] / rows[0]["us"]
    return rows


def shared_prefix_case(
    plan: Plan, dtype: torch.dtype, device: torch.device, *, read_once: bool = True
) -> tuple[list[Callable[[], Tensor]], PagedLayout]:
    """A decode of sequences with a common prefix: a call that reads it once, or for each."""
    batch, prefix, own = plan.shared_prefix
    shared = prefix // BLOCK_SIZE
    each = -(-own // BLOCK_SIZE)
    num_blocks = shared + batch * each
    order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    inputs = [
        SequenceInput(
            tokens=np.zeros(1, dtype=np.int32),
            start=prefix + own - 1,
            block_table=np.concatenate((order[:shared], order[shared + each * index :][:each])),
            num_logits=1,
        )
        for index in range(batch)
    ]
    layout = StepBatch.build(inputs, BLOCK_SIZE).layout(device)
    if layout.shared is None:
        raise Wrong("no prefix was found that several sequences share")
    if not read_once:
        layout = replace(layout, shared=None)
    torch.manual_seed(1)
    pool = make_pool(plan, num_blocks, dtype, device)
    queries = torch.randn(batch, plan.heads, plan.head_dim, device=device).to(dtype)
    scale = plan.head_dim**-0.5

    def call() -> Tensor:
        return paged_attention(queries, pool[0], pool[1], layout, scale=scale, window=None)

    return [call], layout


def measure_shared_prefix(
    plan: Plan, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """A decode of sequences with a common prefix: read once, and read by each.

    Raises:
        Wrong: the two disagree.
    """
    taken, found = {}, {}
    for way, read_once in (("flat", False), ("once", True)):
        calls, _ = shared_prefix_case(plan, dtype, device, read_once=read_once)
        found[way] = calls[0]().float()
        taken[way] = seconds(calls, device)
    error = float((found["once"] - found["flat"]).norm() / found["flat"].norm())
    if not error <= max(torch.finfo(dtype).eps, 1e-6):
        raise Wrong(f"a prefix read once is off by {error:.2g} of what reading it by each gives")
    return [
        {"way": way, "us": value * 1e6, "faster_than_flat": taken["flat"] / value}
        for way, value in taken.items()
    ]


def step_seconds(
    decoder: Decoder, batch: int, context: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Time of one decode of ``batch`` sequences, from token ids to logits."""
    shapes = [(context, 1)] * batch
    pool = KVPool(
        decoder.config,
        num_blocks=blocks_for(shapes),
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=device,
    )
    for index in range(decoder.config.num_layers):
        for part in pool.layer(index):
            part.normal_()
    step = make_batch(shapes, pool.num_blocks)
    inputs = StepInputs(
        token_ids=torch.from_numpy(step.token_ids).to(device),
        positions=torch.from_numpy(step.positions).to(device),
        slots=torch.from_numpy(step.slots).to(device),
        logit_rows=torch.from_numpy(step.logit_rows).to(device),
        highest_position=context - 1,
        layout=step.layout(device),
    )
    return seconds([lambda: decoder.forward(inputs, pool)], device)


def measure_steps(
    plan: Plan, rate: float, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, config in plan.models:
        decoder = Decoder(config, RandomSource(dtype, device), dtype, device)
        for batch, context in plan.steps:
            row: dict[str, Any] = {"model": name, "batch": batch, "context": context}
            blocks = blocks_for([(context, 1)] * batch)
            size = blocks * block_bytes(config, BLOCK_SIZE, dtype)
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else size * 2
            if size > SHARE_OF_FREE_MEMORY * free:
                rows.append(row | {"skipped": f"{size / 1e9:.0f} GB of KV do not fit"})
                continue
            taken = step_seconds(decoder, batch, context, dtype, device)
            total = decoder.step_weight_bytes + size
            rows.append(row | {"ms": taken * 1e3, "share_of_copy": total / taken / rate})
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return rows
