"""How near the engine's step comes to what a CPU allows.

Random models of 100M and 500M parameters, made here, in bfloat16. Decode at 1,024 tokens of
context through the whole engine (paged, scheduled, sampled; nothing drafted) beside a plain
eager decoder; prefill of 2,048 tokens as a share of the machine's own matrix rate; paging at
16k; matrix products beside each layout of the weights there is; attention beside reading what it
reads. Every bar but the two in seconds is a ratio of figures from this one run; some ask more of
a machine without matrix units (AMX), where torch has less of its own to offer. ``--parts`` and
``--sizes`` run less, and then only the bars of that are reported.
"""

import functools
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from benchmarks.engine_attention import CONTEXTS, TURNS, attention_figures
from benchmarks.engine_delta import delta_figures
from benchmarks.engine_loops import (
    BLOCK_SIZE,
    EngineLoop,
    RunnerLoop,
    Timing,
    as_served,
    fill_pool,
    gemm_rate,
    in_torch,
    load,
    prefill_flops,
    read_bandwidth,
    take_turns,
    write_model,
)
from benchmarks.engine_products import ROWS, cpu_features, product_figures
from benchmarks.plain_decoder import PlainDecoder
from benchmarks.report import Bar, parser, report
from runtime.model.config import ModelConfig
from runtime.model.runner import ModelRunner, available_cores, share_work

PARTS = (
    *("products", "attention", "delta", "decode", "prefill"),
    *("paging", "load", "start", "transformers"),
)
SIZES = ("100m", "500m")
CONTEXT = 1024
PREFILL = 2048
LONG_CONTEXT = 16384
LONG_BATCH = 4
ROUNDS = 40

WARM_START = """
from runtime.config import EngineConfig
from runtime.process.loading import load_engine
load_engine(EngineConfig(model="default", device="cpu"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A bar, and which part of the benchmark at which size measures it."""

    name: str
    part: str
    size: str | None
    op: Literal["<=", ">="]
    bar: float
    bar_with_amx: float


_TABLE: tuple[
    tuple[str, str, str | None, Literal["<=", ">="], float | tuple[float, float]], ...
] = (
    *((f"products_over_best_{rows}", "products", "100m", "<=", 1.1) for rows in ROWS),
    *((f"attention_over_read_{TURNS}x{name}", "attention", "100m", "<=", 2.0) for name in CONTEXTS),
    ("delta_decode_over_copy", "delta", None, "<=", 2.0),
    ("commit_over_copy", "delta", None, "<=", 2.5),
    ("delta_prefill_over_reference", "delta", None, "<=", 0.12),
    ("decode_b1_best_100m", "decode", "100m", ">=", 1.0),
    ("decode_b8_best_100m", "decode", "100m", ">=", (1.2, 1.0)),
    ("decode_b1_best_500m", "decode", "500m", ">=", 1.0),
    ("decode_b8_best_500m", "decode", "500m", ">=", (1.2, 1.0)),
    ("decode_b1_100m_int8", "decode", "100m", ">=", 1.1),
    ("decode_b1_100m_int4", "decode", "100m", ">=", 1.25),
    ("prefill_2048_share_100m", "prefill", "100m", ">=", (0.6, 0.45)),
    ("prefill_2048_share_500m", "prefill", "500m", ">=", (0.6, 0.45)),
    ("paged_over_dense", "paging", "100m", "<=", 1.15),
    ("load_seconds_500m", "load", "500m", "<=", 5.0),
    ("warm_start_seconds_shipped", "start", None, "<=", 3.0),
)
"""A pair of bars is for machines without matrix units, and for those with them."""
DEMANDS = tuple(
    Demand(
        name=name,
        part=part,
        size=size,
        op=op,
        bar=bar[0] if isinstance(bar, tuple) else bar,
        bar_with_amx=bar[1] if isinstance(bar, tuple) else bar,
    )
    for name, part, size, op, bar in _TABLE
)


def bars(
    values: Mapping[str, float], parts: Sequence[str], sizes: Sequence[str], *, amx: bool
) -> list[Bar]:
    """The bars of what was asked for; one that should be there and is not has no value."""
    return [
        Bar(
            name=demand.name,
            value=values.get(demand.name),
            op=demand.op,
            bar=demand.bar_with_amx if amx else demand.bar,
        )
        for demand in DEMANDS
        if demand.part in parts and (demand.size is None or demand.size in sizes)
    ]


