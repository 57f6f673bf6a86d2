"""Speed of the GPU kernels: checked first, then measured against a copy in the same process.

    python -m benchmarks.gpu --out DIR
    python -m benchmarks.gpu --only PART [--rehearse]

Attention (decode, a batch of unequal lengths, verification of drafts, a shared prefix, keys and
values in fp8), whole steps of Qwen3-0.6B and 8B shapes with random weights, the draw, products in
fp8, experts, recorded steps, prefill behind contexts, copies of KV to host memory and back,
recurrent layers, the same steps by ``transformers``, and steps begun ahead. Writes DIR/gpu.json and
DIR/gpu.md after each part: a part that fails says so, and the others are measured all the same.
Where torch sees no GPU, it says so and exits with 0.

``benchmarks.gpu_plan`` says what is measured; ``gpu_cases``, ``gpu_kernels``, ``gpu_graphs``,
``gpu_moves``, ``gpu_peer`` and ``gpu_engine`` beside it how.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import (
    Wrong,
    check,
    copy_rate,
    measure_attention,
    measure_shared_prefix,
    measure_steps,
    measure_verify,
)
from benchmarks.gpu_experts import measure_experts
from benchmarks.gpu_graphs import measure_graphs, measure_verified_steps
from benchmarks.gpu_kernels import (
    measure_fp8_kv,
    measure_fp8_products,
    measure_sampling,
)
from benchmarks.gpu_moves import measure_prefill, measure_tiers
from benchmarks.gpu_peer import measure_peer
from benchmarks.gpu_plan import FULL, REHEARSAL, Plan
from benchmarks.gpu_recurrent import measure_recurrent
from benchmarks.report import Bar, report

Part = Callable[[float], list[dict[str, Any]]]
LARGE_KV_BYTES = 256_000_000
BAR_SHARE_OF_COPY = 0.85


def parts(plan: Plan, dtype: torch.dtype, device: torch.device) -> dict[str, Part]:
    """The measurements, in their order; each is given what a copy reaches."""
    return {
        "attention": lambda rate: measure_attention(plan, rate, dtype, device),
        "verify": lambda rate: measure_verify(plan, dtype, device),
        "shared_prefix": lambda rate: measure_shared_prefix(plan, dtype, device),
        "fp8_kv": lambda rate: measure_fp8_kv(plan, rate, dtype, device),
        "sampling": lambda rate: measure_sampling(plan, rate, device),
        "fp8_products": lambda rate: measure_fp8_products(plan, rate, dtype, device),
        "experts": lambda rate: measure_experts(plan, rate, dtype, device),
        "sweep": lambda rate: _sweep().measure_sweep(plan, dtype, device),
        "sweep_verify": lambda rate: _sweep().measure_sweep_verify(plan, dtype, device),
        "sweep_prefix": lambda rate: _sweep().measure_sweep_prefix(plan, dtype, device),
        "sweep_fp8": lambda rate: _sweep().measure_sweep_fp8(plan, dtype, device),
        "steps": lambda rate: measure_steps(plan, rate, dtype, device),
        "graphs": lambda rate: measure_graphs(plan, dtype, device),
        "verified_steps": lambda rate: measure_verified_steps(plan, dtype, device),
        "prefill": lambda rate: measure_prefill(plan, dtype, device),
        "tiers": lambda rate: measure_tiers(plan, dtype, device),
        "recurrent": lambda rate: measure_recurrent(plan, rate, device),
        "peer": lambda rate: measure_peer(plan, dtype, device, compiled=False),
        "peer_compiled": lambda rate: measure_peer(plan, dtype, device, compiled=True),
        "lookahead": lambda rate: _engine().measure_lookahead(plan, dtype, device),
    }


def _sweep() -> Any:
    """Loaded when its turn comes: it needs Triton."""
    return importlib.import_module("benchmarks.gpu_sweep")


def _engine() -> Any:
    """Loaded when its turn comes: an engine needs libraries that the kernels do without."""
    return importlib.import_module("benchmarks.gpu_engine")


def measure(
    plan: Plan,
    dtype: torch.dtype,
    device: torch.device,
    keep: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> dict[str, Any]:
    """All figures of ``plan``: rows by part, and under ``failed`` what became of the others.

    Args:
        keep: is called with what is there after each part.

    Raises:
        Wrong: attention disagrees with its reference.
    """
    torch.manual_seed(0)
    with torch.inference_mode():
        error = check(plan, dtype, device)
        rate = copy_rate(plan, device)
    figures: dict[str, Any] = {"relative_error": error, "copy_bytes_per_s": rate}
    figures |= {"failed": {}, "seconds": {}}
    for name, part in parts(plan, dtype, device).items():
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                figures[name] = part(rate)
        except Exception:
            figures[name] = []
            figures["failed"][name] = traceback.format_exc()
        figures["seconds"][name] = time.perf_counter() - began
        if device.type == "cuda":
            torch.cuda.empty_cache()
        keep(figures)
    return figures


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
    prefix = [row["faster_than_flat"] for row in figures["shared_prefix"]]
    verified = [
        row["over_decode"] for row in figures.get("verified_steps", ()) if row["queries"] <= 8
    ]

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
            value=prefix[-1] if prefix else None,
            op=">=",
            bar=2.2,
        ),
        Bar(name="verify_step_over_decode", value=max(verified, default=None), op="<=", bar=1.3),
    ]


def table(title: str, figures: dict[str, Any]) -> str:
    """The figures as a Markdown page."""
    lines = [f"# {title}", "", f"copy: {figures['copy_bytes_per_s'] / 1e12:.2f} TB/s"]
    for part, trace in figures["failed"].items():
        lines += ["", f"{part} failed: {trace.splitlines()[-1]}"]
    for part, rows in figures.items():
        if not isinstance(rows, list) or not rows:
            continue
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
    options.add_argument("--out", type=Path, metavar="DIR", help="for the results of all parts")
    options.add_argument(
        "--only", metavar="PART", help="measure this one and print one line of JSON"
    )
    options.add_argument(
        "--rehearse", action="store_true", help="small sizes, also without a GPU; no figure counts"
    )
    options.add_argument("--json", action="store_true", help="print one line of JSON")
    chosen = options.parse_args(arguments)
    if chosen.only:
        return only(chosen.only, rehearse=chosen.rehearse)
    if chosen.out is None:
        options.error("--out or --only is needed")
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU, so nothing was measured and the bars stay open")
        return 0
    device = torch.device("cuda")
    versions = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    versions["triton"] = str(importlib.import_module("triton").__version__)
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        figures = measure(
            FULL, torch.bfloat16, device, lambda some: write(chosen.out, versions, some)
        )
    except Wrong as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 1
    for part, trace in figures["failed"].items():
        print(f"{part} failed:\n{trace}", file=sys.stderr)
    code = report("gpu", versions | figures, bars(figures), as_json=chosen.json)
    return 1 if figures["failed"] else code


def only(name: str, *, rehearse: bool) -> int:
    """Check, measure one part, print its line. 1: it is wrong or fails, and the line says why."""
    plan, dtype, device = FULL, torch.bfloat16, torch.device("cuda")
    if rehearse and not torch.cuda.is_available():
        plan, dtype, device = REHEARSAL, torch.float32, torch.device("cpu")
    answer: dict[str, Any] = {"part": name, "rehearsal": rehearse, "device": device.type}
    began = time.perf_counter()
    torch.manual_seed(0)
    try:
        with torch.inference_mode():
            answer["copy_bytes_per_s"] = copy_rate(plan, device)
            answer["rows"] = parts(plan, dtype, device)[name](answer["copy_bytes_per_s"])
    except Exception:
        answer["failed"] = traceback.format_exc()
    print(json.dumps(answer | {"seconds": time.perf_counter() - began}))
    return 1 if "failed" in answer else 0


def write(folder: Path, versions: dict[str, str], figures: dict[str, Any]) -> None:
    """The figures so far, for programs and for people."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    title = f"{day}, {', '.join(f'{name} {value}' for name, value in versions.items())}"
    answer = {"date": day, **versions, **figures}
    (folder / "gpu.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(table(title, figures), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
