"""Where the time of one replayed decode goes, kernel by kernel, at 1 and at 64 turns.

    python -m tools.gpu_profile [--rehearse]

Prints a table for each and one line of JSON. On a CPU only the plumbing is of interest.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_cases import blocks_for, make_batch
from benchmarks.gpu_graphs import make_model, recorder
from benchmarks.gpu_plan import BLOCK_SIZE, FULL, REHEARSAL
from runtime.model.runner import ModelRunner, Recording

_ROWS = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rehearse", action="store_true")
    rehearse = options.parse_args(arguments).rehearse
    there = torch.cuda.is_available()
    plan = FULL if there and not rehearse else REHEARSAL
    device = torch.device("cuda" if there else "cpu")
    dtype = torch.bfloat16 if there else torch.float32
    name, config = plan.models[-1]
    model = make_model(config, dtype, device)
    answer: dict[str, Any] = {"model": name, "device": device.type}
    for sequences, context in (plan.graph_steps[0], plan.graph_steps[-1]):
        shapes = [(context, 1)] * sequences
        runner = ModelRunner(
            model,
            num_blocks=blocks_for(shapes),
            block_size=BLOCK_SIZE,
            recording=Recording(record=recorder(device), max_sequences=sequences),
        )
        runner.pool.blocks.normal_()
        batch = make_batch(shapes, blocks_for(shapes))
        runner.forward(batch)
        activity = ProfilerActivity.CUDA if there else ProfilerActivity.CPU
        with profile(activities=[activity]) as taken:
            runner.forward(batch)
            if there:
                torch.cuda.synchronize()
        averages = taken.key_averages()
        order = "cuda_time_total" if there else "cpu_time_total"
        print(averages.table(sort_by=order, row_limit=_ROWS))
        answer[f"kernels_at_{sequences}"] = len(averages)
        del runner
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