def decode_figures(
    size: str, folder: Path, config: ModelConfig, threads: int, bandwidth: float
) -> tuple[dict[str, Any], dict[str, float]]:
    """Tokens per second at batch 1 and 8, and the ratios to the best of the plain decoders; those
    to each of them are figures."""
    figures: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for batch in (1, 8):
        kinds = ("none", "int8", "int4") if (size, batch) == ("100m", 1) else ("none",)
        blocks = batch * (2 * CONTEXT // BLOCK_SIZE)
        runners = {
            kind: load(folder, num_blocks=blocks, threads=threads, quantization=kind)
            for kind in kinds
        }
        timings = time_decodes(runners, config, batch, threads=threads, rounds=ROUNDS)
        ours = timings["none"].best
        kv_bytes = 4 * batch * CONTEXT * config.layers[0].mixer.kv_size * config.num_layers
        step_bytes = runners["none"].model.decoder.step_weight_bytes + kv_bytes
        figures[f"b{batch}"] = {
            name: {
                "tokens_per_s": round(batch / timing.best, 1),
                "median_tokens_per_s": round(batch / timing.median, 1),
            }
            for name, timing in timings.items()
        } | {"share_of_bandwidth": round(step_bytes / ours / bandwidth, 3)}
        theirs = {name: taken.best for name, taken in timings.items() if name not in kinds}
        figures[f"b{batch}"] |= {
            f"over_{name}": round(seconds / ours, 3) for name, seconds in theirs.items()
        }
        ratios[f"decode_b{batch}_best_{size}"] = min(theirs.values()) / ours
        for kind in kinds[1:]:
            ratios[f"decode_b{batch}_{size}_{kind}"] = ours / timings[kind].best
    return figures, ratios


def time_decodes(
    runners: Mapping[str, ModelRunner],
    config: ModelConfig,
    batch: int,
    *,
    threads: int,
    rounds: int,
) -> dict[str, Timing]:
    """A step of each engine, of the plain decoder and of its faster variants, in turns."""
    calls: dict[str, Callable[[], object]] = {}
    for kind, runner in runners.items():
        loop = EngineLoop(runner, seed=batch)
        loop.start_decoding(batch=batch, context=CONTEXT)
        calls[kind] = as_served(runner, threads, loop.step)
    tokens = torch.full((batch, 1), 5)
    packs = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for name in ("plain", "grouped", "packed") if packs else ("plain", "grouped"):
        yardstick = PlainDecoder(
            config, batch=batch, capacity=CONTEXT, dtype=torch.bfloat16, grouped=name != "plain"
        )
        if name == "packed":
            yardstick.pack()
        step = functools.partial(yardstick.step, tokens, CONTEXT - 1)
        calls[name] = in_torch(threads, step)
    return take_turns(calls, rounds=rounds)


def prefill_figures(
    folder: Path, config: ModelConfig, threads: int
) -> tuple[dict[str, float], float]:
    """Tokens per second over 2,048 new tokens, and the share of the matrix rate."""
    blocks = 8 * PREFILL // BLOCK_SIZE
    runner = load(folder, num_blocks=blocks, threads=threads, quantization="none")
    loop = EngineLoop(runner, seed=3)
    rates = []
    best = float("inf")
    prefill = as_served(runner, threads, lambda: loop.prefill(PREFILL))
    for _ in range(3):
        share_work(threads)
        rates.append(gemm_rate(config, PREFILL))
        timing = take_turns({"prefill": prefill}, rounds=1)["prefill"]
        best = min(best, timing.best)
    achieved = prefill_flops(config, PREFILL) / best
    figures = {
        "tokens_per_s": round(PREFILL / best, 1),
        "gflop_per_s": round(achieved / 1e9, 1),
        "gemm_gflop_per_s": round(max(rates) / 1e9, 1),
    }
    return figures, achieved / max(rates)


def paging_figures(folder: Path, threads: int) -> tuple[dict[str, float], float]:
    """A step at 16k, batch 4: KV in one piece per sequence, and in blocks strewn at random."""
    blocks = LONG_BATCH * LONG_CONTEXT // BLOCK_SIZE
    runner = load(folder, num_blocks=blocks, threads=threads, quantization="none")
    fill_pool(runner)
    dense = RunnerLoop(runner, batch=LONG_BATCH, context=LONG_CONTEXT, scattered=False)
    paged = RunnerLoop(runner, batch=LONG_BATCH, context=LONG_CONTEXT, scattered=True)
    calls = {"dense": dense.step, "paged": paged.step}
    served = {name: as_served(runner, threads, call) for name, call in calls.items()}
    timings = take_turns(served, rounds=10)
    figures = {f"{name}_step_ms": round(1000 * t.best, 2) for name, t in timings.items()}
    return figures, timings["paged"].best / timings["dense"].best


def transformers_figures(folder: Path) -> dict[str, float]:
    """``generate`` of transformers on the same folder, for orientation."""
    library_log: Any = transformers.logging
    library_log.set_verbosity_error()
    library_log.disable_progress_bar()
    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.bfloat16)
    prompt = torch.randint(0, 256, (1, CONTEXT))

    def steps(batch: int, count: int) -> list[float]:
        """Seconds of the prompt and of each token after the first."""
        prompts = prompt.expand(batch, -1)
        ends = [time.perf_counter()]

        def note(tokens: Tensor, *_: object, **__: object) -> Tensor:
            ends.append(time.perf_counter())
            return torch.zeros(len(tokens), dtype=torch.bool)

        with torch.inference_mode():
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        return [later - earlier for earlier, later in itertools.pairwise(ends)]

    steps(1, 2)
    one, eight = [steps(1, 25), steps(1, 25)], steps(8, 17)
    return {
        "decode_b1_tokens_per_s": round(1 / min(min(taken[1:]) for taken in one), 1),
        "decode_b8_tokens_per_s": round(8 / min(eight[1:]), 1),
        "prefill_1024_tokens_per_s": round(CONTEXT / min(taken[0] for taken in one), 1),
    }


