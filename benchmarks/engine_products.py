"""Time of the engine's matrix products beside every layout that torch and we have for them.

All projection matrices of a model's layers, one behind the other as in a step, so that the
weights come from memory. Ours are kept as the engine would keep them on this machine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_loops import take_turns
from runtime.model.config import ModelConfig
from runtime.model.layers import Linear, make_linear
from runtime.model.product_choice import RANK, ProductChoice
from runtime.model.product_timing import layer_shapes, measured_choice
from runtime.model.weights import free_memory_bytes

ROWS = (1, 8, 16, 64, 256)
ROUNDS = 9
_FEATURES = ("amx_bf16", "avx512_bf16")


def cpu_features() -> list[str]:
    """Features of this processor that decide which layout is fastest; empty where it is not
    told."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return [feature for feature in _FEATURES if feature in flags]


def product_figures(config: ModelConfig) -> tuple[dict[str, Any], dict[str, float]]:
    """Milliseconds by rows and layout, and what ours take over the best of the others."""
    choice = measured_choice(
        config,
        torch.bfloat16,
        torch.device("cpu"),
        16,
        free_bytes=free_memory_bytes(torch.device("cpu")),
        clock=time.perf_counter,
    )
    choices: dict[str, ProductChoice | None] = {"ours": choice} | {
        layout: ProductChoice(few=layout) for layout in RANK
    }
    shapes = layer_shapes(config) * config.num_layers
    maps = {name: [_linear(shape, kept) for shape in shapes] for name, kept in choices.items()}
    figures: dict[str, Any] = {"choice": None if choice is None else asdict(choice)}
    ratios: dict[str, float] = {}
    for rows in ROWS:
        inputs = {size: torch.randn(rows, size).to(torch.bfloat16) for _, size in shapes}
        calls = {name: _all_of(products, shapes, inputs) for name, products in maps.items()}
        with torch.inference_mode():
            timings = take_turns(calls, rounds=ROUNDS)
        figures[f"median_ms_{rows}"] = {
            name: round(1000 * timing.median, 2) for name, timing in timings.items()
        }
        best = min(timing.median for name, timing in timings.items() if name != "ours")
        ratios[f"products_over_best_{rows}"] = timings["ours"].median / best
    return figures, ratios


def _linear(shape: tuple[int, int], choice: ProductChoice | None) -> Linear:
    return make_linear(torch.ones(shape, dtype=torch.bfloat16), None, 16, choice)


def _all_of(
    products: Sequence[Linear], shapes: Sequence[tuple[int, int]], inputs: Mapping[int, Tensor]
) -> Callable[[], None]:
    def run() -> None:
        for product, (_, size) in zip(products, shapes, strict=True):
            product(inputs[size])

    return run
