"""The search for a short legal ending, against values whose shortest form is plain to see."""

import json
import random
from dataclasses import replace
from typing import Any

import llguidance
import pytest

from runtime.grammar.closing import ClosingSearch, Effort, complete
from runtime.grammar.closing_tables import ClosingTables
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.grammars import (
    compiler,
    decode,
    encode,
    mask_of,
    schema_spec,
    small_tokenizer,
)
from tests.support.vocabularies import NAMES, vocabulary

EFFORT = Effort(steps=2000, improving_steps=80)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def compiled(tokenizer: Tokenizer, schema: Any) -> CompiledGrammar:
    return compiler(tokenizer).compile(schema_spec(schema))


def find(
    grammar: CompiledGrammar, matcher: llguidance.LLMatcher, limit: int = 500
) -> tuple[int, ...] | None:
    return grammar.search.find(matcher, limit=limit, effort=EFFORT)


def test_optional_properties_are_left_out_and_required_ones_found_behind_them(
    tokenizer: Tokenizer,
) -> None:
    names = [f"p{i}" for i in range(20)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "array"} for name in names} | {"last": {"type": "boolean"}},
        "required": ["last"],
        "additionalProperties": False,
    }
    text = decode(tokenizer, list(compiled(tokenizer, schema).closing[:-1]))
    assert list(json.loads(text)) == ["last"]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["a much longer alternative", "b", "another long alternative"]}, ["b"]),
        ({"type": "integer", "minimum": 100, "maximum": 999}, list(range(100, 1000))),
        ({"anyOf": [{"type": "string", "minLength": 90}, {"type": "null"}]}, [None]),
        ({"type": "array", "items": {"type": "string"}}, [[]]),
        ({"type": "string"}, [""]),
    ],
)
def test_of_several_values_a_short_one_is_chosen(
    tokenizer: Tokenizer, schema: Any, values: list[Any]
) -> None:
    text = decode(tokenizer, list(compiled(tokenizer, schema).closing[:-1]))
    assert json.loads(text) in values


@pytest.mark.parametrize(
    "typed",
    [
        '"',
        '"caf\u00e9 \\',
        '"\\u00',
        '"ends in a lead byte \xc3',
        '"plain text, then more of it',
    ],
)
def test_strings_close_from_any_half_written_place(tokenizer: Tokenizer, typed: str) -> None:
    grammar = compiled(tokenizer, {"type": "string"})
    matcher = grammar.pristine.deep_copy()
    data = typed.encode("latin-1") if "\xc3" in typed else typed.encode()
    single = {tokenizer.token_bytes(t): t for t in range(tokenizer.vocab_size)}
    assert matcher.consume_tokens([single[data[i : i + 1]] for i in range(len(data))])
    closing = find(grammar, matcher)
    assert closing is not None
    end = b"".join(tokenizer.token_bytes(token) for token in closing[:-1])
    json.loads((data + end).decode())


def test_a_pattern_is_finished_from_the_middle(tokenizer: Tokenizer) -> None:
    schema = {"type": "string", "pattern": "^[a-z]+/[a-z]+/([0-9]{2,3})-end$"}
    grammar = compiled(tokenizer, schema)
    for typed in ('"', '"ab', '"ab/', '"ab/c', '"ab/c/', '"ab/c/12', '"ab/c/123-'):
        matcher = grammar.pristine.deep_copy()
        assert matcher.consume_tokens(encode(tokenizer, typed))
        closing = find(grammar, matcher)
        assert closing is not None, typed
        branch = matcher.deep_copy()
        assert branch.consume_tokens(list(closing[:-1]))
        assert branch.is_accepting()


def test_the_matcher_is_not_changed_and_the_answer_repeats(tokenizer: Tokenizer) -> None:
    grammar = compiled(tokenizer, {"type": "array", "items": {"type": "integer"}, "minItems": 3})
    matcher = grammar.pristine.deep_copy()
    assert matcher.consume_tokens(encode(tokenizer, "[1, "))
    before = matcher.compute_bitmask()
    assert find(grammar, matcher) == find(grammar, matcher)
    assert matcher.compute_bitmask() == before


def test_limits_hold(tokenizer: Tokenizer) -> None:
    grammar = compiled(tokenizer, {"type": "string", "minLength": 400})
    length = len(grammar.closing)
    assert find(grammar, grammar.pristine, limit=length - 1) is None
    assert find(grammar, grammar.pristine, limit=length) == grammar.closing
    few = replace(EFFORT, steps=5)
    assert grammar.search.find(grammar.pristine, limit=500, effort=few) is None


