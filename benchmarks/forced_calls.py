"""Calls that random weights are made to write: nothing but the grammar keeps them in order.

For each tool whose schema the engine enforces, calls are drawn at temperature 1 from a model
that knows nothing, within a token limit a little above the shortest legal call. Each call is
read as the server reads it, step by step, and once more in groups of 2 to 16 tokens; some at
every point where it can be split in two. Its arguments are judged by ``jsonschema``.

The other chat formats follow with drawn tokens (``benchmarks.drawn_calls``). ``--formats`` plays
some of them, ``--calls 0`` them alone: so a run can be divided, and a part is judged as a part.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.call_reading import MAX_SHORTEST_TOKENS, added_up, is_valid
from benchmarks.drawn_calls import DrawnCalls, FormatCounts, every_format
from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from runtime.config import EngineConfig
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.messages import (
    ErrorKind,
    FinishReason,
    GenerationRequest,
    ReleaseBranch,
    SamplingParams,
    SequenceOutput,
)
from runtime.model.runner import load_runner
from runtime.process.loading import assemble
from runtime.tokenizer import IncrementalDecoder, Tokenizer
from sessions.turns.output_reader import OutputReader
from tools_api.call_parser import CallParser
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.parsed_events import (
    ParsedEvent,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

SEED = 0
SIDE_BY_SIDE = 32
GROUPS = range(2, 17)
SPLIT_EVERYWHERE = 20
"""One call in so many is split at every point."""


@dataclass(slots=True)
class Counts:
    """Outcomes of the calls."""

    tools: int = 0
    tools_refused: int = 0
    tools_left_out: int = 0
    calls: int = 0
    tokens: int = 0
    most_tokens_a_step: int = 0
    invalid: int = 0
    """Arguments that are no JSON or that the schema does not accept."""
    lost_or_split: int = 0
    """Event streams that do not add up to one whole call, and readings that differ."""
    unfinished: int = 0
    """Turns that ended in any way but their own end of turn."""
    gave_up: int = 0
    """The part of them where the grammar library ran out of fuel."""
    examples: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(text[:300])


@dataclass(slots=True)
class _Call:
    tool: FunctionTool
    reader: OutputReader
    events: list[ParsedEvent] = field(default_factory=list)


class ForcedCalls:
    """An engine with random weights and the calls it is made to write."""

    def __init__(self, *, model: str = "random:qwen3-tiny", seed: int = SEED) -> None:
        config = EngineConfig(model=model, device="cpu", threads=1, num_blocks=4096)
        runner = load_runner(config)
        self._tokenizer = Tokenizer.load(
            runner.model.tokenizer_folder, vocab_size=runner.model.config.vocab_size
        )
        self._engine = assemble(config, runner, self._tokenizer)
        self._format = chat_format_for(
            "qwen3", lambda name: self._tokenizer.special_id(name) is not None
        )
        self._prompt = self._tokenizer.encode([Segment("Call."), Segment("<|im_start|>", True)])
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._open: dict[str, _Call] = {}
        self.counts = Counts()

    def run(self, tools: Sequence[FunctionTool], calls: int) -> Counts:
        """Write ``calls`` calls, the tools in turn."""
        requests = self._requests(tools)
        while self.counts.calls < calls or self._open:
            while self.counts.calls < calls and len(self._open) < SIDE_BY_SIDE:
                tool, request = next(requests)
                self._submit(tool, request)
            step = self._engine.step()
            for output in step.outputs if step else ():
                self._take(output)
        return self.counts

    def _submit(self, tool: FunctionTool, request: GenerationRequest) -> None:
        reader = OutputReader(
            tokenizer=self._tokenizer,
            chat_format=self._format,
            thinking=False,
            calls=True,
            stops=(),
        )
        self._open[request.request_id] = _Call(tool, reader)
        self.counts.calls += 1
        self._engine.submit([request])

    def _requests(
        self, tools: Sequence[FunctionTool]
    ) -> Iterator[tuple[FunctionTool, GenerationRequest]]:
        compiler = GrammarCompiler(self._tokenizer, max_cache_bytes=1 << 26)
        usable: list[tuple[FunctionTool, GrammarSpec, int]] = []
        for tool in tools:
            self.counts.tools += 1
            spec = self._grammar(tool)
            try:
                closing = compiler.compile(spec).closing
            except GrammarRefused:
                self.counts.tools_refused += 1
                continue
            if closing is None or len(closing) > MAX_SHORTEST_TOKENS:
                self.counts.tools_left_out += 1
                continue
            usable.append((tool, spec, len(closing)))
            yield tool, self._request(spec, len(closing))
        for tool, spec, shortest in itertools.cycle(usable):
            yield tool, self._request(spec, shortest)

    def _grammar(self, tool: FunctionTool) -> GrammarSpec:
        spec = grammar_for(
            self._format,
            [tool],
            ToolChoice(mode="required"),
            parallel_tool_calls=False,
            text_format=TextFormat(),
            options=TemplateOptions(),
        )
        assert spec is not None
        return spec

    def _request(self, spec: GrammarSpec, shortest: int) -> GenerationRequest:
        name = f"call-{next(self._numbers)}"
        return GenerationRequest(
            request_id=name,
            branch_id=name,
            tenant="benchmark",
            base_branch_id=None,
            base_offset=0,
            new_tokens=self._prompt,
            max_new_tokens=shortest + self._rng.randint(0, 64),
            sampling=SamplingParams(temperature=1.0, seed=self._rng.getrandbits(62)),
            grammar=spec,
        )

    def _take(self, output: SequenceOutput) -> None:
        call = self._open[output.request_id]
        counts = self.counts
        counts.most_tokens_a_step = max(counts.most_tokens_a_step, len(output.new_tokens))
        call.events += [piece.parsed for piece in call.reader.read(output.new_tokens)]
        if output.finish is None:
            return
        del self._open[output.request_id]
        self._engine.submit([ReleaseBranch(branch_id=output.request_id)])
        call.events += [piece.parsed for piece in call.reader.finish()]
        counts.tokens += len(call.reader.tokens)
        if output.finish is not FinishReason.STOP:
            counts.unfinished += 1
            counts.gave_up += output.error is ErrorKind.GRAMMAR
            counts.note(f"{call.tool.name}: {output.finish} {output.error_message}")
            return
        self._judge(call)

    def _judge(self, call: _Call) -> None:
        counts = self.counts
        whole = added_up(call.events)
        name, arguments, complete = whole.done[0] if whole.done else ("", "", False)
        streamed = (whole.started, whole.deltas, len(whole.done), whole.other)
        if streamed != ((call.tool.name,), arguments, 1, 0) or not complete:
            counts.lost_or_split += 1
            counts.note(f"{call.tool.name}: {whole}")
        elif any(added_up(events) != whole for events in self._readings(call.reader.tokens)):
            counts.lost_or_split += 1
            counts.note(f"{name}: another reading of {arguments}")
        if not is_valid(arguments, call.tool.parameters):
            counts.invalid += 1
            counts.note(f"{name}: {arguments}")

    def _readings(self, tokens: list[int]) -> Iterator[list[ParsedEvent]]:
        """The same tokens in other pushes."""
        for size in GROUPS:
            yield self._read(tokens[at : at + size] for at in range(0, len(tokens), size))
        if self.counts.calls % SPLIT_EVERYWHERE == 0:
            for point in range(1, len(tokens)):
                yield self._read((tokens[:point], tokens[point:]))

    def _read(self, groups: Iterable[list[int]]) -> list[ParsedEvent]:
        decoder = IncrementalDecoder(self._tokenizer)
        call_parser = CallParser(self._format, False)
        events: list[ParsedEvent] = []
        for group in groups:
            events += call_parser.push(decoder.push(group))
        return events + call_parser.push(decoder.finish()) + call_parser.finish()


def shared_tools(data: Path) -> list[FunctionTool]:
    """The recorded tools, each schema once; names as our own API takes them."""
    tools = []
    seen = set()
    for line in data_file(data, "schemas/tools.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = json.dumps(row["schema"], sort_keys=True)
        if key in seen or not isinstance(row["schema"], dict):
            continue
        seen.add(key)
        tools.append(FunctionTool(name=row["name"], parameters=row["schema"]))
    return tools


def bars(counts: Counts | None) -> list[Bar]:
    values = (None,) * 3 if counts is None else (counts.invalid, counts.lost_or_split, counts.calls)
    invalid, lost, calls = values
    return [
        Bar(name="invalid_arguments", value=invalid, op="<=", bar=0),
        Bar(name="lost_or_split_arguments", value=lost, op="<=", bar=0),
        Bar(name="calls", value=calls, op=">=", bar=500),
    ]


def format_bars(formats: Sequence[FormatCounts] | None) -> list[Bar]:
    """Bars of the calls whose tokens are drawn, over all formats."""

    def total(name: str) -> int | None:
        return None if formats is None else sum(getattr(counts, name) for counts in formats)

    count = len(every_format() if formats is None else formats)
    none = ("invalid", "lost_or_split", "unfinished", "cut_differently", "dropped", "failed")
    least = None if formats is None else min(counts.calls for counts in formats)
    return [
        *(Bar(name=f"formats_{name}", value=total(name), op="<=", bar=0) for name in none),
        Bar(name="calls_a_format", value=least, op=">=", bar=500),
        Bar(name="outputs_cut", value=total("cut"), op=">=", bar=300 * count),
        Bar(name="outputs_mutated", value=total("mutated"), op=">=", bar=1000),
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--calls", type=int, default=2000, help="by the engine, as Hermes")
    options.add_argument("--format-calls", type=int, default=500, help="drawn, in each format")
    known = every_format()
    options.add_argument("--formats", nargs="+", choices=known, default=known, metavar="NAME")
    given = options.parse_args()
    try:
        tools = shared_tools(given.data)
    except DataMissing as error:
        missing = [*bars(None), *format_bars(None)]
        return report_missing("forced_calls", error, missing, as_json=given.json)
    random.Random(SEED).shuffle(tools)
    figures: dict[str, Any] = {}
    judged: list[Bar] = []
    if given.calls:
        counts = ForcedCalls().run(tools, given.calls)
        figures |= {name: getattr(counts, name) for name in Counts.__slots__}
        figures["tokens_per_call"] = round(counts.tokens / counts.calls, 1)
        judged += bars(counts)
    formats = []
    for name in given.formats:
        began = time.perf_counter()
        drawn = DrawnCalls(name, SEED)
        formats.append(drawn.run(tools, calls=given.format_calls, cuts=300, mutations=1000))
        told = {field: getattr(formats[-1], field) for field in FormatCounts.__slots__[1:]}
        told["seconds"] = round(time.perf_counter() - began, 1)
        figures |= {f"{name}_{field}": value for field, value in told.items()}
    figures["all_calls"] = figures.get("calls", 0) + sum(each.calls for each in formats)
    judged += format_bars(formats)
    if given.calls and set(given.formats) == set(known):
        judged.append(Bar(name="all_calls", value=figures["all_calls"], op=">=", bar=10_000))
    return report("forced_calls", figures, judged, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
