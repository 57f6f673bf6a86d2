"""A model that several ranks compute: what each holds, what steps tell the others, what sums cost.

    python -m benchmarks.ranks --json

``random:qwen3-100m`` at 1, 2 and 4 ranks, as processes with a thread each over gloo.
``weights_per_rank`` and ``kv_per_rank``: of what one rank alone holds, at 2 ranks and at 2 and 4.
``plan_bytes``: the message of a step of eight decodes at 2,000 tokens. ``sums_per_layer``: in such
a step. ``one_rank_over_before``: a step of a model that one rank computes, by ``forward`` and as it
was called before there were ranks, in turns. Seconds of a step and the share of sums in them have
no bar: four ranks on two cores show that the order is right, not how long it takes. ``--device
cuda``: over NCCL, on as many GPUs as there are; ``one_rank_over_before`` compares recorded steps
with others there, and says nothing.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.report import Bar, parser, report
from runtime.config import EngineConfig
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.rank_link import RankLink
from runtime.model.runner import ModelRunner, load_runner
from runtime.process.rank_processes import new_meeting_folder, start_rank_processes
from runtime.process.ranks import lead
from runtime.process.step_channel import StepOrder, encode_step

MODEL = "random:qwen3-100m"
DECODES, CONTEXT, BLOCK = 8, 2000, 16
ROUNDS, STEPS = 5, 20
BARS = {
    "weights_per_rank_2": ("<=", 0.72),
    "kv_per_rank_2": ("<=", 0.5),
    "kv_per_rank_4": ("<=", 0.25),
    "plan_bytes": ("<=", 5 * 1024.0),
    "sums_per_layer": ("<=", 2.0),
    "one_rank_over_before": ("<=", 1.03),
}


@contextmanager
def loaded(model: str, ranks: int, dtype: str, device: str) -> Iterator[ModelRunner]:
    """Rank 0's runner; the others are processes."""
    config = EngineConfig(
        model=model,
        dtype=dtype,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        threads=1,
        tensor_parallel=ranks,
        block_size=BLOCK,
        num_blocks=DECODES * -(-CONTEXT // BLOCK),
    )
    folder = new_meeting_folder() if ranks > 1 else None
    processes = start_rank_processes(config, "text", folder)
    link: RankLink | None = None
    if processes is not None:
        link = lead(processes, config, lambda stage: None)
    runner = load_runner(config, ranks=link)
    try:
        yield runner
    finally:
        runner.close()


def decodes(runner: ModelRunner) -> StepBatch:
    """A step of eight decodes behind long contexts that nobody has written."""
    each = -(-CONTEXT // BLOCK)
    inputs = [
        SequenceInput(
            tokens=np.array([number], dtype=np.int32),
            start=CONTEXT - 1,
            block_table=np.arange(number * each, (number + 1) * each, dtype=np.int32),
            num_logits=1,
        )
        for number in range(DECODES)
    ]
    return StepBatch.build(inputs, runner.block_size)


def step_figures(runner: ModelRunner) -> dict[str, float]:
    """Seconds of a step, the share of sums in it, and how many these are for a layer."""
    batch, link = decodes(runner), runner.model.ranks
    runner.pool.blocks.zero_()
    runner.forward(batch)
    sums = 0 if link is None else link.num_sums
    runner.pop_rank_wait_s()
    seconds, waited = [], 0.0
    for _ in range(STEPS):
        began = time.perf_counter()
        runner.forward(batch)[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - began)
        waited += runner.pop_rank_wait_s()
    layers = STEPS * runner.model.config.num_layers
    return {
        "step_s": statistics.median(seconds),
        "share_of_sums": waited / sum(seconds),
        "sums_per_layer": 0.0 if link is None else (link.num_sums - sums) / layers,
    }


def one_rank_over_before(runner: ModelRunner) -> float:
    """The median of five rounds, in which both ways take turns step by step."""
    batch, ratios = decodes(runner), []
    for _ in range(ROUNDS):
        taken: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * STEPS):
            began = time.perf_counter()
            step = runner.forward if number % 2 else runner.run_as_it_comes
            step(batch, None)[0, 0].item()
            taken[bool(number % 2)].append(time.perf_counter() - began)
        ratios.append(statistics.median(taken[True]) / statistics.median(taken[False]))
    return statistics.median(ratios)


def measure(
    model: str, ranks: list[int], dtype: str, device: str
) -> tuple[dict[str, Any], dict[str, float]]:
    """Figures of each number of ranks, and the values that bars are put to."""
    figures: dict[str, Any] = {}
    values: dict[str, float] = {}
    whole_kv = whole_weights = 0
    for count in [1, *ranks]:
        with loaded(model, count, dtype, device) as runner:
            weights = runner.model.config.num_parameters
            figures[f"{count}"] = step_figures(runner) | {
                "weights": weights,
                "kv_bytes": runner.pool.num_bytes,
            }
            if count == 1:
                whole_kv, whole_weights = runner.pool.num_bytes, weights
                order = StepOrder(number=0, batch=decodes(runner), bucket=None, tokens_follow=False)
                values["plan_bytes"] = len(encode_step(order))
                values["one_rank_over_before"] = one_rank_over_before(runner)
                continue
            values[f"weights_per_rank_{count}"] = weights / whole_weights
            values[f"kv_per_rank_{count}"] = runner.pool.num_bytes / whole_kv
            values["sums_per_layer"] = figures[f"{count}"]["sums_per_layer"]
    return figures, values


def main(argv: list[str] | None = None) -> int:
    """Compute the same step on one rank and on several."""
    options = parser(__doc__)
    options.add_argument("--model", default=MODEL)
    options.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = options.parse_args(argv)
    there = torch.cuda.device_count() if arguments.device == "cuda" else max(arguments.ranks)
    ranks = [count for count in arguments.ranks if count <= there]
    figures, values = measure(arguments.model, ranks, arguments.dtype, arguments.device)
    figures["weights_per_rank"] = {
        name.rpartition("_")[2]: value for name, value in values.items() if "weights_per" in name
    }
    bars = [
        Bar(name=name, value=values.get(name), op=op, bar=bar)  # type: ignore[arg-type]
        for name, (op, bar) in BARS.items()
    ]
    return report("ranks", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
