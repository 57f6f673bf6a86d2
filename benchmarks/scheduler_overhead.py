"""Cost of the scheduler per decode step, in CPU time of the thread.

A step is one plan for sequences that all decode, and the commit of one token each. Blocks are
long, so that none fills up: publishing to the radix tree is measured in
``benchmarks.radix_cache``. Grammar and detokenising are not the scheduler's. Medians over
the steps of 5 repetitions, the garbage collector frozen.
"""

import gc
import statistics
import time

import numpy as np

from benchmarks.report import Bar, parser, report
from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from runtime.config import EngineConfig
from runtime.messages import GenerationRequest, SamplingParams
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import Sequence, TokenBuffer

BLOCK = 256
STEPS = 150
REPETITIONS = 5
TOKENS = np.full(1024, 7, dtype=np.int32)
"""The drawn tokens of a step, one for each row."""


def decoding(count: int) -> Scheduler:
    """A scheduler with ``count`` sequences that have all emitted their first token."""
    num_blocks = 4 * count + 16
    config = EngineConfig(
        num_blocks=num_blocks, block_size=BLOCK, max_batch_tokens=1 << 14, max_running=count
    )
    cache = PrefixCache(CacheConfig(num_blocks=num_blocks, block_size=BLOCK), clock=lambda: 0.0)
    scheduler = Scheduler(cache, config, StepCosts())
    for number in range(count):
        request = GenerationRequest(
            request_id=f"r{number}",
            branch_id=f"s{number}",
            tenant=f"t{number % 8}",
            base_branch_id=None,
            base_offset=0,
            new_tokens=np.arange(8, dtype=np.int32) + 100 * number,
            max_new_tokens=1 << 10,
            sampling=SamplingParams(),
        )
        sequence = Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)
        scheduler.queues.add(sequence)
    while scheduler.queues.waiting or not all(s.decoding for s in scheduler.queues.running):
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> None:
    """Plan, and commit a token for each sequence that the plan lets sample."""
    plan = scheduler.schedule(0.0)
    scheduler.decoded(plan.decodes, TOKENS[: len(plan.decodes)])
    for chunk in plan.others:
        scheduler.advance(chunk)
        if chunk.samples:
            chunk.sequence.buffer.append(7)


def step_us(count: int) -> float:
    """Median microseconds of one decode step of ``count`` sequences."""
    scheduler = decoding(count)
    times = []
    for _ in range(STEPS):
        start = time.thread_time_ns()
        step(scheduler)
        times.append(time.thread_time_ns() - start)
    return statistics.median(times) / 1000


def main() -> int:
    arguments = parser(__doc__).parse_args()
    gc.collect()
    gc.freeze()
    gc.disable()
    figures: dict[str, float] = {}
    for count in (256, 1024):
        runs = [step_us(count) for _ in range(REPETITIONS)]
        figures[f"plan_{count}_us"] = round(statistics.median(runs), 1)
    small, large = figures["plan_256_us"], figures["plan_1024_us"]
    bars = [
        Bar(name="plan_256_us", value=small, op="<=", bar=150.0),
        Bar(name="plan_1024_ratio", value=round(large / small, 3), op="<=", bar=4.0),
    ]
    return report("scheduler_overhead", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
