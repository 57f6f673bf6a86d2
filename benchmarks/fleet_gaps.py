"""Gaps between the tokens of running turns, while long prompts are computed and in quiet."""

import time
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.fleet_engine import engine_for, timed_table, tokenizer_of
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import GenerationRequest, SamplingParams
from runtime.model.runner import load_runner
from runtime.scheduling.costs import StepCosts

RUNNING = 8
LIMIT = 1 << 20
KV_BYTES = 512 << 20


class _Requests:
    """Submits prompts of made-up tokens, each under a name of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(0)
        self._count = 0

    def start(self, kind: str, num_tokens: int, limit: int) -> None:
        self._count += 1
        name = f"{kind}{self._count}"
        highest = self._engine.info.vocab_size - 100
        request = GenerationRequest(
            request_id=name,
            branch_id=name,
            tenant="fleet",
            base_branch_id=None,
            base_offset=0,
            new_tokens=self._rng.integers(300, highest, num_tokens).astype(np.int32),
            max_new_tokens=limit,
            sampling=SamplingParams(),
            banned_tokens=(0, 1, 2),
        )
        self._engine.submit([request])


def token_gaps(
    engine: Engine,
    *,
    context: int,
    longest: bool,
    wanted: int,
    bounds: list[float] | None = None,
) -> list[float]:
    """At least ``wanted`` seconds between tokens of eight running turns that begin with
    ``context`` tokens; with ``longest``, while prompts of the longest length are computed,
    each from its first token to its last. ``bounds`` gets the gaps that the engine aims at."""
    requests = _Requests(engine)
    prompt = engine.info.max_context_tokens - 2048
    started = 0
    gaps: list[float] = []
    last: dict[str, float] = {}
    for _ in range(RUNNING):
        requests.start("decode", context, LIMIT)
    while len(gaps) < wanted or started:
        output = engine.step()
        now = time.monotonic()
        if output is not None and bounds is not None:
            bounds.append(output.stats.token_gap_bound_s)
        for answer in output.outputs if output is not None else ():
            if answer.request_id.startswith("long"):
                started -= answer.finish is not None
                continue
            if answer.finish is not None:
                requests.start("decode", context, LIMIT)
            elif len(answer.new_tokens):
                counts = started if longest else len(last) == RUNNING
                if answer.request_id in last and counts:
                    gaps.append(now - last[answer.request_id])
                last[answer.request_id] = now
        if longest and not started and len(last) == RUNNING and len(gaps) < wanted:
            requests.start("long", prompt, 1)
            started = 1
            last.clear()
    return gaps


def gaps_over_bound(
    config: EngineConfig, *, context: int, runs: int
) -> tuple[list[float], dict[str, Any]]:
    """``itl_p99_over_bound`` of several runs, and figures of the last one."""
    ratios = []
    figures: dict[str, Any] = {}
    for _ in range(runs):
        wide = replace(config, kv_cache_bytes=KV_BYTES)
        runner = load_runner(wide)
        tokenizer = tokenizer_of(runner)
        costs = StepCosts(timed_table(runner, wide))
        engine = engine_for(runner, tokenizer, wide, costs)
        bounds: list[float] = []
        loaded = token_gaps(engine, context=context, longest=True, wanted=1200, bounds=bounds)
        engine = engine_for(runner, tokenizer, wide, StepCosts(deepcopy(costs.table)))
        quiet = token_gaps(engine, context=context, longest=False, wanted=len(loaded))
        ratios.append(p99(loaded) / max(bounds))
        figures["itl_gaps"] = len(loaded)
        figures["itl_bound_ms"] = round(max(bounds) * 1000, 2)
        figures["itl_p99_ms"] = round(p99(loaded) * 1000, 2)
        figures["itl_p99_quiet_ms"] = round(p99(quiet) * 1000, 2)
    figures["itl_p99_over_bound_runs"] = [round(r, 3) for r in ratios]
    return ratios, figures


def p99(values: list[float]) -> float:
    return float(np.percentile(values, 99))
