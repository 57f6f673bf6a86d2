"""Does the grammar say what the schema says, fast, and can a hostile schema hurt others?

Four questions over the shared schema sets: which schemas compile (strict, and lenient where
the rest is checked later), whether valid instances are accepted and invalid ones rejected,
what compiling and masking cost, and what 38 hostile schemas do to a session that decodes
meanwhile in the same engine.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import instances
from benchmarks.bpe import train_tokenizer
from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from runtime.config import EngineConfig
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.mask_bits import MaskRow, mask_words
from runtime.grammar.probe import GrammarProbe
from runtime.grammar.probe_child import ProbeLimits
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.messages import (
    GenerationRequest,
    SamplingParams,
    SequenceOutput,
    StepOutput,
)
from runtime.process.engine_process import EngineProcess
from runtime.tokenizer import Tokenizer
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.items import Message, TextPart
from tools_api.output_checks import OutputChecks, output_checks
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

BARS: dict[str, tuple[str, float]] = {
    "compiled_strict": (">=", 0.9),
    "compiled_lenient": (">=", 0.98),
    "valid_accepted": (">=", 0.995),
    "invalid_rejected": (">=", 0.999),
    "hostile_settled": (">=", 38),
    "hostile_neighbour_gap": ("<=", 2.0),
    "compile_p99_ms": ("<=", 50.0),
    "mask_chain8_us": ("<=", 200.0),
}
SEED = 0
CHAIN = 8
ROUNDS = 6
TOKENS_A_ROUND = 400
HOSTILE_TOKENS = 48
Row = dict[str, Any]


def bars(figures: dict[str, Any]) -> list[Bar]:
    return [
        Bar(name=name, value=figures.get(name), op=op, bar=bar)  # type: ignore[arg-type]
        for name, (op, bar) in BARS.items()
    ]


class Grammars:
    """Specs as the server makes them for a ChatML model, compiled and timed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._format = chat_format_for("qwen3", lambda name: tokenizer.special_id(name) is not None)
        self._compiler = GrammarCompiler(tokenizer, max_cache_bytes=0)
        self.compile_s: list[float] = []
        self.refused: list[str] = []

    def for_schema(self, schema: Any, *, lenient: bool = False) -> GrammarSpec:
        text_format = TextFormat(type="json_schema", name="value", schema=schema)
        return self._spec((), ToolChoice(mode="none"), text_format, lenient)

    def for_tools(self, tools: Sequence[Row], *, lenient: bool = False) -> GrammarSpec:
        made = tuple(FunctionTool(name=t["name"], parameters=t["parameters"]) for t in tools)
        return self._spec(made, ToolChoice(mode="required"), TextFormat(), lenient)

    def _spec(
        self,
        tools: tuple[FunctionTool, ...],
        choice: ToolChoice,
        text_format: TextFormat,
        lenient: bool,
    ) -> GrammarSpec:
        spec = grammar_for(
            self._format,
            tools,
            choice,
            parallel_tool_calls=True,
            text_format=text_format,
            options=TemplateOptions(),
            lenient=lenient,
        )
        assert spec is not None
        return spec

    def compile(self, spec: GrammarSpec) -> CompiledGrammar | None:
        started = time.perf_counter()
        try:
            return self._compiler.compile(spec)
        except GrammarRefused as refused:
            self.refused.append(refused.message)
            return None
        finally:
            self.compile_s.append(time.perf_counter() - started)

    def takes(self, grammar: CompiledGrammar, text: str, *, calls: bool = False) -> bool:
        """Whether the grammar lets a model write exactly this text and end its turn."""
        segments = [Segment(text)]
        if calls:
            opener, closer = Segment("<tool_call>", True), Segment("</tool_call>", True)
            segments = [opener, Segment(f"\n{text}\n"), closer]
        tokens = [*self.tokenizer.encode(segments).tolist(), self.tokenizer.end_of_turn_id]
        return GrammarState(grammar, self.tokenizer).validate(tokens) == len(tokens)


def checks_of(schema: Any) -> OutputChecks:
    """Checks of a turn's answer when that is finished."""
    text_format = TextFormat(type="json_schema", name="value", schema=schema)
    return output_checks((), text_format, lenient=False)


