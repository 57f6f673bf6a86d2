"""Worth of steps begun ahead to a whole engine. By the clock: they hide the host's time."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_cases import Wrong
from benchmarks.gpu_graphs import make_model, recorder
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.lookahead import Lookahead
from runtime.messages import GenerationRequest, SamplingParams
from runtime.model.batch import StepBatch
from runtime.model.runner import ModelRunner, Recording
from runtime.model.sampler import Drawing
from runtime.model.weights import LoadedModel
from runtime.process.loading import assemble
from runtime.scheduling.costs import StepCosts
from runtime.tokenizer import Tokenizer
from tools_api.grammar import GrammarSpec

BOUND = GrammarSpec(lark='start: "{\\"text\\": \\"" /[a-z ]{450,2000}/ "\\"}"')
"""Every token of it is masked, and none but its frame is forced."""
_LETS_TURNS_IN = 500


def measure_lookahead(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Steps of a whole engine whose turns decode: free, half of them under a grammar; with
    steps begun ahead and without. In bfloat16 tokens differ where a library sums up another
    number of rows in another order, so as many turns as may be are compared twice more: under a
    grammar in float32, where so few tokens can be drawn that rounding changes none, and beside
    an engine in which nothing overlaps, to the bit.

    Raises:
        Wrong: a turn ended in the middle, or overlap changes a token.
    """
    name, config = plan.models[0]
    rows: list[dict[str, Any]] = []
    most = max(plan.engine_turns)
    model = make_model(config, dtype, device)
    for turns in plan.engine_turns:
        for bound in sorted({0, turns // 2}):
            ahead = _Run(plan, model, turns, bound, Lookahead)
            rows.append({"model": name, **_compared(_Run(plan, model, turns, bound), ahead)})
    together = _Run(plan, model, most, most // 2, _Always)
    if changed := _differing(together, _Run(plan, model, most, most // 2, _Alone)):
        raise Wrong(f"overlap changes {sum(changed)} tokens of {len(changed)} turns of {most}")
    precise = make_model(config, torch.float32, device)
    ahead = _Run(plan, precise, most, most, Lookahead)
    rows.append({"model": name, **_compared(_Run(plan, precise, most, most), ahead)})
    return rows


def _compared(waiting: "_Run", ahead: "_Run") -> dict[str, Any]:
    """The same turns without and with steps begun ahead."""
    assert ahead.lookahead is not None
    differing = _differing(waiting, ahead)
    return {
        "dtype": str(waiting.dtype).removeprefix("torch."),
        "turns": len(waiting.said),
        "under_grammar": waiting.bound,
        "waiting_ms": waiting.step_s * 1e3,
        "ahead_ms": ahead.step_s * 1e3,
        "used": ahead.lookahead.outcomes.used,
        "second_passes": ahead.lookahead.outcomes.second_passes,
        "faster_ahead": waiting.step_s / ahead.step_s,
        "tokens_that_differ": sum(differing),
        "turns_that_differ": len(differing),
    }


def _differing(one: "_Run", other: "_Run") -> list[int]:
    """How many tokens differ, of each turn in which any does."""
    pairs = zip(one.said, other.said, strict=True)
    counts = [sum(a != b for a, b in zip(*pair, strict=False)) for pair in pairs]
    return [count for count in counts if count]


class _Always(Lookahead):
    """Begins every step that can be."""

    def __init__(self, runner: ModelRunner, costs: StepCosts, clock: Callable[[], float]) -> None:
        super().__init__(runner, costs, clock, always=True)


class _Alone(_Always):
    """The same, but each thing is done before the next begins, tokens go by way of the host."""

    def start(self, batch: StepBatch, drawing: Drawing) -> None:
        host = torch.from_numpy(drawing.result().tokens.astype("int64"))
        _wait(drawing.tokens.device)
        drawing.tokens = host.to(drawing.tokens.device)
        super().start(batch, drawing)
        _wait(drawing.tokens.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Run:
    """One engine and its turns, driven until each has had its steps."""

    def __init__(
        self,
        plan: Plan,
        model: LoadedModel,
        turns: int,
        bound: int,
        lookahead: type[Lookahead] | None = None,
    ) -> None:
        device = model.device
        self.bound, self.dtype = bound, model.dtype
        length = plan.engine_prompt + plan.engine_steps + _LETS_TURNS_IN
        config = EngineConfig(
            model="random",
            num_blocks=turns * -(-length // BLOCK_SIZE) + 64,
            block_size=BLOCK_SIZE,
            max_running=max(turns, 1),
            max_draft_tokens=0,
            policy="fcfs",  # all prompts are read before a turn has had many steps
        )
        assert config.num_blocks is not None
        record = recorder(device) if device.type == "cuda" else None
        runner = ModelRunner(
            model,
            num_blocks=config.num_blocks,
            block_size=BLOCK_SIZE,
            recording=Recording(record=record, max_sequences=turns),
        )
        tokenizer = Tokenizer.load(model.tokenizer_folder, vocab_size=model.config.vocab_size)
        costs = StepCosts()
        self.engine: Engine = assemble(
            config, runner, tokenizer, costs=costs, looks_ahead=lookahead is not None
        )
        if lookahead is not None:
            self.engine.computation.lookahead = lookahead(runner, costs, time.monotonic)
        self.lookahead = self.engine.computation.lookahead
        self.said: list[list[int]] = [[] for _ in range(turns)]
        ends = tuple(sorted(tokenizer.end_of_turn_ids))
        rng = np.random.default_rng(0)
        for turn in range(turns):
            request = GenerationRequest(
                request_id=str(turn),
                branch_id=str(turn),
                tenant="t",
                base_branch_id=None,
                base_offset=0,
                new_tokens=rng.integers(0, 250, plan.engine_prompt, dtype=np.int32),
                max_new_tokens=plan.engine_steps + _LETS_TURNS_IN,
                sampling=SamplingParams(seed=turn),
                banned_tokens=ends,
                grammar=BOUND if turn < bound else None,
            )
            self.engine.submit([request])
            while turn == bound - 1 and not all(self.said[:bound]):
                self._step()  # a new grammar takes longer than hundreds of steps
        while min(map(len, self.said)) < 2:  # all have been let in and read
            self._step()
        times: list[float] = []
        for _ in range(plan.engine_steps):
            began = time.perf_counter()
            self._step()
            times.append(time.perf_counter() - began)
        self.step_s = statistics.median(times)

    def _step(self) -> None:
        output = self.engine.step()
        for item in () if output is None else output.outputs:
            self.said[int(item.request_id)] += item.new_tokens.tolist()
            if item.finish is not None:
                raise Wrong(f"a turn ended in the middle: {item.finish} {item.error_message}")
