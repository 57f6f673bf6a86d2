"""What the GPU kernels reach: checked first, then measured against a copy in the same process.

    python -m benchmarks.gpu --out DIR

Attention (decode, a batch of unequal lengths, verification of drafts, a shared prefix), then
whole steps of Qwen3-0.6B and 8B shapes with random weights. Writes DIR/gpu.json and
DIR/gpu.md. Where torch sees no GPU, it says so and exits with 0.

A call is timed as a CUDA graph that is replayed: medians of events, kernels only. Calls in
a graph go round several pools, so that the second-level cache does not serve them.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.report import Bar, report
from kernels.attention import paged_attention, paged_attention_reference
from kernels.paged_layout import PagedLayout
from runtime.batch import SequenceInput, StepBatch
from runtime.kv_pool import KVPool, block_bytes
from runtime.models.config import ModelConfig, RopeConfig
from runtime.models.decoder import Decoder, StepInputs

BLOCK_SIZE = 16
LARGE_KV_BYTES = 256_000_000
BAR_SHARE_OF_COPY = 0.85
SHARE_OF_FREE_MEMORY = 0.9

QWEN3_06B = ModelConfig(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    max_context_tokens=40960,
    rope=RopeConfig(theta=1000000.0),
    tie_embeddings=True,
    qk_norm=True,
)
QWEN3_8B = ModelConfig(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=4096,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    max_context_tokens=40960,
    rope=RopeConfig(theta=1000000.0),
    qk_norm=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    heads: int
    kv_heads: int
    head_dim: int
    checks: tuple[tuple[tuple[int, int], ...], ...]
    """Batches that must agree with the reference; (context, new tokens) of each sequence."""
    attention: tuple[tuple[str, tuple[int, ...]], ...]
    """Decodes: name and context lengths."""
    verify: tuple[int, int, tuple[int, ...]]
    """Sequences, context and the numbers of query tokens."""
    shared_prefix: tuple[int, int, int]
    """Sequences, tokens they share, tokens each has of its own."""
    models: tuple[tuple[str, ModelConfig], ...]
    steps: tuple[tuple[int, int], ...]
    """Whole steps: (sequences, context)."""
    copy_bytes: int
    round_bytes: int
    """KV that calls go round before they meet the same pool again."""


FULL = Plan(
    heads=32,
    kv_heads=8,
    head_dim=128,
    checks=(
        ((4096, 1), (17, 1), (1, 1), (30000, 1)),
        ((3000, 5), (40, 32), (9, 9)),
        ((2048, 2048), (5000, 300)),
        ((5000, 1), (700, 500), (90, 4)),
    ),
    attention=(
        ("B1 1k", (1024,)),
        ("B1 4k", (4096,)),
        ("B1 32k", (32768,)),
        ("B1 128k", (131072,)),
        ("B4 32k", (32768,) * 4),
        ("B16 4k", (4096,) * 16),
        ("B32 4k", (4096,) * 32),
        ("B64 4k", (4096,) * 64),
        ("B64 12k", (12288,) * 64),
        ("15 x 512 + 64k", (512,) * 15 + (65536,)),
    ),
    verify=(16, 8192, (1, 2, 4, 8, 16, 32)),
    shared_prefix=(64, 8192, 4096),
    models=(("Qwen3-0.6B", QWEN3_06B), ("Qwen3-8B", QWEN3_8B)),
    steps=tuple((batch, context) for context in (4096, 32768) for batch in (1, 16, 64)),
    copy_bytes=4 << 30,
    round_bytes=512 << 20,
)


class Wrong(Exception):
    """A kernel disagrees with its reference: there is nothing to measure."""


class RandomSource:
    """Weights drawn on the device: their speed matters here, their values do not."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        return weight.normal_(std=shape[-1] ** -0.5)


def seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Median time of one of ``calls``, which run one after another.

    On a GPU in a captured graph; on a CPU, where only the plumbing is of interest, plainly.
    """
    if device.type != "cuda":
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) / len(calls)
    cuda: Any = torch.cuda  # its streams and events have no types
    aside = cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(25):
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000)
    return statistics.median(times[5:]) / len(calls)


def make_layout(
    shapes: Sequence[tuple[int, int]], num_blocks: int, device: torch.device
) -> PagedLayout:
    return make_batch(shapes, num_blocks).layout(device)


def make_batch(shapes: Sequence[tuple[int, int]], num_blocks: int) -> StepBatch:
    """(context, new tokens) of each sequence, over blocks in random order."""
    order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    inputs, at = [], 0
    for length, new in shapes:
        count = -(-length // BLOCK_SIZE)
        inputs.append(
            SequenceInput(
                tokens=np.zeros(new, dtype=np.int32),
                start=length - new,
                block_table=order[at : at + count],
                num_logits=1,
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
    """Bytes read and written per second by a copy on the device."""
    source = torch.zeros(plan.copy_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * plan.copy_bytes / seconds([lambda: target.copy_(source)], device)


def attention_calls(
    plan: Plan,
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[list[Callable[[], object]], int]:
    """Calls that go round pools of KV, and the bytes of KV one of them reads."""
    num_blocks = blocks_for(shapes)
    layout = make_layout(shapes, num_blocks, device)
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
    kv = torch.empty(shape, dtype=dtype, device=device).normal_()
    queries = torch.randn(batch, plan.heads, 1, plan.head_dim, device=device).to(dtype)
    return [lambda: functional.scaled_dot_product_attention(queries, kv[0], kv[1], enable_gqa=True)]


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


def measure_shared_prefix(
    plan: Plan, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """A decode of sequences with a common prefix: read once, and read by each.

    Raises:
        Wrong: the two disagree.
    """
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
    once = StepBatch.build(inputs, BLOCK_SIZE).layout(device)
    pool = make_pool(plan, num_blocks, dtype, device)
    queries = torch.randn(batch, plan.heads, plan.head_dim, device=device).to(dtype)
    scale = plan.head_dim**-0.5

    def call(layout: PagedLayout) -> Tensor:
        return paged_attention(queries, pool[0], pool[1], layout, scale=scale, window=None)

    flat = replace(once, shared=None)
    error = float((call(once).float() - call(flat).float()).norm() / call(flat).float().norm())
    if once.shared is None or not error <= max(torch.finfo(dtype).eps, 1e-6):
        raise Wrong(f"a prefix read once is off by {error:.2g} of what reading it by each gives")
    taken = {"flat": seconds([lambda: call(flat)], device)}
    taken["once"] = seconds([lambda: call(once)], device)
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


def measure(plan: Plan, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """All figures of ``plan``.

    Raises:
        Wrong: a kernel disagrees with its reference.
    """
    with torch.inference_mode():
        error = check(plan, dtype, device)
        rate = copy_rate(plan, device)
        return {
            "relative_error": error,
            "copy_bytes_per_s": rate,
            "attention": measure_attention(plan, rate, dtype, device),
            "verify": measure_verify(plan, dtype, device),
            "shared_prefix": measure_shared_prefix(plan, dtype, device),
            "steps": measure_steps(plan, rate, dtype, device),
        }


def bars(figures: dict[str, Any]) -> list[Bar]:
    """The bars, as far as the figures have a value for them."""
    attention = {row["case"]: row for row in figures["attention"]}
    large = [
        row["share_of_copy"]
        for row in figures["attention"]
        if row["kv_bytes"] >= LARGE_KV_BYTES and "sdpa_dense_us" in row
    ]
    short = [attention[case]["us"] for case in ("B1 1k", "B1 4k") if case in attention]
    steps = {(row["model"], row["batch"], row["context"]): row for row in figures["steps"]}

    def step(batch: int) -> float | None:
        ms: float | None = steps.get(("Qwen3-8B", batch, 4096), {}).get("ms")
        return ms

    return [
        Bar(
            name="large_kv_share_of_copy",
            value=min(large, default=None),
            op=">=",
            bar=BAR_SHARE_OF_COPY,
        ),
        Bar(name="b1_up_to_4k_us", value=max(short, default=None), op="<=", bar=12),
        Bar(name="step_8b_b1_4k_ms", value=step(1), op="<=", bar=5.2),
        Bar(name="step_8b_b64_4k_ms", value=step(64), op="<=", bar=15.6),
        Bar(
            name="shared_prefix_over_flat",
            value=figures["shared_prefix"][-1]["faster_than_flat"],
            op=">=",
            bar=2.2,
        ),
    ]


def table(title: str, figures: dict[str, Any]) -> str:
    """The figures as a Markdown page."""
    lines = [f"# {title}", "", f"copy: {figures['copy_bytes_per_s'] / 1e12:.2f} TB/s"]
    for part in ("attention", "verify", "shared_prefix", "steps"):
        rows = figures[part]
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines += ["", f"## {part}", "", f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
        lines += [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the results")
    options.add_argument("--json", action="store_true", help="print one line of JSON")
    chosen = options.parse_args(arguments)
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU, so nothing was measured and the bars stay open")
        return 0
    device = torch.device("cuda")
    try:
        figures = measure(FULL, torch.bfloat16, device)
    except Wrong as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 1
    versions = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    versions["triton"] = str(importlib.import_module("triton").__version__)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    chosen.out.mkdir(parents=True, exist_ok=True)
    title = f"{day}, {', '.join(f'{name} {value}' for name, value in versions.items())}"
    answer = {"date": day, **versions, **figures}
    (chosen.out / "gpu.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    (chosen.out / "gpu.md").write_text(table(title, figures), encoding="utf-8")
    return report("gpu", versions | figures, bars(figures), as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
