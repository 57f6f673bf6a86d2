"""What the GPU kernels reach: checked first, then measured against a copy in the same process.

    python -m benchmarks.gpu --out DIR

Attention (decode, a batch of unequal lengths, verification of drafts, a shared prefix), then
whole steps of Qwen3-0.6B and 8B shapes with random weights. Writes DIR/gpu.json and
DIR/gpu.md. Where torch sees no GPU, it says so and exits with 0.

``benchmarks.gpu_plan`` says what is measured, ``benchmarks.gpu_cases`` how.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
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
from benchmarks.gpu_plan import FULL, Plan
from benchmarks.report import Bar, report

LARGE_KV_BYTES = 256_000_000
BAR_SHARE_OF_COPY = 0.85


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