def test_a_search_pauses_at_every_step_and_may_be_left_or_gone_on_with(
    tokenizer: Tokenizer,
) -> None:
    grammar = compiled(tokenizer, {"type": "string", "minLength": 400})
    slowly = grammar.search.finding(grammar.pristine, limit=500, effort=EFFORT)
    for _ in range(3):
        next(slowly)
    left = grammar.search.finding(grammar.pristine, limit=500, effort=EFFORT)
    next(left)
    left.close()
    assert find(grammar, grammar.pristine) == grammar.closing
    assert complete(slowly) == grammar.closing
    pieces = sum(1 for _ in grammar.search.finding(grammar.pristine, limit=500, effort=EFFORT))
    assert 20 < pieces <= EFFORT.steps


@pytest.mark.parametrize("seed", range(20))
def test_repairs_finish_what_a_token_left_half_written(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    grammar = compiled(tokenizer, {"type": "string"})
    search = ClosingSearch(ClosingTables(tokenizer))
    quote = encode(tokenizer, '"')
    lead = rng.choice([0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4])
    token = next(
        t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == bytes([lead])
    )
    matcher = grammar.pristine.deep_copy()
    assert matcher.consume_tokens([*quote, token])
    endings = [[*repair, *quote] for repair in search.repairs(token)]
    assert any(matcher.validate_tokens(ending) == len(ending) for ending in endings)


def test_an_ending_behind_tokens_seen_before_is_remembered(tokenizer: Tokenizer) -> None:
    grammar = compiled(tokenizer, {"type": "array", "items": {"enum": ["left", "right"]}})
    fed = tuple(encode(tokenizer, '["left", "r'))
    matcher = grammar.pristine.deep_copy()
    assert matcher.consume_tokens(list(fed))
    found = find_behind(grammar, fed, matcher, EFFORT)
    assert found == find(grammar, matcher)
    nothing = replace(EFFORT, steps=0)
    assert find_behind(grammar, (), matcher, nothing) is None, "nothing is known there"
    assert find_behind(grammar, fed, matcher, nothing) == found
    assert find_behind(grammar, fed, matcher, nothing, limit=1) is None


def find_behind(
    grammar: CompiledGrammar,
    fed: tuple[int, ...],
    matcher: llguidance.LLMatcher,
    effort: Effort,
    limit: int = 500,
) -> tuple[int, ...] | None:
    return complete(grammar.search.finding_behind(fed, matcher, limit=limit, effort=effort))


ITEMS: dict[str, Any] = {
    "enum": {"enum": ["desk", "lamp", "a, b", "c]"]},
    "const": {"const": "only"},
    "pattern": {"type": "string", "pattern": "^[0-9]{2}$"},
    "uuid": {"type": "string", "format": "uuid"},
    "date": {"type": "string", "format": "date"},
    "numbers": {"enum": [10, 11, 200]},
}


@pytest.mark.samples(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("items", ITEMS)
def test_a_list_of_few_strings_ends_wherever_it_stands(
    vocabularies: dict[str, Tokenizer], name: str, items: str
) -> None:
    tokenizer, rng = vocabularies[name], random.Random(0)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": ITEMS[items]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = compiled(tokenizer, schema)
    search = ClosingSearch(ClosingTables(tokenizer))
    complete(search.preparing(schema_spec(schema).lark))  # no whole values
    state = GrammarState(grammar, tokenizer)
    fed: list[int] = []
    while len(fed) < 40 and not state.ended:
        matcher = grammar.pristine.deep_copy()
        assert matcher.consume_tokens(fed)
        closing = search.find(matcher, limit=200, effort=EFFORT)
        assert closing is not None, decode(tokenizer, fed)
        json.loads(decode(tokenizer, [*fed, *closing[:-1]]))
        tokens = state.forced_tokens(100) or [rng.choice(mask_of(state, tokenizer))]
        state.advance(tokens)
        fed += [token for token in tokens if token != tokenizer.end_of_turn_id]


def test_a_whole_value_of_the_schema_ends_what_no_search_would(tokenizer: Tokenizer) -> None:
    item = {"type": "object", "properties": {"x": {"enum": ["aa", "bb"]}}, "required": ["x"]}
    grammar = compiled(tokenizer, {"type": "array", "items": item, "minItems": 500})
    assert grammar.closing is not None
    assert len(json.loads(decode(tokenizer, list(grammar.closing[:-1])))) == 500
    assert grammar.search.find(grammar.pristine, limit=8192, effort=EFFORT) is None


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {name: vocabulary(name, tmp_path_factory.mktemp(name)) for name in NAMES}
