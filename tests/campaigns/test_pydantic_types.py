"""Every type that pydantic can describe, over three vocabularies: its schema compiles, and what
random weights write under it pydantic reads.

``KEEPWARM_PYDANTIC_CALLS`` sets how many calls are forced (5,000 are the bar),
``KEEPWARM_PYDANTIC_SEED`` with which seed.
"""

import json
import os
import random
from dataclasses import dataclass, field

import jsonschema
import pydantic
import pytest

from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from sessions.turns.output_reader import OutputReader
from tests.support.grammars import compiler, random_output
from tests.support.pydantic_types import Case, cases
from tests.support.vocabularies import NAMES, vocabulary
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat, TemplateOptions
from tools_api.grammar import grammar_for
from tools_api.items import FunctionCall
from tools_api.output_checks import output_checks
from tools_api.parsed_events import (
    CallDone,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

CALLS = int(os.environ.get("KEEPWARM_PYDANTIC_CALLS", "300"))
SEED = int(os.environ.get("KEEPWARM_PYDANTIC_SEED", "0"))
CASES = cases()
MAX_TOKENS = 3000
"""A tool whose ending takes more is compiled only."""


@pytest.fixture(scope="session", params=NAMES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return vocabulary(request.param, tmp_path_factory.mktemp(request.param))


@dataclass
class Tally:
    """What became of the calls."""

    calls: int = 0
    checked_afterwards: int = 0
    """Calls that the check of the finished output found broken: failed turns."""
    refused: list[str] = field(default_factory=list)
    unknown_endings: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)


class Forced:
    """Calls of one tool, written by random weights."""

    def __init__(self, tokenizer: Tokenizer, case: Case, compiled: CompiledGrammar) -> None:
        self._tokenizer = tokenizer
        self._case = case
        self._compiled = compiled
        tool = FunctionTool(name="f", parameters=case.parameters)
        self._checks = output_checks((tool,), TextFormat(), lenient=False)

    def write(self, rng: random.Random, tally: Tally) -> None:
        closing = self._compiled.closing
        assert closing is not None
        limit = len(closing) + rng.choice((0, 1, 7, 40, 150, 400))
        state = GrammarState(self._compiled, self._tokenizer)
        tokens = random_output(state, self._tokenizer, limit, rng)
        tally.calls += 1
        if not state.ended:
            tally.cut.append(f"{self._case.name}: {state.failed or 'cut'}")
            return
        self._judge(tokens, tally)

    def _judge(self, tokens: list[int], tally: Tally) -> None:
        reader = OutputReader(
            tokenizer=self._tokenizer,
            chat_format=format_of(self._tokenizer),
            thinking=False,
            calls=True,
            stops=(),
        )
        pieces = [*reader.read(tokens), *reader.finish()]
        (text,) = (p.parsed.arguments for p in pieces if isinstance(p.parsed, CallDone))
        call = FunctionCall(call_id="c", name="f", arguments=text)
        broken = self._checks.violation([call])
        fits = jsonschema.Draft202012Validator(self._case.parameters).is_valid(json.loads(text))
        tally.checked_afterwards += broken is not None
        if fits is (broken is not None):
            tally.invalid.append(f"{self._case.name}: {text[:200]}: {broken or 'not found broken'}")
        elif fits and self._case.loose is None:
            self._read(text, tally)

    def _read(self, text: str, tally: Tally) -> None:
        try:
            self._case.model.model_validate_json(text)
        except pydantic.ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"]
            tally.invalid.append(f"{self._case.name}: {text[:200]}: {why}")


def format_of(tokenizer: Tokenizer) -> ChatFormat:
    return chat_format_for("qwen3", lambda name: tokenizer.special_id(name) is not None)


def compiled_case(grammars: GrammarCompiler, tokenizer: Tokenizer, case: Case) -> CompiledGrammar:
    spec = grammar_for(
        format_of(tokenizer),
        [FunctionTool(name="f", parameters=case.parameters)],
        ToolChoice(mode="required"),
        parallel_tool_calls=False,
        text_format=TextFormat(),
        options=TemplateOptions(),
    )
    assert spec is not None
    return grammars.compile(spec)


def forced_calls(tokenizer: Tokenizer, calls: int, seed: int) -> Tally:
    """Compile every type and force ``calls`` calls, the types in turn."""
    tally, rng = Tally(), random.Random(seed)
    grammars, usable = compiler(tokenizer), list[Forced]()
    for case in CASES:
        try:
            found = compiled_case(grammars, tokenizer, case)
        except GrammarRefused as refused:
            tally.refused.append(f"{case.name}: {refused.reason}")
            continue
        if found.closing is None:
            tally.unknown_endings.append(case.name)
        elif len(found.closing) <= MAX_TOKENS:
            usable.append(Forced(tokenizer, case, found))
    while tally.calls < calls:
        usable[tally.calls % len(usable)].write(rng, tally)
    return tally


def test_every_type_compiles_and_what_is_written_under_it_is_read(tokenizer: Tokenizer) -> None:
    tally = forced_calls(tokenizer, CALLS // len(NAMES), SEED)
    print(f"seed {SEED}: {tally}")
    assert tally.refused == []
    assert tally.invalid == []
    assert tally.cut == []
    assert set(tally.unknown_endings) <= {"700 models"}
