"""What steps begun ahead are worth to a whole engine. By the clock: they hide the host's time."""

import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_cases import Wrong
from benchmarks.gpu_graphs import make_model, recorder
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import GenerationRequest, SamplingParams
from runtime.model.runner import ModelRunner
from runtime.model.weights import LoadedModel
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer
from tools_api.grammar import GrammarSpec

BOUND = GrammarSpec(lark='start: "{\\"text\\": \\"" /[a-z ]{450,2000}/ "\\"}"')
"""Every token of it is masked, and none but its frame is forced."""
_LETS_TURNS_IN = 500


def measure_lookahead(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Steps of a whole engine whose turns decode: free, half of them under a grammar; with
    steps begun ahead and without. In bfloat16 tokens differ where a library sums up another
    number of rows in another order, so turns are compared in float32 as well.

    Raises:
        Wrong: a turn ended in the middle.
    """
    name, config = plan.models[0]
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys((dtype, torch.float32)):
        model = make_model(config, kind, device)
        for turns in plan.engine_turns:
            for bound in sorted({0, turns // 2} if kind == dtype else {turns // 2}):
                said = str(kind).removeprefix("torch.")
                row: dict[str, Any] = {"model": name, "dtype": said}
                rows.append(row | _compared(plan, model, turns, bound, device))
    return rows


def _compared(
    plan: Plan, model: LoadedModel, turns: int, bound: int, device: torch.device
) -> dict[str, Any]:
    """The same turns with steps begun ahead and without."""
    row: dict[str, Any] = {"turns": turns, "under_grammar": bound}
    said: list[list[list[int]]] = []
    for label, ahead in (("waiting", False), ("ahead", True)):
        run = _Run(plan, model, turns, bound, ahead=ahead, device=device)
        row[f"{label}_ms"] = run.step_s * 1e3
        said.append(run.said)
        if run.engine.computation.lookahead is not None:
            outcomes = run.engine.computation.lookahead.outcomes
            row["used"] = outcomes.used
            row["second_passes"] = outcomes.second_passes
    row["faster_ahead"] = row["waiting_ms"] / row["ahead_ms"]
    differing = [
        sum(a != b for a, b in zip(one, other, strict=False))
        for one, other in zip(*said, strict=True)
    ]
    row["tokens_that_differ"] = sum(differing)
    row["turns_that_differ"] = sum(map(bool, differing))
    return row


class _Run:
    """One engine and its turns, driven until each has had its steps."""

    def __init__(
        self,
        plan: Plan,
        model: LoadedModel,
        turns: int,
        bound: int,
        *,
        ahead: bool,
        device: torch.device,
    ) -> None:
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
            record=record,
            max_recorded_sequences=turns,
        )
        tokenizer = Tokenizer.load(model.tokenizer_folder, vocab_size=model.config.vocab_size)
        self.engine: Engine = assemble(config, runner, tokenizer, looks_ahead=ahead)
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
