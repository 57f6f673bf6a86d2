"""Numbers of schemas to the last digit, part by part; the whole is in a campaign."""

import json
import random
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from runtime.grammar.exact_rules import with_exact_numbers
from runtime.grammar.lark_json import array, key, pair, several
from runtime.grammar.library_numbers import keeps, keeps_value
from runtime.grammar.number_patterns import decimals, whole_numbers
from runtime.grammar.number_ranges import (
    Bound,
    counts,
    decimal_of,
    ends_of,
    is_power_of_ten,
    places_of,
    tighter,
    whole_ends,
)
from runtime.grammar.number_rules import literal, numbers
from runtime.grammar.plain_schemas import alternatives
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.schema_parts import changed, circles, nodes, references_to, standalone
from runtime.grammar.schema_places import place_of_value, widest_place
from runtime.grammar.trial import Trial
from tests.support.grammars import compiler, schema_spec, small_tokenizer

LONG = 1190000000000000001


@pytest.mark.parametrize("seed", range(40))
def test_a_pattern_of_whole_numbers_matches_those_within_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    most = 10 ** rng.choice((1, 2, 5, 20, 60))
    low, high = sorted((rng.randint(-most, most), rng.randint(-most, most)))
    low_or, high_or = rng.choice(((low, high), (None, high), (low, None), (low, low)))
    pattern = whole_numbers(low_or, high_or)
    assert pattern is not None
    near = [edge + step for edge in (low, high, 0) for step in range(-12, 13)]
    for value in [*near, *(rng.randint(-2 * most, 2 * most) for _ in range(200))]:
        within = (low_or is None or low_or <= value) and (high_or is None or value <= high_or)
        assert bool(re.fullmatch(pattern, str(value))) == within, (low_or, high_or, value)


def test_bounds_that_exclude_each_other_have_no_pattern() -> None:
    assert whole_numbers(3, 2) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_pattern_of_decimals_matches_those_within_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    places = rng.choice((1, 3, 17))

    def drawn() -> Decimal:
        return Decimal(rng.randint(-(10 ** (places + 1)), 10 ** (places + 1))).scaleb(-places)

    low, high = sorted((drawn(), drawn()))
    low_in, high_in = rng.random() < 0.5, rng.random() < 0.5
    pattern = decimals(Bound(value=low, included=low_in), Bound(value=high, included=high_in))
    last = Decimal(1).scaleb(-places)
    values = [low, high, low + last, low - last, high + last, high - last]
    for value in values + [drawn() for _ in range(200)]:
        within = (low <= value if low_in else low < value) and (
            value <= high if high_in else value < high
        )
        found = pattern is not None and re.fullmatch(pattern, format(value, "f"))
        assert bool(found) == within, (low, low_in, high, high_in, value)


def test_keywords_are_read_as_ends() -> None:
    ends = ends_of({"minimum": 1, "exclusiveMaximum": Decimal("5.5")})
    assert ends == (
        Bound(value=Decimal(1), included=True),
        Bound(value=Decimal("5.5"), included=False),
    )
    assert whole_ends(ends) == (1, 5)
    assert whole_ends(ends_of({"exclusiveMinimum": 2**64})) == (2**64 + 1, None)
    both = tighter(ends, ends_of({"exclusiveMinimum": 1, "maximum": 9}))
    assert both == (
        Bound(value=Decimal(1), included=False),
        Bound(value=Decimal("5.5"), included=False),
    )
    third = Decimal("0.125")
    assert counts(ends, Fraction(third)) == (8, 43)
    assert decimal_of(Fraction(third)) == third
    assert (places_of(third), is_power_of_ten(third), is_power_of_ten(Decimal("0.01"))) == (
        3,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("value", "kept"),
    [(5, True), (0.1, True), (LONG, False), (2**64, False), ([1, {"a": LONG}], False), ("5", True)],
)
def test_the_library_is_left_what_it_keeps(value: Any, kept: bool) -> None:
    assert keeps_value(value) == kept
    assert keeps({"const": value}) == kept


def test_a_number_is_written_to_the_last_digit() -> None:
    assert literal(LONG) == str(LONG)
    terminal = numbers({"minimum": 2**64}, "integer")
    body = getattr(terminal, "body", "").strip("/")
    assert re.fullmatch(body, str(2**64))
    assert not re.fullmatch(body, str(2**64 - 1))
    exact = with_exact_numbers(f'start: value\nvalue: %json {{"const": {LONG}}}\n')
    assert exact is not None
    assert f'"{LONG}"' in exact.lark
    assert with_exact_numbers('start: value\nvalue: %json {"const": 5}\n') is None


def test_json_is_spelled_as_the_library_does() -> None:
    assert key("a") == '"\\"a\\""'
    assert pair("a", "v") == 'a ": " v'
    assert several("x", 1, 3) == 'x (", " x){0,2}'
    assert array(["a"], "b", 0, None) == '"[" (a (", " b){0,})? "]"'


def test_a_schema_becomes_alternatives_that_say_all_themselves() -> None:
    schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "minimum": 3}
    assert alternatives({}, schema) == [
        {"type": "integer", "minimum": 3},
        {"type": "string", "minimum": 3},
    ]


def test_parts_of_a_schema_and_what_refers_to_them() -> None:
    leaf = {"const": 7}
    root = {"properties": {"a": {"$ref": "#/$defs/u"}}, "$defs": {"u": leaf}}
    assert leaf not in list(nodes(root)), "a definition by itself says nothing"
    assert references_to(root, lambda node: "const" in node) == {"#/$defs/u"}
    doubled = changed({"items": leaf}, lambda node: {**node, "title": "t"})
    assert doubled["items"] == {"const": 7, "title": "t"}
    assert leaf == {"const": 7}
    taken = standalone(root, {"$ref": "#/$defs/u"})
    assert list(taken["$defs"].values()) == [leaf]
    assert not circles(root)
    assert circles({"$ref": "#/$defs/u", "$defs": {"u": {"$ref": "#/$defs/u"}}})


def test_the_place_of_the_value_that_comes_next() -> None:
    inner = '{"type": "object", "properties": {"b": {"const": 1}}}'
    lark = f'start: value\nvalue: %json {{"properties": {{"a": {inner}}}}}\n'
    place = place_of_value(lark, '{"a": {"b": ')
    assert place is not None
    assert (place.block, place.path) == (0, ("properties", "a", "properties", "b"))
    wide = {"enum": ["a", "b", "c"]}
    widest = widest_place(f"start: value\nvalue: %json {json.dumps({'items': wide})}\n")
    assert widest is not None
    assert widest.path == ("items", "enum")


def test_a_walk_through_a_good_grammar_says_nothing_and_a_stopped_one_refuses(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(tmp_path)
    grammars = compiler(tokenizer)
    trial = Trial(grammars.tables)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
    compiled = grammars.compile(schema_spec(schema))
    trial.of(compiled)
    monkeypatch.setattr("runtime.grammar.state.GrammarState.fill_mask", _stopped)
    with pytest.raises(GrammarRefused):
        trial.of(compiled)


def _stopped(state: Any, row: Any) -> None:
    state._fail("it takes more than a step may")
