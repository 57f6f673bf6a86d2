"""The guard alone: what it lets pass, what it replaces, and when it looks at all."""

import random
from pathlib import Path

import numpy as np
import pytest

from runtime.grammar.budget_guard import HORIZON_TOKENS, BudgetGuard
from runtime.grammar.closing import complete
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.mask_bits import mask_words
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, decode, encode, schema_spec, small_tokenizer
from tests.support.vocabularies import vocabulary

SCHEMA = {"type": "array", "items": {"type": "string"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammar(tokenizer: Tokenizer) -> CompiledGrammar:
    return compiler(tokenizer).compile(schema_spec(SCHEMA))


def emit(guard: BudgetGuard, matcher: object, token: int, remaining: int) -> int:
    token = guard.admit(matcher, token, remaining)  # type: ignore[arg-type]
    assert matcher.consume_token(token)  # type: ignore[attr-defined]
    guard.advance([token])
    return token


def test_a_token_passes_while_its_ending_fits_and_gives_way_when_it_does_not(
    tokenizer: Tokenizer, grammar: CompiledGrammar
) -> None:
    matcher = grammar.pristine.deep_copy()
    guard = BudgetGuard(grammar.search, grammar.closing)
    wanted = encode(tokenizer, '["' + "x" * 50)
    limit = 12
    out: list[int] = []
    while matcher.is_accepting() is False:
        out.append(emit(guard, matcher, wanted[len(out)], limit - len(out)))
    text = decode(tokenizer, out)
    assert text.startswith('["xxx')
    assert text.endswith('x"]')
    assert len(out) == limit - 1, "not a token earlier than needed; one is for end-of-turn"


def test_far_from_the_limit_nothing_is_looked_at(
    tokenizer: Tokenizer, grammar: CompiledGrammar
) -> None:
    matcher = grammar.pristine.deep_copy()
    guard = BudgetGuard(grammar.search, grammar.closing)
    for token in encode(tokenizer, '["a", "b'):
        assert emit(guard, matcher, token, HORIZON_TOKENS + 1) == token
    assert guard.plan is None, "not kept up"
    x = encode(tokenizer, "x")[0]
    assert emit(guard, matcher, x, HORIZON_TOKENS) == x
    assert guard.plan is not None
    assert decode(tokenizer, list(guard.plan[:-1])) == '"]'


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_is_legal_after_every_token(
    tokenizer: Tokenizer, grammar: CompiledGrammar, seed: int
) -> None:
    rng = random.Random(seed)
    matcher = grammar.pristine.deep_copy()
    guard = BudgetGuard(grammar.search, grammar.closing)
    pieces = ['["', "a", "\u00e9", '", "', "\\", "n", "b"]
    for text in [pieces[0], *rng.choices(pieces[1:], k=60)]:
        tokens = encode(tokenizer, text)
        if matcher.validate_tokens(tokens) != len(tokens):
            continue
        for token in tokens:
            emit(guard, matcher, token, 2000)
            assert guard.plan is not None
            ending = matcher.deep_copy()
            assert ending.consume_tokens(list(guard.plan[:-1]))
            assert ending.is_accepting()


def test_a_plan_is_resumed_within_a_token_of_it(tmp_path: Path) -> None:
    shipped = vocabulary("shipped", tmp_path)
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 400}
    grammar = compiler(shipped).compile(schema_spec(numbers))
    matcher = grammar.pristine.deep_copy()
    guard = BudgetGuard(grammar.search, grammar.closing)
    of_bytes = {shipped.token_bytes(t): t for t in range(shipped.vocab_size)}
    assert b", " in of_bytes
    for data in (b"[", b"7", b"7", b",", b" ", b"8", b","):
        assert emit(guard, matcher, of_bytes[data], 2000) == of_bytes[data]
        assert guard.plan is not None
        assert matcher.validate_tokens(list(guard.plan)) == len(guard.plan)


def test_a_plan_that_came_too_late_does_not_dictate(
    tokenizer: Tokenizer, grammar: CompiledGrammar
) -> None:
    matcher = grammar.pristine.deep_copy()
    guard = BudgetGuard(grammar.search, grammar.closing)
    wanted = encode(tokenizer, '["xyz')
    assert [emit(guard, matcher, token, 2) for token in wanted[:2]] == wanted[:2]


def closed(**fields: object) -> dict[str, object]:
    required = {"required": list(fields), "additionalProperties": False}
    return {"type": "object", "properties": fields, **required}


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_outlasts_forced_text_of_any_length_that_begins_inside_a_token(
    tmp_path: Path, seed: int
) -> None:
    """Pieces of a token are drawn where the plan has it whole; what follows is forced."""
    rng = random.Random(seed)
    shipped = vocabulary("shipped", tmp_path)
    words = [" ".join(rng.choices(("very", "long", "value", "north"), k=12)) for _ in range(2)]
    inner = closed(
        list={"type": "number", "maximum": 1}, n={"type": "string", "pattern": "^v[0-9]+$"}
    )
    fields = {
        "flag": {"type": "boolean"},
        "day": {"type": "array", "items": {"const": words[0]}, "minItems": 2, "maxItems": 4},
        "text": {"type": "string", "minLength": 7, "maxLength": 40},
        words[1]: {"anyOf": [inner, {"type": "null"}]},
    }
    grammar = compiler(shipped).compile(schema_spec(closed(**fields)))
    assert grammar.closing is not None
    for _ in range(25):
        state = GrammarState(grammar, shipped)
        left = len(grammar.closing) + rng.randrange(20)
        row = np.empty(mask_words(shipped.vocab_size), dtype=np.int32)
        while not state.ended and left:
            token = next(iter(state.forced_tokens(left)), None)
            if token is None:
                state.fill_mask(row)
                bits = np.unpackbits(row.view(np.uint8), bitorder="little")
                token = complete(state.deciding(int(rng.choice(np.flatnonzero(bits))), left))
            state.advance([token])
            left -= 1
        assert state.ended, f"seed {seed}"
