"""Walks before a turn: what they come across, how long they last."""

from typing import Any

import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.refusal import DEAD_END, TOO_COSTLY, TOO_WIDE, GrammarRefused
from runtime.grammar.trial import Trial
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, schema_spec, small_tokenizer
from tools_api.grammar import GrammarSpec


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


def no_time() -> float:
    return 0.0


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}}


@pytest.mark.tail
@pytest.mark.parametrize("count", [10, 600, 3000])
def test_thousands_of_properties_stop_no_walk(grammars: GrammarCompiler, count: int) -> None:
    Trial(grammars.tables).of(grammars.compile(schema_spec(optional(count))))


@pytest.mark.tail
def test_too_many_are_refused_with_their_place(grammars: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a": optional(4200)}, "required": ["a"]}
    with pytest.raises(GrammarRefused) as caught:
        Trial(grammars.tables).of(grammars.compile(schema_spec(schema)))
    assert caught.value.message == TOO_WIDE
    assert caught.value.path == ("properties", "a", "properties")
    assert caught.value.keyword == "properties"
    assert caught.value.block == 0


def test_a_costly_pattern_is_refused_with_its_place(grammars: GrammarCompiler) -> None:
    pattern = {"type": "string", "pattern": "^((x{1,100}){1,100}){60,100}$"}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": pattern}},
        "required": ["a"],
    }
    compiled = grammars.compile(schema_spec(schema))
    assert compiled.closing is not None, "an array may be empty"
    with pytest.raises(GrammarRefused) as caught:
        Trial(grammars.tables, clock=no_time).of(compiled)
    assert caught.value.message == TOO_COSTLY
    assert caught.value.path == ("properties", "a", "items")
    assert caught.value.block == 0


def test_where_nothing_may_follow_a_walk_ends(grammars: GrammarCompiler) -> None:
    """``never`` can be begun by no token, which the library does not see."""
    lark = 'start: "a" | "b" never\nnever: never "x"\n'
    compiled = grammars.compile(GrammarSpec(lark=lark))
    with pytest.raises(GrammarRefused) as caught:
        Trial(grammars.tables, clock=no_time).of(compiled)
    assert caught.value.message == DEAD_END
    assert caught.value.path is None


@pytest.mark.tail
def test_a_grammar_that_binds_behind_a_trigger_is_walked_from_there(
    grammars: GrammarCompiler,
) -> None:
    schema = {"type": "object", "properties": {"a": optional(4200)}, "required": ["a"]}
    spec = schema_spec(schema, trigger="<tool_call>")
    with pytest.raises(GrammarRefused, match="in one place"):
        Trial(grammars.tables).of(grammars.compile(spec))


def test_a_trial_ends_with_its_time(grammars: GrammarCompiler) -> None:
    now = 0.0
    looks = 0

    def clock() -> float:
        nonlocal now, looks
        looks += 1
        now += 0.01
        return now

    compiled = grammars.compile(schema_spec(optional(50)))
    Trial(grammars.tables, clock=clock).of(compiled)
    assert looks < 60
