"""Schemas drawn by the hundred, some with thousands of properties, some recursive, some circular:
each is refused by name or written to the end, and no turn fails for its schema.

``KEEPWARM_GENERATED_SCHEMAS`` sets how many are drawn (one in 25 has more than a thousand
properties), ``KEEPWARM_GENERATED_SEED`` from which seed, ``KEEPWARM_GENERATED_TURNS`` how many of
them a server plays.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepwarm.demo.child_server import child_server
from runtime.grammar.closing_tables import allowed
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.mask_bits import mask_words
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.grammar.trial import Trial
from runtime.tokenizer import Tokenizer
from tests.support.generated_schemas import Generator, Schema, wide_schema
from tests.support.grammars import compiler
from tests.support.vocabularies import vocabulary
from tests.support.wire_client import WireClient
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

SCHEMAS = int(os.environ.get("KEEPWARM_GENERATED_SCHEMAS", "100"))
TURNS = int(os.environ.get("KEEPWARM_GENERATED_TURNS", "30"))
SEED = int(os.environ.get("KEEPWARM_GENERATED_SEED", "0"))
TOKENS = 80
_WIDE = 25
_LIBRARY = ("panic", "lexer", "Parser", "row", "items;", "limit for", "left-recursive", "\n")
"""Words that stand in the library's own errors."""


def drawn_schema(number: int) -> Schema:
    rng = random.Random(f"{SEED}/{number}")
    return wide_schema(rng) if number % _WIDE == 7 else Generator(rng).document()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return vocabulary("shipped", tmp_path_factory.mktemp("shipped"))


def spec_of(tokenizer: Tokenizer, schema: Schema, *, tool: bool) -> GrammarSpec:
    spec = grammar_for(
        chat_format_for("qwen3", lambda name: tokenizer.special_id(name) is not None),
        [FunctionTool(name="f", parameters=schema)] if tool else [],
        ToolChoice(mode="required") if tool else ToolChoice(),
        parallel_tool_calls=False,
        text_format=TextFormat()
        if tool
        else TextFormat(type="json_schema", name="x", schema=schema),
        options=TemplateOptions(),
    )
    assert spec is not None
    return spec


class Player:
    """Writes outputs with drawn tokens in a model's place: of what opens, closes and separates as
    often as of anything else."""

    def __init__(self, tokenizer: Tokenizer, grammars: GrammarCompiler) -> None:
        self._tokenizer = tokenizer
        tables = grammars.tables
        self._structure = [*(tables.separators, tables.quotes, tables.brackets, tables.structure)]
        self._structure += [tables.closes_string, tables.literals]
        self._row = np.zeros(mask_words(tokenizer.vocab_size), dtype=np.int32)

    def fault(self, compiled: CompiledGrammar, rng: random.Random) -> str | None:
        """Why a turn of this grammar fails; None: it does not."""
        state = GrammarState(compiled, self._tokenizer)
        out: list[int] = []
        while len(out) < TOKENS and not state.ended:
            run = state.forced_tokens(TOKENS - len(out)) or self._draw(state, rng)
            if state.failed is not None or not run:
                return f"{state.failed or 'no token is legal'} behind {self._text(out)}"
            state.advance(run)
            out += run
        return state.failed

    def _draw(self, state: GrammarState, rng: random.Random) -> list[int]:
        state.fill_mask(self._row)
        table = rng.choice(self._structure)
        ways = allowed(self._row, table, len(table)) if rng.random() < 0.5 else ()
        if not ways:
            bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")
            ways = tuple(np.flatnonzero(bits).tolist())
        return [rng.choice(ways)] if ways else []

    def _text(self, out: list[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, out)).decode("utf-8", "replace")[-300:]


def test_a_schema_is_refused_by_name_or_stops_no_output(tokenizer: Tokenizer) -> None:
    grammars = compiler(tokenizer, max_cache_bytes=0)
    trial, player = Trial(grammars.tables), Player(tokenizer, grammars)
    count, foreign = Counter[str](), list[str]()
    for number in range(SCHEMAS):
        seed = f"seed {SEED}/{number}"
        spec = spec_of(tokenizer, drawn_schema(number), tool=number % 2 == 0)
        try:
            compiled = grammars.compile(spec)
            trial.of(compiled)
        except GrammarRefused as refused:
            count[refused.reason[:60]] += 1
            foreign += [f"{seed}: {refused.reason}" for word in _LIBRARY if word in refused.reason]
            continue
        count["served"] += 1
        for turn in range(2):
            fault = player.fault(compiled, random.Random(f"{SEED}/{number}/{turn}"))
            assert fault is None, (seed, fault, spec.lark[:2000])
    print(f"seed {SEED}: {dict(count)}")
    assert not foreign
    assert count["served"] > 0.7 * SCHEMAS


async def test_no_turn_of_a_server_fails_for_its_schema(tmp_path: Path) -> None:
    """But for what is checked when an output is finished, as a warning tells its client."""
    ended, faults = Counter[str](), list[Any]()
    with child_server([], log=tmp_path / "log") as server:

        async def agent(first: int) -> None:
            client = await WireClient.open(server.url)
            for number in range(first, TURNS, 4):
                event = await client.turn(**_fields(drawn_schema(number), tool=number % 2 == 0))
                kind, reason = event["type"], event.get("error", {}).get("code")
                if kind == "response.failed":
                    reason = event["response"]["keepwarm"]["reason"]
                    reason = reason if event["response"]["error"]["code"] == reason else "fault"
                ended[kind if reason is None else f"{kind} {reason}"] += 1
                if reason not in (None, "invalid_json_schema", "output_invalid"):
                    faults.append((number, event))
            await client.close()

        await asyncio.gather(*map(agent, range(4)))
    print(f"seed {SEED}: {dict(ended)}")
    assert not faults, f"seed {SEED}: {faults[:3]}"
    assert ended["response.completed"] + ended["response.incomplete"] > 0.6 * TURNS


def _fields(schema: Schema, *, tool: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"input": "go", "max_output_tokens": 120, "store": False}
    if tool:
        named = {"type": "function", "name": "f", "strict": True, "parameters": schema}
        return fields | {"tools": [named], "tool_choice": "required"}
    format_ = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    return fields | {"text": {"format": format_}}
