"""Worth of forced and drafted tokens on the shipped model, in the real engine.

Two engines in this process, on one thread: one as it is served, one in which every token is
sampled and nothing is drafted. Grammar, model and requests are the same. Turns of held-out
sessions of the default model's own kind are played in both, one pair after the other in
changing order, each repetition under a new tenant so that nothing is remembered of the last.

A prompt is computed beforehand; a turn's time runs from the step that brought its first
token to the one that brought its last. Tokens that came with that first step are not
counted, in either engine.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from examples.train_agent_model.generator import MAX_QUESTIONS, SessionGenerator
from examples.train_agent_model.rendering import (
    CHAT_FORMAT,
    Part,
    answer_turn,
    calls_turn,
    generation_prompt,
    header,
    results_turn,
    user_turn,
)
from examples.train_agent_model.world import Question, Session
from runtime.config import EngineConfig
from runtime.engine.emission import Emission
from runtime.messages import GenerationRequest, ReleaseBranch, SamplingParams, TokenArray
from runtime.model.runner import load_runner
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

MAX_TURN_TOKENS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A prompt up to where the model goes on. ``grammar`` None: free text."""

    prompt: TokenArray
    grammar: GrammarSpec | None


@dataclass(slots=True)
class Timing:
    """The time of one group of turns in one engine."""

    seconds: float = 0.0
    tokens: int = 0
    """Emitted after the step that brought the first token."""
    steps: int = 0
    outputs: list[list[int]] = field(default_factory=list)
    """All tokens of each turn."""


class EveryTokenSampled(Emission):
    """The yardstick: forced tokens are sampled under their mask like all others."""

    takes_forced_tokens = False


