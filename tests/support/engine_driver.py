"""Drives an ``Engine`` step by step, with a clock that only moves when told to."""

import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field

from runtime.config import EngineConfig
from runtime.drafting.drafter import Drafter
from runtime.engine.engine import Engine
from runtime.messages import (
    CancelRequest,
    ErrorKind,
    FinishReason,
    ReleaseBranch,
    SamplingParams,
    SequenceOutput,
    SequenceStart,
    StepStats,
    TokenLogprob,
)
from runtime.model.runner import ModelRunner, load_runner
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer
from tests.support.clock import FakeClock
from tests.support.executors import AtOnce
from tests.support.requests import make_request
from tests.support.thread_ranks import thread_ranks
from tools_api.grammar import GrammarSpec

STEP_S = 0.01
END_OF_TURN = 258
"""Of the byte tokenizer."""


@dataclass
class Result:
    """All that the engine said about one request."""

    tokens: list[int] = field(default_factory=list)
    forced: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    start: SequenceStart | None = None
    finish: FinishReason | None = None
    error: ErrorKind | None = None
    error_message: str = ""
    positions: list[int] = field(default_factory=list)
    after_finish: int = 0

    def take(self, output: SequenceOutput) -> None:
        if self.finish is not None:
            self.after_finish += 1
        assert 0 <= output.accepted <= output.drafted
        assert 0 <= output.forced <= len(output.new_tokens)
        self.tokens += output.new_tokens.tolist()
        self.forced += output.forced
        self.forwards += output.forwards
        self.drafted += output.drafted
        self.accepted += output.accepted
        self.logprobs += output.logprobs
        self.start = output.start or self.start
        if output.queue_position is not None:
            self.positions.append(output.queue_position)
        if output.finish is not None:
            self.finish, self.error = output.finish, output.error
            self.error_message = output.error_message


class EngineDriver:
    """An engine, its clock and the results by request id."""

    def __init__(
        self, engine: Engine, runner: ModelRunner, tokenizer: Tokenizer, clock: FakeClock
    ) -> None:
        self.engine = engine
        self.runner = runner
        self.tokenizer = tokenizer
        self.clock = clock
        self.results: dict[str, Result] = defaultdict(Result)
        self.preemptions = 0
        self.steps = 0
        self.host_hits = 0
        self.damaged = 0
        self.last_stats: StepStats | None = None
        self.num_requested = 0

    @classmethod
    def load(
        cls,
        drafter: Drafter | None = None,
        workers: Executor | None = None,
        looks_ahead: bool | None = None,
        **settings: object,
    ) -> "EngineDriver":
        """A float64 random model on one thread unless ``settings`` say otherwise; other ranks are
        threads, which end with ``close``."""
        clock = FakeClock()
        defaults: dict[str, object] = {
            "model": "random:qwen3-tiny",
            "dtype": "float64",
            "device": "cpu",
            "num_blocks": 256,
            "threads": 1,
        }
        config = EngineConfig(**(defaults | settings))  # type: ignore[arg-type]
        with ExitStack() as undo:
            ranks = thread_ranks(config) if config.tensor_parallel > 1 else None
            if ranks is not None:
                undo.callback(ranks.close)
            runner = load_runner(config, ranks=ranks)
            tokenizer = Tokenizer.load(
                runner.model.tokenizer_folder, vocab_size=runner.model.config.vocab_size
            )
            engine = assemble(
                config,
                runner,
                tokenizer,
                clock=clock,
                drafter=drafter,
                workers=workers or AtOnce(),
                looks_ahead=looks_ahead,
            )
            undo.pop_all()
        return cls(engine, runner, tokenizer, clock)

    def request(
        self,
        new_tokens: Sequence[int],
        *,
        session: str | None = None,
        base: str | None = None,
        offset: int = 0,
        max_new_tokens: int = 16,
        tenant: str = "t",
        sampling: SamplingParams | None = None,
        grammar: GrammarSpec | None = None,
        **more: object,
    ) -> str:
        """Submit one turn and return its request id. Free text goes on to its limit: the
        random model's end-of-turn is banned unless the caller says otherwise."""
        more.setdefault("banned_tokens", (END_OF_TURN,))
        self.num_requested += 1
        name = f"r{self.num_requested}"
        request = make_request(
            new_tokens,
            request_id=name,
            branch_id=session or f"s{self.num_requested}",
            tenant=tenant,
            base_branch_id=base,
            base_offset=offset,
            max_new_tokens=max_new_tokens,
            sampling=sampling or SamplingParams(temperature=0),
            grammar=grammar,
            **more,
        )
        self.engine.submit([request])
        return name

    def count_from(self, other: "EngineDriver") -> None:
        """Give requests names that ``other`` has not given."""
        self.num_requested = other.num_requested

    def cancel(self, name: str) -> None:
        self.engine.submit([CancelRequest(request_id=name)])

    def release(self, session: str) -> None:
        self.engine.submit([ReleaseBranch(branch_id=session)])

    def step(self) -> None:
        """One engine step; the clock moves on by ``STEP_S``. Other ranks are threads, which come to
        nothing beside one that never waits: where a step computes nothing, it waits as the
        engine's process does."""
        output = self.engine.step()
        if self.runner.followers is not None and self.engine.pause_s:
            time.sleep(self.engine.pause_s)
        self.clock.advance(STEP_S)
        self.steps += 1
        if output is None:
            return
        self.last_stats = output.stats
        self.preemptions += output.stats.preemptions_delta
        self.host_hits += output.stats.host_hit_tokens_delta
        self.damaged += output.stats.damaged_blocks_delta
        for item in output.outputs:
            self.results[item.request_id].take(item)

    def run(self, max_steps: int = 20_000) -> None:
        """Step until the engine has nothing left to do."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps")

    def close(self) -> None:
        """End the other ranks, if there are any."""
        self.engine.close()

    def turn(self, new_tokens: Sequence[int], **options: object) -> Result:
        """Submit one turn and run until the engine is idle."""
        name = self.request(new_tokens, **options)  # type: ignore[arg-type]
        self.run()
        return self.results[name]
