"""Masks, forced runs and legal closing, over schemas of every shape that matters."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from runtime.grammar import state as token_mask
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.grammars import (
    compiler,
    decided,
    decode,
    encode,
    mask_of,
    random_output,
    schema_spec,
    small_tokenizer,
)

FLIGHT = {
    "type": "object",
    "properties": {
        "user_id": {"type": "string"},
        "kind": {"type": "string", "enum": ["one_way", "round_trip"]},
        "seats": {"type": "integer", "minimum": 1, "maximum": 20},
        "bags": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"kg": {"type": "number"}},
                "required": ["kg"],
            },
        },
    },
    "required": ["user_id", "kind"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "flight": FLIGHT,
    "const": {"const": {"a": [1, "x <|im_end|> <tool_call> y", None]}},
    "enum": {"enum": ["a", "ab", "a long one", 7, True]},
    "nested": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 3},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["name", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "pattern": {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}},
        "required": ["id"],
    },
    "loose pattern": {"type": "string", "pattern": "[\\w-]+:[0-9a-f-]+"},
    "formats": {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
            "id": {"type": "string", "format": "uuid"},
        },
        "required": ["when", "mail", "id"],
    },
    "numbers": {
        "type": "array",
        "items": {"type": "number", "minimum": 0.0167, "maximum": 30},
        "minItems": 2,
    },
    "late required": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(12)}
        | {"last": {"type": "boolean"}},
        "required": ["last"],
        "additionalProperties": False,
    },
    "long string": {"type": "string", "minLength": 200, "maxLength": 220},
    "anything": {"type": "object"},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


def start(
    grammars: GrammarCompiler, tokenizer: Tokenizer, schema: Any, **phases: str
) -> GrammarState:
    return GrammarState(grammars.compile(schema_spec(schema, **phases)), tokenizer)


def shortest(state: GrammarState) -> int:
    """At a sequence's start: the least limit that a legal output is known to fit in."""
    return next(limit for limit in range(1, 10_000) if state.ends_within(limit))


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(4))
def test_random_weights_write_a_valid_value_within_any_limit_that_fits_one(
    grammars: GrammarCompiler, tokenizer: Tokenizer, name: str, seed: int
) -> None:
    rng = random.Random(seed)
    state = start(grammars, tokenizer, SCHEMAS[name])
    limit = shortest(state) + rng.choice([0, 1, 5, 60])
    out = random_output(state, tokenizer, limit, rng)
    assert state.failed is None
    assert out[-1] == tokenizer.end_of_turn_id, "closed before the limit"
    value = json.loads(decode(tokenizer, out[:-1]))
    jsonschema.Draft202012Validator(SCHEMAS[name]).validate(value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_forced_token_is_the_only_one_its_mask_allows(
    grammars: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    state = start(grammars, tokenizer, SCHEMAS[name])
    rng = random.Random(7)
    emitted: list[int] = []
    forced = 0
    while not state.ended:
        run = state.forced_tokens(10_000)
        plain = start(grammars, tokenizer, SCHEMAS[name])  # knows nothing of forced runs
        plain.advance(emitted)
        for token in run:
            assert mask_of(plain, tokenizer) == [token] == mask_of(state, tokenizer)
            plain.advance([token])
            state.advance([token])
            emitted.append(token)
            forced += 1
        if state.ended:
            break
        allowed = mask_of(state, tokenizer)
        assert allowed == mask_of(plain, tokenizer)
        assert len(allowed) > 1, "one token left is a forced token"
        token = decided(state, rng.choice(allowed), 300 - len(emitted))
        state.advance([token])
        emitted.append(token)
    assert forced > 0


def test_text_of_a_special_token_in_a_schema_stays_text(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, {"const": "a<|im_end|>b"})
    run = state.forced_tokens(100)
    assert decode(tokenizer, run[:-1]) == '"a<|im_end|>b"'
    assert [t for t in run if tokenizer.is_special(t)] == [tokenizer.end_of_turn_id]


def test_end_of_turn_is_legal_exactly_where_the_value_may_end(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, {"type": "integer"})
    assert tokenizer.end_of_turn_id not in mask_of(state, tokenizer)
    state.advance(encode(tokenizer, "4"))
    allowed = mask_of(state, tokenizer)
    assert tokenizer.end_of_turn_id in allowed
    assert encode(tokenizer, "2")[0] in allowed
    assert state.forced_tokens(10) == []
    state.advance([tokenizer.end_of_turn_id])
    assert state.ended
    assert mask_of(state, tokenizer) == []


def test_a_grammar_starts_to_bind_behind_its_tokens(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, {"const": 1}, after="</think>", trigger="<tool_call>")
    think, call = tokenizer.special_id("</think>"), tokenizer.special_id("<tool_call>")
    assert think is not None
    assert call is not None
    state.advance([*encode(tokenizer, "hm"), call, *encode(tokenizer, "hm")])
    assert not state.bound, "the trigger does not count before `after`"
    state.advance([think, *encode(tokenizer, "well")])
    assert not state.bound
    assert state.forced_tokens(10) == []
    state.advance([call])
    assert state.bound
    run = state.forced_tokens(10)
    assert decode(tokenizer, run[:-1]) == "1\n</tool_call>"
    assert run[-1] == tokenizer.end_of_turn_id


def test_the_trigger_is_blocked_when_the_shortest_call_no_longer_fits(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT, trigger="<tool_call>")
    call = tokenizer.special_id("<tool_call>")
    assert call is not None
    inside = len(grammars.compile(schema_spec(FLIGHT, trigger="<tool_call>")).closing)
    assert state.blocked_tokens(inside + 1) == ()
    assert state.blocked_tokens(inside) == (call,)
    assert shortest(state) == 1, "free text may end at any point"
    state.advance([call])
    assert state.blocked_tokens(1) == ()
    out = random_output(state, tokenizer, inside, random.Random(0))
    assert state.ended, decode(tokenizer, out)


def test_thinking_is_cut_off_in_time_for_a_call_that_must_come(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT, after="</think>")
    think = tokenizer.special_id("</think>")
    word = encode(tokenizer, "hm")[0]
    limit = shortest(state) + 3
    assert set(state.blocked_tokens(limit)) == tokenizer.end_of_turn_ids
    emitted = []
    while not state.bound:
        token = decided(state, word, limit - len(emitted))
        state.advance([token])
        emitted.append(token)
    assert emitted == [word] * 3 + [think]
    random_output(state, tokenizer, limit - len(emitted), random.Random(0))
    assert state.ended


@pytest.mark.parametrize("seed", range(6))
def test_decisions_do_not_depend_on_how_many_tokens_a_step_brings(
    grammars: GrammarCompiler, tokenizer: Tokenizer, seed: int
) -> None:
    def write(jump: bool) -> list[int]:
        state = start(grammars, tokenizer, SCHEMAS["nested"])
        limit, out = shortest(state) + 45, []
        while not state.ended:
            run = state.forced_tokens(limit - len(out)) if jump else []
            if not run:
                allowed = mask_of(state, tokenizer)
                drawn = random.Random(seed * 1000 + len(out)).choice(allowed)
                # A token that the mask forces is emitted without asking the guard.
                run = allowed if len(allowed) == 1 else [decided(state, drawn, limit - len(out))]
            state.advance(run)
            out += run
        return out

    assert write(jump=True) == write(jump=False)


@pytest.mark.parametrize("limit", range(1, 40))
def test_a_forced_run_is_the_same_however_little_of_it_a_limit_lets_through(
    grammars: GrammarCompiler, tokenizer: Tokenizer, limit: int
) -> None:
    """A run as long as the limit went on behind what the matcher knew, and not behind what had
    been emitted: tokens were left out."""
    schema = {"type": "object", "properties": {"city": {"const": "very long value, north east"}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    whole = start(grammars, tokenizer, schema).forced_tokens(1000)
    state, out = start(grammars, tokenizer, schema), list[int]()
    while not state.ended and len(out) < limit:
        token = state.forced_tokens(limit - len(out))[0]
        state.advance([token])
        out.append(token)
    assert state.failed is None
    assert out == whole[:limit]


def test_a_copy_has_the_masks_of_its_own_walk_and_the_state_stays(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT)
    draft = encode(tokenizer, '{"user_id": "mia", "kind": "one')
    for count in range(len(draft) + 1):
        copied, walked = state.copy(), start(grammars, tokenizer, FLIGHT)
        copied.advance(draft[:count])
        walked.advance(draft[:count])
        assert mask_of(copied, tokenizer) == mask_of(walked, tokenizer)
    assert mask_of(state, tokenizer) == draft[:1], "the state itself stays"


def test_a_copy_differs_from_its_state_in_nothing_but_the_plan_for_closing(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT)
    state.advance(encode(tokenizer, '{"user_id": "m'))
    mask_of(state, tokenizer)
    copied = state.copy()
    for name in GrammarState.__slots__:
        mine, theirs = getattr(state, name), getattr(copied, name)
        if name == "_matcher":
            assert theirs is not mine
        elif name == "_row":
            assert theirs is not mine
            assert np.array_equal(theirs, mine)
        elif name == "_guard":
            assert theirs is None
        else:
            assert theirs == mine, name


@pytest.mark.parametrize("seed", range(5))
def test_masks_depend_on_the_history_alone(
    grammars: GrammarCompiler, tokenizer: Tokenizer, seed: int
) -> None:
    rng = random.Random(seed)
    state = start(grammars, tokenizer, SCHEMAS["flight"])
    emitted: list[int] = []
    while not state.ended and len(emitted) < 60:
        allowed = mask_of(state, tokenizer)
        for wrong in rng.sample(allowed, min(2, len(allowed))):
            detour = state.copy()
            detour.advance([wrong])
            detour.forced_tokens(50)
        state.validate([rng.randrange(tokenizer.vocab_size) for _ in range(3)])
        fresh = start(grammars, tokenizer, SCHEMAS["flight"])
        fresh.advance(emitted)
        assert mask_of(fresh, tokenizer) == allowed == mask_of(state, tokenizer)
        token = rng.choice(allowed)
        state.advance([token])
        emitted.append(token)


def test_validate_counts_what_is_legal_text(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT)
    good = encode(tokenizer, '{"user_id": "mia"')
    bad = encode(tokenizer, "}")
    assert state.validate([*good, *bad]) == len(good)
    state.forced_tokens(100)
    assert state.validate([*good, *bad]) == len(good), "the same with a forced run pending"
    assert state.validate([]) == 0
    assert state.validate(bad) == 0


def test_a_token_that_is_not_legal_fails_the_turn_and_nothing_else(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(grammars, tokenizer, FLIGHT)
    state.advance(encode(tokenizer, "]"))
    assert state.failed is not None
    assert mask_of(state, tokenizer) == []
    assert state.forced_tokens(5) == []
    assert start(grammars, tokenizer, FLIGHT).forced_tokens(1) == encode(tokenizer, '{"')


def test_running_out_of_fuel_is_a_failure_of_the_turn(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = start(
        grammars, tokenizer, {"type": "string", "pattern": "^((x{1,100}){1,100}){1,100}$"}
    )
    x = encode(tokenizer, "x")[-1]
    state.advance(encode(tokenizer, '"'))
    for _ in range(200):
        if x not in mask_of(state, tokenizer):
            break
        state.advance([x])
    assert state.failed is not None
    assert "\n" not in state.failed
    assert mask_of(state, tokenizer) == []


COSTLY = {"type": "string", "pattern": "^(.{0,60}x){0,60}$"}


def run_out_of_fuel(state: GrammarState, tokenizer: Tokenizer) -> None:
    x = encode(tokenizer, "x")
    state.advance(encode(tokenizer, '"'))
    for _ in range(200):
        if x[0] not in mask_of(state, tokenizer):
            break
        state.advance(x)
    assert state.failed is not None


def test_a_turn_that_runs_out_of_fuel_leaves_the_others_of_its_grammar_alone(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    quote, x = encode(tokenizer, '"'), encode(tokenizer, "x")
    hostile, other = (start(grammars, tokenizer, COSTLY) for _ in range(2))
    other.advance([*quote, *x])
    before, first = (mask_of(s, tokenizer) for s in (other.copy(), hostile.copy()))
    run_out_of_fuel(hostile, tokenizer)
    assert mask_of(other, tokenizer) == before
    other.advance([*x, *quote])
    assert other.failed is None
    assert tokenizer.end_of_turn_id in mask_of(other, tokenizer)
    assert mask_of(start(grammars, tokenizer, COSTLY), tokenizer) == first


def test_a_long_grammar_is_not_built_again_while_others_wait(
    grammars: GrammarCompiler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_mask, "_RENEWED_CHARS", 10)
    hostile, other = (start(grammars, tokenizer, COSTLY) for _ in range(2))
    run_out_of_fuel(hostile, tokenizer)
    assert mask_of(other, tokenizer) == []
    assert other.failed is not None


def test_padding_of_the_embedding_is_never_allowed(tmp_path: Path) -> None:
    small_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path, vocab_size=1000, model_type="qwen3")
    state = start(compiler(tokenizer), tokenizer, {"type": "string"})
    state.advance(encode(tokenizer, '"'))
    allowed = mask_of(state, tokenizer)
    assert len(allowed) > 200
    assert all(tokenizer.is_defined(token) for token in allowed)


ENDLESSLY_LONG = {"type": "array", "items": {"type": "integer"}, "minItems": 9000}


@pytest.mark.parametrize("seed", range(3))
def test_without_a_known_ending_a_turn_writes_until_its_limit(
    grammars: GrammarCompiler, tokenizer: Tokenizer, seed: int
) -> None:
    state = start(grammars, tokenizer, ENDLESSLY_LONG)
    assert not state.ends_within(4000)
    out = random_output(state, tokenizer, 80, random.Random(seed))
    assert (state.ended, state.failed, len(out)) == (False, None, 80)
    assert decode(tokenizer, out).startswith("[")


def test_without_a_known_ending_a_call_may_begin_and_thinking_is_not_cut_off(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    waiting = start(grammars, tokenizer, ENDLESSLY_LONG, trigger="<tool_call>")
    assert waiting.blocked_tokens(10) == ()
    assert not waiting.ends_within(4000), "a call that has begun may be cut"
    thinking = start(grammars, tokenizer, ENDLESSLY_LONG, after="</think>")
    word = encode(tokenizer, "hm")[0]
    assert decided(thinking, word, 2) == word
    assert not thinking.ends_within(4000)


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_output_is_shorter_than_the_least(
    grammars: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    state = start(grammars, tokenizer, SCHEMAS[name])
    limit = shortest(state)
    assert state.ends_within(limit)
    assert not state.ends_within(limit - 1)
    for seed in range(5):
        fresh = start(grammars, tokenizer, SCHEMAS[name])
        out = random_output(fresh, tokenizer, limit + 5, random.Random(seed))
        assert len(out) >= state.least_tokens


def test_a_plan_that_does_not_fit_any_more_is_given_up(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = {"type": "string", "minLength": 200}
    state = start(grammars, tokenizer, schema)
    quote, letter = encode(tokenizer, '"'), encode(tokenizer, "q")[0]
    state.advance(quote)
    assert [decided(state, letter, left) for left in (5, 4, 3)] == [letter] * 3