class LiveEngine:
    """An engine and the turns that are timed on it."""

    def __init__(
        self,
        *,
        speculates: bool,
        num_blocks: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` is the engine's; what is timed goes by the machine's in any case."""
        config = EngineConfig(device="cpu", threads=1, num_blocks=num_blocks)
        if not speculates:
            config = replace(config, max_draft_tokens=0)
        runner = load_runner(config)
        model = runner.model
        self.tokenizer = Tokenizer.load(
            model.tokenizer_folder,
            vocab_size=model.config.vocab_size,
            model_type=model.model_type,
        )
        kind = Emission if speculates else EveryTokenSampled
        self._engine = assemble(config, runner, self.tokenizer, emission_type=kind, clock=clock)
        self._numbers = itertools.count()

    def time(self, turns: Sequence[Turn], tenant: str) -> Timing:
        """Run ``turns`` side by side; all prompts are in the cache before the clock starts."""
        names = [f"turn-{next(self._numbers)}" for _ in turns]
        for name, turn in zip(names, turns, strict=True):
            self._submit(name, turn, tenant, warm_up=True)
        while self._engine.has_work:
            self._engine.step()
        for name, turn in zip(names, turns, strict=True):
            self._submit(name, turn, tenant, warm_up=False)
        outputs: dict[str, list[int]] = {}
        running = set(names)
        while len(outputs) < len(turns):
            self._step(outputs, running)
        first = sum(map(len, outputs.values()))
        timing = Timing()
        started = time.perf_counter()
        while running:
            self._step(outputs, running)
            timing.steps += 1
        timing.seconds = time.perf_counter() - started
        while self._engine.has_work:
            self._engine.step()
        timing.outputs = [outputs[name] for name in names]
        timing.tokens = sum(map(len, timing.outputs)) - first
        self._engine.submit([ReleaseBranch(branch_id=name) for name in names])
        return timing

    def _step(self, outputs: dict[str, list[int]], running: set[str]) -> None:
        step = self._engine.step()
        for output in step.outputs if step else ():
            if output.error is not None:
                raise RuntimeError(f"a turn failed: {output.error_message}")
            if len(output.new_tokens):
                outputs.setdefault(output.request_id, []).extend(output.new_tokens.tolist())
            if output.finish is not None:
                running.discard(output.request_id)

    def _submit(self, name: str, turn: Turn, tenant: str, *, warm_up: bool) -> None:
        request = GenerationRequest(
            request_id=f"{name}-warm-up" if warm_up else name,
            branch_id=name,
            tenant=tenant,
            base_branch_id=None if warm_up else name,
            base_offset=0 if warm_up else len(turn.prompt),
            new_tokens=turn.prompt if warm_up else turn.prompt[:0],
            max_new_tokens=0 if warm_up else MAX_TURN_TOKENS,
            sampling=SamplingParams(temperature=0),
            grammar=None if warm_up else turn.grammar,
        )
        self._engine.submit([request])


class Supply:
    """Turns of held-out sessions, drawn from a seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._generator = SessionGenerator(f"speculation/{seed}", held_out=True)

    def calls(self, count: int, *, least: int, most: int) -> list[Turn]:
        """Prompts of ``least`` to ``most`` tokens behind which a call has to come."""
        return self._draw(count, least, most, text=False)

    def texts(self, count: int, *, least: int, most: int) -> list[Turn]:
        """Prompts that end with a tool's result and want an answer in prose."""
        return self._draw(count, least, most, text=True)

    def _draw(self, count: int, least: int, most: int, *, text: bool) -> list[Turn]:
        turns: list[Turn] = []
        while len(turns) < count:
            session = self._generator.session()
            for number, question in enumerate(session.questions):
                if not question.steps:
                    continue
                end = user_turn(question.text)
                if text:
                    for step in question.steps:
                        end += calls_turn(step) + results_turn(step)
                before = session.questions[:number]
                prompt = self._prompt(session, before, end + generation_prompt(), least)
                if least <= len(prompt) <= most:
                    turns.append(Turn(prompt=prompt, grammar=None if text else _grammar(session)))
        return turns[:count]

    def _prompt(
        self, session: Session, before: Sequence[Question], end: list[Part], least: int
    ) -> TokenArray:
        """The session up to its last question; where it is too short, behind others."""
        said = _said(before)
        prompt = self._encode(header(session) + said + end)
        while len(prompt) < least:
            more = self._generator.session(num_questions=MAX_QUESTIONS)
            said = _said(more.questions) + said
            prompt = self._encode(header(session) + said + end)
        return prompt

    def _encode(self, parts: Sequence[Part]) -> TokenArray:
        return self._tokenizer.encode([Segment(part.text, part.special) for part in parts])


def _said(questions: Sequence[Question]) -> list[Part]:
    """Questions with the right reactions to them."""
    parts: list[Part] = []
    for question in questions:
        parts += user_turn(question.text)
        for step in question.steps:
            parts += calls_turn(step) + results_turn(step)
        parts += answer_turn(question.answer)
    return parts


def _grammar(session: Session) -> GrammarSpec | None:
    """One call of the session's tools, from the first token on."""
    tools = [
        FunctionTool(name=tool.name, description=tool.description, parameters=tool.schema())
        for tool in session.tools
    ]
    return grammar_for(
        CHAT_FORMAT,
        tools,
        ToolChoice(mode="required"),
        parallel_tool_calls=False,
        text_format=TextFormat(),
        options=TemplateOptions(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Pairs of timings of the same turns in both engines."""

    plain: tuple[Timing, ...]
    speculating: tuple[Timing, ...]

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second over all pairs."""
        return _overall_rate(self.speculating) / _overall_rate(self.plain)

    def figures(self, name: str) -> dict[str, Any]:
        pairs = list(zip(self.plain, self.speculating, strict=True))
        outputs = [
            one == other
            for slow, fast in pairs
            for one, other in zip(slow.outputs, fast.outputs, strict=True)
        ]
        return {
            f"{name}_pairs": len(pairs),
            f"{name}_turns_alike": sum(outputs) / len(outputs),
            f"{name}_plain_tokens_per_s": round(_overall_rate(self.plain), 1),
            f"{name}_tokens_per_s": round(_overall_rate(self.speculating), 1),
            f"{name}_plain_tokens_per_step": round(_per_step(self.plain), 3),
            f"{name}_tokens_per_step": round(_per_step(self.speculating), 3),
            f"{name}_seconds_ratio": round(_seconds(self.plain) / _seconds(self.speculating), 3),
            f"{name}_pair_p10": round(_ratio_at(pairs, 0.1), 3),
            f"{name}_pair_p50": round(_ratio_at(pairs, 0.5), 3),
        }


def _rate(timing: Timing) -> float:
    return timing.tokens / timing.seconds


def _seconds(timings: Sequence[Timing]) -> float:
    return sum(t.seconds for t in timings)


def _overall_rate(timings: Sequence[Timing]) -> float:
    return sum(t.tokens for t in timings) / _seconds(timings)


def _per_step(timings: Sequence[Timing]) -> float:
    return sum(t.tokens for t in timings) / sum(t.steps for t in timings)


def _ratio_at(pairs: Sequence[tuple[Timing, Timing]], share: float) -> float:
    return float(np.quantile([_rate(fast) / _rate(slow) for slow, fast in pairs], share))


def compare(
    plain: LiveEngine,
    speculating: LiveEngine,
    groups: Sequence[Sequence[Turn]],
    *,
    repetitions: int = 1,
) -> Comparison:
    """Time each group of turns in both engines, which one first alternating."""
    timings: dict[LiveEngine, list[Timing]] = {plain: [], speculating: []}
    order = [plain, speculating]
    for repetition in range(repetitions):
        for group in groups:
            for engine in order:
                timings[engine].append(engine.time(group, f"tenant-{repetition}"))
            order.reverse()
    return Comparison(plain=tuple(timings[plain]), speculating=tuple(timings[speculating]))


CALLS, LONG_CALLS, TEXTS = 40, 20, 40
BATCH, BATCHES = 32, 12
REPETITIONS = 2


def measure(seed: int) -> dict[str, Any]:
    """All figures; the bars' own are the four that begin with ``speedup``."""
    plain, speculating = LiveEngine(speculates=False), LiveEngine(speculates=True)
    supply = Supply(plain.tokenizer, seed)
    calls = [[turn] for turn in supply.calls(CALLS, least=0, most=1024)]
    batches = [supply.calls(BATCH, least=0, most=1024) for _ in range(BATCHES)]
    long_calls = [[turn] for turn in supply.calls(LONG_CALLS, least=3584, most=4608)]
    texts = [[turn] for turn in supply.texts(TEXTS, least=0, most=1024)]
    figures: dict[str, Any] = {}
    compare(plain, speculating, calls[:3])  # compiles, and touches all memory
    for name, groups in (
        ("batch_1", calls),
        ("batch_32", batches),
        ("4k", long_calls),
        ("text", texts),
    ):
        comparison = compare(plain, speculating, groups, repetitions=REPETITIONS)
        figures[f"speedup_{name}"] = round(comparison.speedup, 3)
        figures |= comparison.figures(f"live_{name}")
    return figures
