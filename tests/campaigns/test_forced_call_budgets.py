"""A forced call within a budget is valid and whole, or is refused before a token of it.

Random budgets of tokens and money meet random schemas, most of them so tight that the budget ends
inside the call. The grammar, its guard and the reservation are the real ones; in the model's
place is a random choice among the tokens that the mask allows.
"""

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest

from runtime.grammar.state import GrammarState
from sessions.durable.account import Account, Budget, BudgetExceeded
from sessions.durable.ledger import Ledger, PriceTable, PromptTokens, TurnUsage
from sessions.durable.reservation import Reservation, TurnNeeds
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import Piece
from tests.support.grammars import compiler, random_output
from tests.support.sessions_rig import TOKENIZER
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.grammar import grammar_for
from tools_api.limits import DEFAULT_LIMITS
from tools_api.parsed_events import (
    CallDone,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, parse_tool_choice, parse_tools

SCHEMAS = 50
BUDGETS = 20
PRICES = PriceTable.per_million(input_uncached=0.2, input_cached=0.02, output=1.3)
FORMAT = chat_format_for("qwen3", lambda name: TOKENIZER.special_id(name) is not None)
PROMPT = PromptTokens(uncached=100, cached=600)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "enum", "boolean", "bounded"] + ["array", "object"] * (depth < 2)
    match rng.choice(kinds):
        case "string":
            return {"type": "string", "maxLength": rng.randint(1, 30)}
        case "integer":
            return {
                "type": "integer",
                "minimum": rng.randint(-50, 0),
                "maximum": rng.randint(1, 9999),
            }
        case "enum":
            return {"enum": rng.sample(["red", "green", "blue", 7, None, "a longer one"], 3)}
        case "boolean":
            return {"type": "boolean"}
        case "bounded":
            return {"type": "string", "minLength": rng.randint(1, 8), "maxLength": 40}
        case "array":
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": rng.randint(0, 3), "maxItems": 9}
    return random_object(rng, depth + 1)


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(["city", "day", "n", "where", "list", "x", "kind"], rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


def tools_of(schema: dict[str, Any]) -> tuple[FunctionTool, ...]:
    raw = [{"type": "function", "name": "look_up", "parameters": schema}]
    return parse_tools(raw, "tools", DEFAULT_LIMITS)


def random_budget(rng: random.Random, least: int) -> Budget:
    """One that ends somewhere about the shortest call."""
    output = max(least + rng.choice((-3, -1, 0, 1, 2, 5, 10, 30, 80)), 0)
    if rng.random() < 0.5:
        return Budget(output=output)
    most = PRICES.most(PROMPT, output, 0)
    return Budget(cost=most + rng.randint(0, 1200))


def limit_of(budget: Budget) -> tuple[Account, Reservation] | None:
    """What a turn may write that the grammar binds; None: nothing."""
    account = Account(scope="session", budget=budget)
    needs = TurnNeeds(prompt_tokens=700, max_output=2000, bound=True, thinks=False)
    reservation = Reservation(needs, Ledger(PRICES, account=account))
    try:
        reservation.admit(cached=600)
    except BudgetExceeded:
        return None
    return account, reservation


def calls_of(tokens: list[int]) -> list[CallDone]:
    reader = OutputReader(
        tokenizer=TOKENIZER, chat_format=FORMAT, thinking=False, calls=True, stops=()
    )
    pieces: list[Piece] = [*reader.read(tokens), *reader.finish()]
    return [piece.parsed for piece in pieces if isinstance(piece.parsed, CallDone)]


@pytest.mark.parametrize("seed", [31])
def test_a_budget_that_ends_inside_a_forced_call_leaves_it_whole(seed: int) -> None:
    rng = random.Random(seed)
    grammars = compiler(TOKENIZER)
    ended: Counter[str] = Counter()
    for _ in range(SCHEMAS):
        schema = random_object(rng)
        tools = tools_of(schema)
        spec = grammar_for(
            FORMAT,
            tools,
            parse_tool_choice("required", tools),
            parallel_tool_calls=False,
            text_format=TextFormat(),
            options=TemplateOptions(thinking=False),
            lenient=False,
            max_calls=1,
        )
        assert spec is not None
        compiled = grammars.compile(spec)
        for _ in range(BUDGETS):
            state = GrammarState(compiled, TOKENIZER)
            held = limit_of(random_budget(rng, len(compiled.closing or ())))
            if held is None:
                ended["nothing left"] += 1
                continue
            account, reservation = held
            limit = reservation.limit
            if state.least_tokens > limit or not state.ends_within(limit):
                reservation.release()
                ended["refused"] += 1
                continue
            out = random_output(state, TOKENIZER, limit, rng)
            assert state.ended
            assert len(out) <= limit
            (call,) = calls_of(out)
            assert call.complete
            jsonschema.validate(json.loads(call.arguments), schema)
            usage = TurnUsage(input_tokens=700, cached_tokens=600, output_tokens=len(out))
            reservation.settle(usage)
            assert all(left >= 0 for left in account.left().bounds().values())
            ended["whole at the limit" if len(out) > limit - 4 else "whole"] += 1
    print(f"seed={seed} {dict(ended)}")
    assert sum(ended.values()) == SCHEMAS * BUDGETS
    assert ended["refused"] > 100
    assert ended["whole at the limit"] > 200