def stands(checks: OutputChecks, text: str) -> bool:
    """Whether a finished answer passes its turn's checks."""
    part = TextPart(type="output_text", text=text)
    return checks.violation([Message(role="assistant", content=(part,))]) is None


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def share(hits: Iterable[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found)


def judge_schemas(grammars: Grammars, data: Path) -> dict[str, Any]:
    compiled = lenient = 0
    valid: list[bool] = []
    invalid: list[bool] = []
    schemas = rows(data_file(data, "structured/schemas.jsonl"))
    for row in schemas:
        grammar = grammars.compile(grammars.for_schema(row["schema"]))
        if grammar is not None:
            compiled += 1
            checks = checks_of(row["schema"])
            texts = [instances.write(value, row["schema"]) for value in row["valid"]]
            valid += [grammars.takes(grammar, text) and stands(checks, text) for text in texts]
            texts = [instances.write(value, row["schema"]) for value in row["invalid"]]
            invalid += [
                not (grammars.takes(grammar, text) and stands(checks, text)) for text in texts
            ]
    reasons = sorted({message[:60] for message in grammars.refused})
    timed = list(grammars.compile_s)
    for row in schemas:
        lenient += grammars.compile(grammars.for_schema(row["schema"], lenient=True)) is not None
    return {
        "schemas": len(schemas),
        "compiled_strict": compiled / len(schemas),
        "compiled_lenient": lenient / len(schemas),
        "refusal_reasons": reasons,
        "valid_instances": len(valid),
        "valid_accepted": share(valid),
        "invalid_instances": len(invalid),
        "invalid_rejected": share(invalid),
        "compile_p50_ms": 1e3 * statistics.median(timed),
        "compile_p99_ms": 1e3 * float(np.quantile(timed, 0.99)),
        "compile_max_ms": 1e3 * max(timed),
    }


def judge_tools(grammars: Grammars, data: Path) -> dict[str, Any]:
    tools = rows(data_file(data, "schemas/tools.jsonl"))
    sets = rows(data_file(data, "structured/toolsets.jsonl"))
    compiled = {
        name: share(
            grammars.compile(grammars.for_tools([tool], lenient=name == "lenient")) is not None
            for tool in ({"name": t["name"], "parameters": t["schema"]} for t in tools)
        )
        for name in ("strict", "lenient")
    }
    sets_compiled = 0
    right: list[bool] = []
    for row in sets:
        grammar = grammars.compile(grammars.for_tools(row["tools"]))
        if grammar is None:
            continue
        sets_compiled += 1
        parameters = {tool["name"]: tool["parameters"] for tool in row["tools"]}
        checks = {name: checks_of(schema) for name, schema in parameters.items()}
        for call, good in [(c, True) for c in row["valid"]] + [
            (c["call"], False) for c in row["invalid"]
        ]:
            arguments = instances.write(call["arguments"], parameters.get(call["name"], {}))
            text = f'{{"name": {json.dumps(call["name"])}, "arguments": {arguments}}}'
            passed = call["name"] not in checks or stands(checks[call["name"]], arguments)
            right.append((grammars.takes(grammar, text, calls=True) and passed) is good)
    return {
        "tools": len(tools),
        "tools_compiled_strict": compiled["strict"],
        "tools_compiled_lenient": compiled["lenient"],
        "toolsets_compiled": f"{sets_compiled}/{len(sets)}",
        "calls_judged_right": f"{sum(right)}/{len(right)}",
    }


def _fill_chain(state: GrammarState, rows: MaskRow, draft: list[int]) -> None:
    """Masks for the next token and for those behind each token of a draft, as a step makes them."""
    ahead = state.copy()
    for index, token in enumerate(draft):
        ahead.fill_mask(rows[index])
        ahead.advance((token,))
    ahead.fill_mask(rows[len(draft)])


def time_masks(grammars: Grammars, data: Path) -> dict[str, Any]:
    """Masks for a chain of 8 drafted tokens, at every position of real calls."""
    words = mask_words(grammars.tokenizer.vocab_size)
    buffer = np.zeros((CHAIN + 1, words), dtype=np.int32)
    chains: list[float] = []
    single: list[float] = []
    for row in rows(data_file(data, "structured/transcripts.jsonl"))[:20]:
        grammar = grammars.compile(grammars.for_tools(row["tools"]))
        if grammar is None:
            continue
        for kind, call in row["events"]:
            if kind != "call":
                continue
            text = f'\n{{"name": {json.dumps(call["name"])}, "arguments": '
            text += json.dumps(call["arguments"], ensure_ascii=False) + "}\n"
            segments = [Segment("<tool_call>", True), Segment(text), Segment("</tool_call>", True)]
            tokens = grammars.tokenizer.encode(segments).tolist()
            state = GrammarState(grammar, grammars.tokenizer)
            for position, token in enumerate(tokens):
                draft = tokens[position : position + CHAIN]
                if len(draft) == CHAIN:
                    started = time.perf_counter()
                    _fill_chain(state, buffer, draft)
                    chains.append(time.perf_counter() - started)
                started = time.perf_counter()
                state.fill_mask(buffer[0])
                single.append(time.perf_counter() - started)
                state.advance((token,))
                if state.failed is not None:
                    break
    return {
        "mask_chain8_us": 1e6 * statistics.median(chains),
        "mask_chain8_p99_us": 1e6 * float(np.quantile(chains, 0.99)),
        "mask_us": 1e6 * statistics.median(single),
        "chains": len(chains),
    }


class Neighbour:
    """A session that decodes free text all the while; the gaps between its tokens."""

    def __init__(self, engine: EngineProcess, banned: tuple[int, ...]) -> None:
        self._engine = engine
        self._banned = banned
        self._count = 0
        self.gaps: list[float] = []
        self._last: float | None = None

    def start(self) -> None:
        self._count += 1
        self._last = None
        self._engine.send([self._request()])

    def see(self, output: SequenceOutput) -> None:
        if output.request_id != f"neighbour-{self._count}":
            return
        now = time.perf_counter()
        if len(output.new_tokens):
            if self._last is not None:
                self.gaps.append(now - self._last)
            self._last = now
        if output.finish is not None:
            self.start()

    def _request(self) -> GenerationRequest:
        name = f"neighbour-{self._count}"
        return request(name, None, 512, self._banned)


def request(
    name: str, grammar: GrammarSpec | None, max_new_tokens: int, banned: tuple[int, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        branch_id=name,
        tenant="benchmark",
        base_branch_id=None,
        base_offset=0,
        new_tokens=np.arange(40, 72, dtype=np.int32),
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(temperature=1.0, seed=SEED),
        grammar=grammar,
        banned_tokens=banned,
    )


async def hostile(data: Path, model: str) -> dict[str, Any]:
    """Each hostile schema goes the way of a client's: probe first, then a turn of its own.

    Rounds with and without them alternate, so that what else the machine does counts alike.
    """
    schemas = rows(data_file(data, "structured/adversarial.jsonl"))
    engine = EngineProcess(EngineConfig(model=model, threads=1, num_blocks=1024))
    info = await engine.start()
    folder = Path(info.tokenizer_folder)
    probe = GrammarProbe(folder, vocab_size=info.vocab_size, model_type=info.model_type)
    await probe.start()
    try:
        tokenizer = Tokenizer.load(folder, vocab_size=info.vocab_size, model_type=info.model_type)
        neighbour = Neighbour(engine, tuple(tokenizer.specials.values()))
        attacker = Attacker(engine, probe)
        pump = asyncio.create_task(_pump(engine, neighbour, attacker))
        neighbour.start()
        alone: list[float] = []
        beside: list[float] = []
        settled = len(schemas)
        for number in range(ROUNDS):
            neighbour.gaps.clear()
            while len(neighbour.gaps) < TOKENS_A_ROUND:
                await asyncio.sleep(0.02)
            alone += neighbour.gaps
            neighbour.gaps.clear()
            settled = min(settled, await attacker.attack(schemas, number))
            beside += neighbour.gaps
        pump.cancel()
    finally:
        await probe.stop()
        await engine.stop()
    p99 = [1e3 * float(np.quantile(gaps, 0.99)) for gaps in (alone, beside)]
    return {
        "hostile_settled": settled,
        "hostile_passed_probe": attacker.passed // ROUNDS,
        "hostile_slowest_verdict_s": attacker.slowest_s,
        "hostile_neighbour_gap": p99[1] / p99[0],
        "neighbour_p99_ms": p99,
        "neighbour_tokens": [len(alone), len(beside)],
    }


class Attacker:
    """Sends hostile schemas, one after the other, each in a turn of its own."""

    def __init__(self, engine: EngineProcess, probe: GrammarProbe) -> None:
        self._engine = engine
        self._probe = probe
        self._open: dict[str, asyncio.Future[None]] = {}
        self.passed = 0
        self.slowest_s = 0.0

    async def attack(self, schemas: Sequence[Row], number: int) -> int:
        """How many of the schemas came to an end, refused or decoded, in time."""
        settled = 0
        for row in schemas:
            # The comment makes it a grammar that nobody has seen before.
            lark = f"// {number}\nstart: value\nvalue: %json {row['schema_text']}"
            spec = GrammarSpec(lark=lark)
            started = time.perf_counter()
            refused = await self._probe.check(spec)
            taken_s = time.perf_counter() - started
            self.slowest_s = max(self.slowest_s, taken_s)
            if refused is None:
                self.passed += 1
                await self._turn(f"hostile-{row['id']}-{number}", spec)
            settled += taken_s <= ProbeLimits().seconds + 0.5
        return settled

    def see(self, output: SequenceOutput) -> None:
        if output.finish is not None and output.request_id in self._open:
            self._open.pop(output.request_id).set_result(None)

    async def _turn(self, name: str, spec: GrammarSpec) -> None:
        self._open[name] = asyncio.get_running_loop().create_future()
        self._engine.send([request(name, spec, HOSTILE_TOKENS)])
        await asyncio.wait_for(self._open[name], 60)


async def _pump(engine: EngineProcess, neighbour: Neighbour, attacker: Attacker) -> None:
    while True:
        step: StepOutput = await engine.receive()
        for output in step.outputs:
            neighbour.see(output)
            attacker.see(output)


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--model", default="default", help="model that decodes")
    given = options.parse_args(arguments)
    figures: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            grammars = Grammars(train_tokenizer(given.data, Path(folder), seed=SEED))
            figures |= judge_schemas(grammars, given.data)
            figures |= time_masks(grammars, given.data)
            figures |= judge_tools(grammars, given.data)
        figures |= asyncio.run(hostile(given.data, given.model))
    except DataMissing as error:
        return report_missing("grammar", error, bars({}), as_json=given.json)
    return report("grammar", figures, bars(figures), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
