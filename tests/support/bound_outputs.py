"""Outputs that a grammar binds: random ones, written by drawn tokens in a model's place, and what
can be said against them.

The grammar, its guard, the emission and the parser are the real ones. What is drawn at a position
follows from the seed, the position and the mask, so that every way of taking the tokens has to
come to the same. What is legal a second grammar says, over a vocabulary of single bytes, and
jsonschema where the output is whole.
"""

import functools
import json
import random
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import llguidance
import numpy as np

from runtime.engine.emission import Emission
from runtime.engine.step_outputs import OutputCollector
from runtime.engine.step_rows import StepRows
from runtime.grammar.closing import complete
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.state import GrammarState
from runtime.grammar.stop_search import StopSearch
from runtime.messages import FinishReason, SamplingParams
from runtime.model.sampler import Sampled, SampleRow
from runtime.scheduling.draft import EMPTY_DRAFT, Draft, DraftSource
from runtime.scheduling.sequence import Sequence, TokenBuffer
from runtime.scheduling.step_plan import Chunk
from runtime.tokenizer import Tokenizer
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import Piece
from tests.support.requests import make_request
from tests.support.sessions_rig import TOKENIZER as BYTES
from tools_api.call_rules import closed_parameters
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import CALL_BRACE, ChatFormat, Segment, TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.limits import DEFAULT_LIMITS
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedText,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, parse_tool_choice, parse_tools

Way = Literal["runs", "single", "drafts"]
PROMPT = [1, 2, 3]
STOPS = ("}", '"', ",", ": ", "a", "\n", " ", "ee", "tool", "<", "think", "1", "\n\n", "{")
_WORDS = (
    "red",
    "a longer green",
    "very long value, north east",
    "日本 é",
    "",
    "x",
    "9",
    "</think>",
)
_NAMES = ("city", "day", "n", "where", "list", "a rather long name", "kind", "é")
_MOST_LONGER = 40


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """One value: much of it forced, so that limits fall into runs."""
    kinds = ["string", "integer", "enum", "const", "boolean", "bounded", "number", "pattern"]
    match rng.choice(kinds + ["array", "object", "any"] * (depth < 2)):
        case "string":
            return {"type": "string", "maxLength": rng.randint(1, 30)}
        case "integer":
            return {"type": "integer", "minimum": -rng.randint(0, 50), "maximum": 9999}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": rng.choice((1, 2.5, 1000))}
        case "enum":
            return {"enum": rng.sample([*_WORDS, 7, None, True, [1, "b"], {"k": "v"}], 3)}
        case "const":
            return {"const": rng.choice(_WORDS)}
        case "bounded":
            return {"type": "string", "minLength": rng.randint(1, 8), "maxLength": 40}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(("^[a-c]{2,6}$", "^v[0-9]+$"))}
        case "array":
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": rng.randint(0, 3), "maxItems": 5}
        case "any":
            ways = [random_object(rng, depth + 1), {"type": "null"}]
            return {"anyOf": rng.sample(ways, 2)}
        case "object":
            return random_object(rng, depth + 1)
    return {"type": "boolean"}


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an output has to be."""

    schema: dict[str, Any] | None
    """Of the whole output; None: it calls."""
    tools: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Names and parameters."""
    choice: str = "none"
    parallel: bool = False
    thinking: bool = False

    def fields(self) -> dict[str, Any]:
        """The same as fields of a ``response.create``."""
        effort = {"reasoning": {"effort": "low"}} if self.thinking else {}
        if self.schema is not None:
            form = {"type": "json_schema", "name": "x", "schema": self.schema, "strict": True}
            return {"text": {"format": form}, **effort}
        return {
            "tools": self._raw_tools(),
            "tool_choice": self.choice,
            "parallel_tool_calls": self.parallel,
            **effort,
        }

    def _raw_tools(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "name": name, "parameters": parameters, "strict": True}
            for name, parameters in self.tools
        ]

    def function_tools(self) -> tuple[FunctionTool, ...]:
        return tuple(parse_tools(self._raw_tools(), "tools", DEFAULT_LIMITS))

    def spec(self, chat_format: ChatFormat) -> GrammarSpec:
        tools = self.function_tools()
        form = TextFormat()
        if self.schema is not None:
            form = TextFormat(type="json_schema", name="x", json_schema=self.schema, strict=True)
        spec = grammar_for(
            chat_format,
            tools,
            parse_tool_choice(self.choice, tools),
            parallel_tool_calls=self.parallel,
            text_format=form,
            options=TemplateOptions(thinking=self.thinking),
        )
        assert spec is not None
        return spec