def load_seconds(folder: Path, threads: int) -> float:
    """Best of three loads of a folder whose files the system has cached."""
    return min(
        load(folder, num_blocks=8, threads=threads, quantization="none").model.load_s
        for _ in range(3)
    )


def warm_start_seconds() -> float:
    """From starting a process to an engine that could take a turn, best of three."""
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", WARM_START], check=True)
        taken.append(time.perf_counter() - started)
    return min(taken)


def measure(
    parts: Sequence[str], sizes: Sequence[str], threads: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Figures of all kinds, and the values that bars are put to."""
    bandwidth = read_bandwidth()
    figures: dict[str, Any] = {
        "threads": threads,
        "torch": torch.__version__,
        "cpu_features": cpu_features(),
        "read_gb_per_s": round(bandwidth / 1e9, 1),
    }
    values: dict[str, float] = {}
    if "start" in parts:
        values["warm_start_seconds_shipped"] = warm_start_seconds()
    if "delta" in parts:
        share_work(threads)
        figures["delta"], ratios = delta_figures()
        values |= ratios
    with tempfile.TemporaryDirectory() as root:
        for size in sizes:
            folder = Path(root) / size
            config = write_model(folder, size)
            here = figures[size] = dict[str, Any]()
            share_work(threads)
            if "load" in parts:
                values[f"load_seconds_{size}"] = load_seconds(folder, threads)
            share_work(threads)
            if "products" in parts and size == "100m":
                here["products"], ratios = product_figures(config)
                values |= ratios
            if "attention" in parts and size == "100m":
                here["attention"], ratios = attention_figures(config)
                values |= ratios
            if "decode" in parts:
                here["decode"], ratios = decode_figures(size, folder, config, threads, bandwidth)
                values |= ratios
            if "prefill" in parts:
                here["prefill_2048"], share = prefill_figures(folder, config, threads)
                values[f"prefill_2048_share_{size}"] = share
            share_work(threads)
            if "transformers" in parts:
                here["transformers"] = transformers_figures(folder)
            if "paging" in parts and size == "100m":
                here["at_16k_b4"], values["paged_over_dense"] = paging_figures(folder, threads)
    return figures, values


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=available_cores())
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="run only these")
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES, help="models to run")
    arguments = options.parse_args()
    share_work(arguments.threads)
    figures, values = measure(arguments.parts, arguments.sizes, arguments.threads)
    amx = "amx_bf16" in figures["cpu_features"]
    wanted = bars(values, arguments.parts, arguments.sizes, amx=amx)
    return report("engine", figures, wanted, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
