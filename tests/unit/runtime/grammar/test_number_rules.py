"""Terminals for numbers that the grammar library would round."""

import re
from decimal import Decimal
from typing import Any

import pytest

from runtime.grammar.number_rules import NotExact, Terminal, literal, numbers

ID = 1190000000000000001


def fits(schema: dict[str, Any], kind: str, text: str) -> bool:
    """Whether the terminals among the alternatives match a text."""
    parts = [part for part in numbers(schema, kind) if isinstance(part, Terminal)]
    return any(matches(part.body, text) for part in parts)


def matches(body: str, text: str) -> bool:
    """Lark's terminals as far as these need: literals beside each other, patterns together."""
    if body.startswith('"'):
        return f'"{text}"' in body.split(" | ")
    return all(re.fullmatch(pattern, text) for pattern in re.findall(r"/([^/]*)/", body))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ID, "1190000000000000001"),
        (1e22, "10000000000000000000000"),
        (1e-7, "0.0000001"),
        (-0.0, "0"),
        (574.0, "574"),
        (Decimal("1.50"), "1.5"),
        (Decimal("1E+500"), "1E+500"),
        (100, "100"),
    ],
)
def test_a_literal_has_no_exponent_unless_it_is_too_long(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize(
    ("schema", "kind", "good", "bad"),
    [
        ({"minimum": ID, "maximum": ID + 2}, "integer", [str(ID), str(ID + 2)], [str(ID + 3)]),
        ({"minimum": 2**70}, "integer", [str(2**70), str(10**30)], [str(2**70 - 1), "5"]),
        ({"exclusiveMaximum": -(2**63)}, "integer", [str(-(2**63) - 1)], [str(-(2**63)), "0"]),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "number", ["0.5", "0.1"], ["0", "0.0", "0.51"]),
        (
            {"minimum": Decimal("0.12345678901234567")},
            "number",
            ["0.12345678901234567", "1"],
            ["0.12345678901234566", "0"],
        ),
        ({"minimum": ID, "multipleOf": 10}, "integer", [str(ID + 9)], [str(ID - 1), str(ID)]),
        ({"minimum": -15, "multipleOf": 10**12}, "integer", ["0", str(10**12)], ["10", "-0"]),
        ({"minimum": 0, "maximum": 2, "multipleOf": 0.3}, "number", ["0", "0.3"], ["2.1", "1"]),
        ({"minimum": 0.1, "multipleOf": 0.25}, "number", ["0.25", "0.5", "1"], ["0", "0.1"]),
        (
            {"maximum": 4.5163, "multipleOf": 0.1},
            "number",
            ["4.5", "-7.1", "4"],
            ["4.51", "4.6", "4.5163"],
        ),
    ],
)
def test_a_terminal_matches_what_the_keywords_accept(
    schema: Any, kind: str, good: list[str], bad: list[str]
) -> None:
    assert [fits(schema, kind, text) for text in good] == [True] * len(good)
    assert [fits(schema, kind, text) for text in bad] == [False] * len(bad)


def test_what_the_library_keeps_stays_with_it() -> None:
    schema = {"minimum": 1, "maximum": 5, "multipleOf": 2, "title": "n"}
    kept = {"type": "integer", "minimum": 1, "maximum": 5, "multipleOf": 2}
    assert numbers(schema, "integer") == [kept]


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": ID + 1, "maximum": ID},
        {"exclusiveMinimum": ID, "exclusiveMaximum": ID + 1},
        {"minimum": ID, "maximum": ID, "multipleOf": 10},
    ],
)
def test_an_empty_range_has_no_alternatives(schema: Any) -> None:
    assert numbers(schema, "integer") == []


def test_multiples_next_to_a_bound_that_is_no_double_are_listed() -> None:
    listed, kept = numbers({"minimum": 2**54 + 1, "multipleOf": 7}, "integer")
    assert isinstance(listed, Terminal)
    assert isinstance(kept, dict)
    first = kept["minimum"]
    assert int(float(first)) == first
    texts = re.findall(r"\d+", listed.body)
    assert [int(text) for text in texts] == list(range(first - 7 * len(texts), first, 7))
    assert 2**54 < int(texts[0]) <= 2**54 + 7


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"multipleOf": 0.07}, "multipleOf"),
        ({"minimum": 2**64, "multipleOf": 7}, "multipleOf"),
        ({"minimum": Decimal("1E+500")}, "minimum"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(NotExact) as caught:
        numbers(schema, "number")
    assert caught.value.keyword == keyword
