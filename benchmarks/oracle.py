"""Forward passes that a turn's tokens would take, with a model that always says the text.

A recorded session is played through tokenizer, grammar and drafter as the engine would: the
"model" draws exactly the recorded token each time, so a drafted token is accepted when it is
the recorded one. What is counted is inside calls: tokens, passes, and every forced token
that is not the recorded one (there must be none).
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import instances
from runtime.drafting.drafter import Drafter
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.grammar import grammar_for
from tools_api.items import FunctionCallOutput, Item, Message, TextPart
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

OPTIONS = TemplateOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The model's call at one point of a session: a call of one of its tools."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A recorded session: inputs as items, outputs as text or calls, in order."""

    name: str
    system: str | None
    tools: tuple[FunctionTool, ...]
    events: tuple[Item | str | Call, ...]


@dataclass(slots=True)
class Counts:
    """Sums over calls."""

    calls: int = 0
    skipped: int = 0
    tokens: int = 0
    forwards: int = 0
    forced: int = 0
    forced_wrong: int = 0
    drafted: int = 0
    accepted: int = 0
    propose_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards


def user(text: str) -> Message:
    return Message(role="user", content=(TextPart(type="input_text", text=text),))


def tool_output(text: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id="call", output=text)


class Oracle:
    """Plays sessions. ``drafter`` None: forced tokens alone."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        compiler: GrammarCompiler,
        drafter: Drafter | None,
        *,
        tenant: str = "benchmark",
        remembers: bool = False,
        max_draft: int = 16,
    ) -> None:
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._drafter = drafter
        self._tenant = tenant
        self._remembers = remembers
        self._max_draft = max_draft
        self._format = chat_format_for("qwen3", lambda name: tokenizer.special_id(name) is not None)

    def play(self, session: Session, counts: Counts) -> None:
        grammar = self._grammar(session)
        if grammar is None:
            counts.skipped += sum(isinstance(event, Call) for event in session.events)
            return
        transcript = self._encode(self._format.header(session.system, session.tools, OPTIONS))
        inputs: list[Item] = []
        first = True
        for event in session.events:
            if not isinstance(event, str | Call):
                inputs.append(event)
                continue
            transcript += self._encode(
                self._format.items(inputs, first=first, open_output=False, options=OPTIONS)
            )
            transcript += self._encode(self._format.generation_prompt(OPTIONS))
            inputs, first = [], False
            if isinstance(event, str):
                transcript += self._encode([Segment(event)])
                transcript.append(self._tokenizer.end_of_turn_id)
            else:
                self._play_call(session, event, grammar, transcript, counts)
        if self._drafter is not None:
            self._drafter.close(session.name)

    def _play_call(
        self,
        session: Session,
        call: Call,
        grammar: CompiledGrammar,
        transcript: list[int],
        counts: Counts,
    ) -> None:
        """Play one call; ``transcript`` gets its tokens."""
        truth = self._call_tokens(session, call)
        state = GrammarState(grammar, self._tokenizer)
        state.advance(truth[:1])
        transcript += truth[:1]
        truth = truth[1:]
        if state.validate(truth) < len(truth):
            counts.skipped += 1
            transcript += truth
            return
        counts.calls += 1
        counts.tokens += len(truth)
        start = len(transcript)
        while (done := len(transcript) - start) < len(truth):
            rest = truth[done:]
            run = state.forced_tokens(len(rest))
            counts.forced += len(run)
            counts.forced_wrong += sum(a != b for a, b in zip(run, rest, strict=False))
            emitted = rest[: len(run)]
            if not run:
                counts.forwards += 1
                emitted = rest[: 1 + self._accepted(session, transcript, state, rest, counts)]
            state.advance(emitted)
            transcript += emitted
        if self._drafter is not None and self._remembers:
            self._drafter.remember(self._tenant, np.array(truth, dtype=np.int32))

    def _accepted(
        self,
        session: Session,
        transcript: Sequence[int],
        state: GrammarState,
        rest: Sequence[int],
        counts: Counts,
    ) -> int:
        """Draft and verify; how many drafted tokens are right."""
        if self._drafter is None:
            return 0
        tokens = np.array(transcript, dtype=np.int32)
        started = time.perf_counter()
        draft = self._drafter.propose(
            session.name, self._tenant, tokens, state, min(self._max_draft, len(rest) - 1)
        )
        counts.propose_s.append(time.perf_counter() - started)
        right = 0
        while right < len(draft.tokens) and int(draft.tokens[right]) == rest[right]:
            right += 1
        self._drafter.verified(session.name, len(draft.tokens), right)
        counts.drafted += len(draft.tokens)
        counts.accepted += right
        return right

    def _call_tokens(self, session: Session, call: Call) -> list[int]:
        parameters = next((t.parameters for t in session.tools if t.name == call.name), {})
        arguments = instances.write(call.arguments, parameters)
        text = f'\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n'
        opener, closer = Segment("<tool_call>", True), Segment("</tool_call>", True)
        return [*self._encode([opener, Segment(text), closer]), self._tokenizer.end_of_turn_id]

    def _grammar(self, session: Session) -> CompiledGrammar | None:
        """Over the tools whose schemas can be enforced; calls of the others do not count."""
        grammar = self._compiled(session.tools)
        if grammar is None:
            tools = [t for t in session.tools if self._compiled((t,)) is not None]
            grammar = self._compiled(tools)
        return grammar

    def _compiled(self, tools: Sequence[FunctionTool]) -> CompiledGrammar | None:
        spec = grammar_for(
            self._format,
            tools,
            ToolChoice(mode="auto"),
            parallel_tool_calls=False,
            text_format=TextFormat(),
            options=OPTIONS,
        )
        try:
            return None if spec is None else self._compiler.compile(spec)
        except GrammarRefused:
            return None

    def _encode(self, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = self._tokenizer.encode(segments).tolist()
        return ids