def random_task(
    rng: random.Random, parameters: Many[dict[str, Any]] = (), *, thinks: bool = True
) -> Task:
    """
    Args:
        parameters: of tools in use, from which some are taken.
        thinks: the model can.
    """

    def one() -> dict[str, Any]:
        return rng.choice(parameters) if parameters and rng.random() < 0.3 else random_object(rng)

    thinking = thinks and rng.random() < 0.4
    if rng.random() < 0.5:
        return Task(schema=one(), thinking=thinking)
    tools = tuple((f"{rng.choice('abc')}_{n}", one()) for n in range(rng.randint(1, 3)))
    return Task(
        schema=None,
        tools=tools,
        choice=rng.choice(("required", "auto")),
        parallel=rng.random() < 0.5,
        thinking=thinking,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a turn wrote, and why it ended."""

    tokens: tuple[int, ...]
    reason: FinishReason
    message: str


class Writer:
    """Writes outputs with one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat | None = None) -> None:
        """``chat_format``: where it is not the one that the tokenizer chooses."""
        self.tokenizer = tokenizer
        self.format = chat_format or chat_format_for(
            "qwen3", lambda name: tokenizer.special_id(name) is not None
        )
        self._compiler = GrammarCompiler(tokenizer, max_cache_bytes=10**8)
        self._rows = StepRows(tokenizer.vocab_size)
        texts = (
            "{",
            "{",
            "{",
            "a",
            "b",
            "e",
            '"',
            "}",
            "{",
            ",",
            " ",
            "\n",
            "1",
            "9",
            ":",
            "tool",
            "]",
        )
        pieces = [tokenizer.encode([Segment(text)])[-1] for text in texts]
        self._pool = [*map(int, pieces), *3 * list(tokenizer.specials.values())]

    def compile(self, task: Task) -> CompiledGrammar:
        """Raises GrammarRefused."""
        return self._compiler.compile(task.spec(self.format))

    def banned(self, task: Task) -> tuple[int, ...]:
        kept = self.format.output_specials(thinking=task.thinking, calls=bool(task.tools))
        return tuple(i for name, i in self.tokenizer.specials.items() if name not in kept)

    def write(
        self,
        task: Task,
        *,
        limit: int,
        stops: tuple[str, ...],
        seed: int,
        way: Way,
        truth: Many[int] = (),
    ) -> Written:
        """One output. ``truth``: what drafts are guessed from."""
        compiled = self.compile(task)
        request = make_request(
            PROMPT,
            max_new_tokens=limit,
            sampling=SamplingParams(stop=stops),
            grammar=compiled.spec,
            banned_tokens=self.banned(task),
        )
        sequence = Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)
        sequence.grammar = GrammarState(compiled, self.tokenizer)
        sequence.stop_search = StopSearch(stops, self.tokenizer, compiled.spec) if stops else None
        emission = Emission(
            tokenizer=self.tokenizer, outputs=OutputCollector(), max_context_tokens=10**6
        )
        emission.takes_forced_tokens = way != "single"
        guesses = random.Random(seed)
        while True:
            draft = EMPTY_DRAFT
            if way == "drafts" and sequence.num_emitted:
                draft = self._draft(sequence, truth, guesses)
            chunk = Chunk(sequence, sequence.num_computed, 1, samples=True, draft=draft)
            if way == "single":
                chunk.forced = ()
            elif not sequence.num_emitted and sequence.grammar.forced_tokens(sequence.remaining):
                chunk.forced = (0,)
            drawn = [self._drawn(row, seed) for row in self._rows.rows([chunk])]
            sampled = Sampled(
                tokens=np.array(drawn, dtype=np.int64),
                logprobs=(None,) * len(drawn),
                finite=np.ones(len(drawn), dtype=bool),
            )
            taken = complete(emission.taking(chunk, sampled, 0))
            if taken.finish is not None:
                output = sequence.buffer.view()[sequence.prompt_length :]
                return Written(
                    tokens=tuple(output.tolist()), reason=taken.finish, message=taken.message
                )

    def _drawn(self, row: SampleRow, seed: int) -> int:
        rng = random.Random(seed * 1_000_003 + row.position)
        allowed: Many[int] = self._pool
        if row.mask is not None:
            mask = row.mask
            allowed = [t for t in self._pool if (mask[t >> 5] >> (t & 31)) & 1]
            if not allowed or rng.random() < 0.3:
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                allowed = np.flatnonzero(bits[: self.tokenizer.vocab_size]).tolist()
        return rng.choice(allowed) if allowed else -1

    def _draft(self, sequence: Sequence, truth: Many[int], rng: random.Random) -> Draft:
        """As the drafter makes one: forced runs filled in, the rest guessed, some of it wrong."""
        assert sequence.grammar is not None
        state, most = sequence.grammar.copy(), min(rng.randint(0, 8), sequence.remaining - 1)
        tokens, sources = list[int](), list[DraftSource]()
        ends = self.tokenizer.end_of_turn_ids
        while len(tokens) < most and not (tokens and tokens[-1] in ends):
            run = state.forced_tokens(most - len(tokens))
            source = DraftSource.FORCED if run else DraftSource.SESSION
            if not run:
                at = sequence.num_emitted + len(tokens)
                right = at < len(truth) and rng.random() < 0.8
                guess = truth[at] if right else rng.choice(self._pool)
                if not state.validate((guess,)):
                    break
                run = [guess]
            tokens += run
            sources += [source] * len(run)
            state.advance(run)
        array = np.array(tokens, dtype=np.int32)
        return Draft(tokens=array, sources=tuple(sources), survival=(1.0,) * len(tokens))


