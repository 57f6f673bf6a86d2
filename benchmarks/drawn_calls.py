"""Calls in every chat format, their tokens drawn at random: only the grammar keeps them in order.

For each format, tools and tokens are drawn; a call is written within a token limit a little above
the shortest legal one, as the engine writes it: forced runs, masks, and endings that fit. It is
read whole, in groups of tokens and cut at every character, and judged by ``jsonschema``. Then it is
spoilt and read again, with nothing to keep it in order: no reader may fail, and no text may be
lost but where a call is said to be incomplete.
"""

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.call_reading import MAX_SHORTEST_TOKENS, added_up, is_valid
from runtime.grammar.closing import complete
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.mask_bits import mask_words
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.tokenizer import IncrementalDecoder
from tests.support.chat_models import FORMATS, served
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.errors import ApiError
from tools_api.grammar import grammar_for
from tools_api.harmony import HarmonyCalls
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

GROUPS = (2, 3, 5, 7, 16)
MARKER = "Zq7Xw"
"""A word that no tool and no format has."""
_LETTERS = tuple(map(ord, "aeo 1{}[]\"'<>/\n,:=()"))


@dataclass(slots=True)
class FormatCounts:
    """Outcomes of the calls of one format."""

    format: str
    refused: int = 0
    calls: int = 0
    tokens: int = 0
    invalid: int = 0
    """Arguments that are no JSON or that the schema does not accept."""
    lost_or_split: int = 0
    """Event streams that do not add up to one whole call, and readings that differ."""
    unfinished: int = 0
    """Turns that ended in any way but their own end of turn."""
    cut: int = 0
    """Outputs that were cut at every character."""
    cut_differently: int = 0
    mutated: int = 0
    dropped: int = 0
    """Mutated outputs of which a word is nowhere in the events, though every call is complete."""
    failed: int = 0
    """Mutated outputs at which a reader failed, or behind which nothing could be rendered."""
    examples: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep one of the first faults."""
        if len(self.examples) < 5:
            self.examples.append(text[:400])


class DrawnCalls:
    """One format with its tokenizer of bytes and special tokens."""

    def __init__(self, name: str, seed: int = 0) -> None:
        model = served(name)
        self._tokenizer, self._format = model.tokenizer, model.chat_format
        self._compiler = GrammarCompiler(self._tokenizer, max_cache_bytes=1 << 27)
        self._rng = random.Random(f"{name} {seed}")
        self._ends = frozenset(self._format.end_of_turn)
        self._speaks_first = isinstance(self._format.calls, HarmonyCalls)
        """Messages to the user and reasoning may stand in front of a required call."""
        self._inner_specials = sorted(self._tokenizer.specials.keys() - self._ends)
        self.counts = FormatCounts(name)

    def run(
        self, tools: Sequence[FunctionTool], *, calls: int, cuts: int, mutations: int
    ) -> FormatCounts:
        """Write so many calls, the tools in turn; cut and spoil so many of them."""
        counts, outputs = self.counts, list[tuple[FunctionTool, list[Segment]]]()
        for tool, compiled in itertools.islice(self._usable(tools), calls):
            tokens = self._written(compiled)
            counts.calls += 1
            counts.tokens += len(tokens)
            if not tokens or tokens[-1] not in self._tokenizer.end_of_turn_ids:
                counts.unfinished += 1
                counts.note(f"{tool.name}: unfinished {self._shown(tokens)}")
                continue
            self._judge(tool, tokens)
            outputs.append((tool, self._segments([tokens])))
        for tool, segments in itertools.islice(itertools.cycle(outputs), cuts):
            self._cut_everywhere(tool, segments)
        for tool, segments in itertools.islice(itertools.cycle(outputs), mutations):
            self._spoil(tool, segments)
        return counts

    def _usable(
        self, tools: Sequence[FunctionTool]
    ) -> Iterator[tuple[FunctionTool, CompiledGrammar]]:
        usable: list[tuple[FunctionTool, CompiledGrammar]] = []
        for tool in tools:
            try:
                compiled = self._compiled(tool)
            except (GrammarRefused, ApiError):
                self.counts.refused += 1
                continue
            if compiled.closing is not None and len(compiled.closing) <= MAX_SHORTEST_TOKENS:
                usable.append((tool, compiled))
                yield tool, compiled
        yield from itertools.cycle(usable)

    def _compiled(self, tool: FunctionTool) -> CompiledGrammar:
        spec = grammar_for(
            self._format,
            [tool],
            ToolChoice(mode="required"),
            parallel_tool_calls=False,
            text_format=TextFormat(),
            options=TemplateOptions(),
        )
        assert spec is not None
        return self._compiler.compile(spec)

    def _written(self, compiled: CompiledGrammar) -> list[int]:
        assert compiled.closing is not None
        state, tokens = GrammarState(compiled, self._tokenizer), list[int]()
        left = len(compiled.closing) + self._rng.randint(0, 64)
        row = np.zeros(mask_words(self._tokenizer.vocab_size), dtype=np.int32)
        while left > 0 and not state.ended and state.failed is None:
            run = state.forced_tokens(left)
            if not run:
                state.fill_mask(row)
                run = [complete(state.deciding(self._drawn(row), left))]
            end = next((i for i, t in enumerate(run) if t in self._tokenizer.end_of_turn_ids), None)
            run = run if end is None else run[: end + 1]
            state.advance(run)
            tokens += run
            left -= len(run)
        return tokens

    def _drawn(self, row: np.ndarray) -> int:
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        likely = [token for token in _LETTERS if token in bits]
        likely += [int(token) for token in bits if token >= 256]
        return int(self._rng.choice(likely if likely and self._rng.random() < 0.7 else bits))

    def _segments(self, groups: Iterable[Sequence[int]]) -> list[Segment]:
        decoder = IncrementalDecoder(self._tokenizer)
        segments = [segment for group in groups for segment in decoder.push(group)]
        return [*segments, *decoder.finish()]

    def _shown(self, tokens: Sequence[int]) -> str:
        return "".join(segment.text for segment in self._segments([tokens]))

    def _read(self, tool: FunctionTool, pushes: Iterable[Sequence[Segment]]) -> list[ParsedEvent]:
        parser = CallParser(self._format, False, tools=[tool])
        events = [event for push in pushes for event in parser.push(push)]
        return events + parser.finish()

    def _judge(self, tool: FunctionTool, tokens: list[int]) -> None:
        counts = self.counts
        events = self._read(tool, [self._segments([tokens])])
        whole, told = added_up(events), joined(events)
        _, arguments, is_complete = whole.done[0] if whole.done else ("", "", False)
        streamed = (whole.started, whole.deltas, len(whole.done))
        beside = whole.other and not self._speaks_first
        if streamed != ((tool.name,), arguments, 1) or beside or not is_complete:
            counts.lost_or_split += 1
            counts.note(f"{tool.name}: {whole} of {self._shown(tokens)}")
        for size in GROUPS:
            groups = (tokens[at : at + size] for at in range(0, len(tokens), size))
            decoder = IncrementalDecoder(self._tokenizer)
            pushes = [*(decoder.push(group) for group in groups), decoder.finish()]
            if joined(self._read(tool, pushes)) != told:
                counts.lost_or_split += 1
                counts.note(f"{tool.name}: in groups of {size}: {self._shown(tokens)}")
        if not is_valid(arguments, tool.parameters):
            counts.invalid += 1
            counts.note(f"{tool.name}: {arguments} of {self._shown(tokens)}")

    def _cut_everywhere(self, tool: FunctionTool, segments: list[Segment]) -> None:
        """In two parts, at every character of its text and at every token."""
        self.counts.cut += 1
        whole = joined(self._read(tool, [segments]))
        for first, second in _halves(segments):
            if joined(self._read(tool, [first, second])) != whole:
                self.counts.cut_differently += 1
                self.counts.note(f"{tool.name}: cut behind {first}")
                return

    def _spoil(self, tool: FunctionTool, segments: list[Segment]) -> None:
        counts, spoilt = self.counts, self._mutated(segments)
        counts.mutated += 1
        try:
            events = self._read(tool, [spoilt])
            again = self._format.items((), first=False, open_output=True, options=TemplateOptions())
            assert isinstance(again, list)
        except Exception as error:  # whatever a reader raises is a fault
            counts.failed += 1
            counts.note(f"{type(error).__name__}: {error} at {spoilt}")
            return
        told = "".join(map(_text_of, events))
        broken = any(isinstance(event, CallDone) and not event.complete for event in events)
        given = "".join(segment.text for segment in spoilt if not segment.special)
        if told.count(MARKER) < given.count(MARKER) and not broken:
            counts.dropped += 1
            counts.note(f"dropped: {''.join(s.text for s in spoilt)} -> {events}")

    def _mutated(self, segments: list[Segment]) -> list[Segment]:
        """With a word somewhere, and some of the rest gone, doubled, changed or moved. The model
        ends it, as before: of what is cut a call without its name is left out."""
        rng, end = self._rng, segments[-1]
        units = [
            unit
            for segment in segments
            for unit in ([segment] if segment.special else [Segment(char) for char in segment.text])
        ]
        units.insert(rng.randrange(len(units)), Segment(MARKER))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(units))
            if units[at].text == MARKER:
                continue
            match rng.randrange(5):
                case 0:
                    del units[at]
                case 1:
                    units.insert(at, units[at])
                case 2:
                    units[at] = Segment(rng.choice('a<>{}"\n[]()=,'))
                case 3:
                    units.insert(rng.randrange(len(units)), units.pop(at))
                case _:
                    units.insert(at, Segment(rng.choice(self._inner_specials), special=True))
        return [*(unit for unit in units if unit.text not in self._ends), end]


def joined(events: Iterable[ParsedEvent]) -> list[ParsedEvent]:
    """The events, neighbouring texts of a kind as one."""
    told: list[ParsedEvent] = []
    for event in events:
        match told[-1:], event:
            case [ParsedText(before)], ParsedText(text):
                told[-1] = ParsedText(before + text)
            case [ParsedReasoning(before)], ParsedReasoning(text):
                told[-1] = ParsedReasoning(before + text)
            case [CallArgumentsDelta(before)], CallArgumentsDelta(text):
                told[-1] = CallArgumentsDelta(before + text)
            case _:
                told.append(event)
    return told


def _text_of(event: ParsedEvent) -> str:
    match event:
        case ParsedText(text) | ParsedReasoning(text) | CallArgumentsDelta(text):
            return text
        case ParsedCallStart(name):
            return name
    return ""


def _halves(segments: list[Segment]) -> Iterator[tuple[list[Segment], list[Segment]]]:
    for at, segment in enumerate(segments):
        yield segments[:at], segments[at:]
        for cut in range(1, 1 if segment.special else len(segment.text)):
            head, tail = Segment(segment.text[:cut]), Segment(segment.text[cut:])
            yield [*segments[:at], head], [tail, *segments[at + 1 :]]


def every_format() -> list[str]:
    """One row of the table for each way of writing calls; reasoning changes none."""
    return [name for name in FORMATS if not re.search(r"-thinking$", name)]