@dataclass(slots=True)
class Said:
    """An output as a client reads it."""

    text: str
    calls: list[tuple[str, str, bool]]
    """Name, arguments, whether the call is complete."""


def read(writer: Writer, task: Task, written: Written, stops: tuple[str, ...], seed: int) -> Said:
    """Through the parser, cut into steps anywhere."""
    reader = OutputReader(
        tokenizer=writer.tokenizer,
        chat_format=writer.format,
        thinking=task.thinking,
        calls=bool(task.tools),
        stops=stops,
        reasons_first=task.spec(writer.format).reasons_first,
        tools=task.function_tools(),
    )
    rng, pieces, place = random.Random(seed), list[Piece](), 0
    while place < len(written.tokens):
        step = written.tokens[place : place + rng.randint(1, 6)]
        place += len(step)
        last = place == len(written.tokens)
        stopped = last and written.reason is FinishReason.STOP_STRING
        pieces += reader.read(step, stopped=stopped)
    pieces += reader.finish()
    return said_of(pieces)


def said_of(pieces: Many[Piece]) -> Said:
    said, name, arguments = Said("", []), None, ""
    for piece in pieces:
        match piece.parsed:
            case ParsedText(text):
                said.text += text
            case ParsedCallStart(started):
                name, arguments = started, ""
            case CallArgumentsDelta(text):
                arguments += text
            case CallDone(done, whole, finished):
                assert done == name
                assert arguments in (whole, "")
                said.calls.append((done, whole, finished))
    return said


def fault(
    task: Task,
    said: Said,
    *,
    whole: bool,
    tagged: bool = True,
    ordered: bool = True,
    speaks_first: bool = False,
) -> str | None:
    """What is wrong with an output; None: nothing.

    Args:
        whole: it was reported as complete.
        tagged: calls have an opener; otherwise text that begins like one is one.
        ordered: arguments stand in the order of their schema.
        speaks_first: text may stand beside a required call.
    """
    if task.schema is not None:
        return "calls" if said.calls else _value_fault(task.schema, said.text, whole)
    if whole and task.choice == "required" and not said.calls:
        return "no call"
    cut_before_its_name = not whole and not said.calls
    beside = task.choice == "required" and not speaks_first
    if beside and said.text and not cut_before_its_name:
        return f"text beside a required call: {said.text!r}"
    if whole and not tagged and said.text.startswith(CALL_BRACE):
        return f"a call was cut: {said.text!r}"
    tools = dict(task.tools)
    for place, (name, arguments, finished) in enumerate(said.calls):
        last = place == len(said.calls) - 1
        if not finished and (whole or not last):
            return f"a call is not complete: {arguments!r}"
        schema = closed_parameters(tools[name])
        wrong = _value_fault(schema, arguments, finished, ordered=ordered)
        if wrong is not None:
            return wrong
    return None


def _value_fault(
    schema: dict[str, Any], text: str, whole: bool, *, ordered: bool = True
) -> str | None:
    if whole:
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{text!r} is complete and not legal: {error}"
    if not ordered:
        return None
    # Half a character at the end is shown as U+FFFD.
    begun = text if whole else text.rstrip("\ufffd")
    tokens = BYTES.encode([Segment(begun)]).tolist()
    matcher = _byte_matcher(json.dumps(schema))
    if tokens and matcher.deep_copy().validate_tokens(tokens) < len(tokens):
        return f"{text!r} does not begin anything legal"
    return None


@functools.lru_cache(512)
def _byte_matcher(schema: str) -> llguidance.LLMatcher:
    spec = Task(schema=json.loads(schema)).spec(_BYTE_FORMAT)
    return _BYTE_GRAMMARS.compile(spec).pristine


_BYTE_FORMAT = chat_format_for("qwen3", lambda name: BYTES.special_id(name) is not None)
_BYTE_GRAMMARS = GrammarCompiler(BYTES, max_cache_bytes=10**7)
