"""Arguments are the same by their value, to the last digit."""

import json
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools_api.item_identity import canonical, normalised
from tools_api.item_reading import parse_items
from tools_api.items import Item

SAME: list[tuple[str, str]] = [
    ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1}'),
    ('{"a": "\\u00e9"}', '{"a":"é"}'),
    ("1.50", "1.5"),
    ("1.0", "1"),
    ("-0.0", "0"),
    ("1e2", "100"),
    ("100E-2", "1"),
    ("1e+21", "1000000000000000000000"),
    ("0.000001", "1e-6"),
    ("123456789012345678901234567890", "1.2345678901234567890123456789e29"),
    ("1e400", "10e399"),
    ('{"a": 1, "a": 2}', '{"a": 2}'),
    ('"\\ud83d"', '"\\uD83D"'),
    ('{"a \\ud83d": "\\ude00"}', '{"a \ufffd": "\ufffd"}'),
    ('"\\ud83d\\ude00"', '"\U0001f600"'),
]
DIFFERENT: list[tuple[str, str]] = [
    ("1190000000000000001", "1190000000000000000"),
    ("1190000000000000001", "1.19e18"),
    ("18446744073709551616", "18446744073709551617"),
    ("123456789012345678901234567890", "123456789012345678901234567891"),
    ("123456789.12345679", "123456789.12345678"),
    ("0.12345678901234567", "0.12345678901234568"),
    ("0.1", "0.10000000000000000001"),
    ("9007199254740993", "9007199254740992.0"),
    ("1e400", "1e401"),
    ("1e-400", "0"),
    ("1e400", "-1e400"),
    ("1", '"1"'),
    ("true", "1"),
    ("null", "{}"),
    ('{"a": null}', "{}"),
    ("[1, 2]", "[2, 1]"),
    ('"\\ud83d"', '"\\\\ud83d"'),
    ('"a"', '"a "'),
    ('{"a": 1', '{"a":1'),
    ("[NaN]", "[null]"),
    ("1e400", '[NaN,"1e400"]'),
    ('{"a": 1e400}', '{"a":[NaN,"1e400"]}'),
    ("1e400", "not JSON: 1e400"),
]
NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
VALUES = st.recursive(
    NUMBERS | st.sampled_from(["true", "false", "null"]) | st.text(max_size=4).map(json.dumps),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "[" + ", ".join(parts) + "]"),
    max_leaves=6,
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_one_value_has_one_spelling(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_value_has_another(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.tail
@given(one=NUMBERS, other=NUMBERS, digit=st.integers(0, 9))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_numbers_are_the_same_exactly_where_their_fractions_are(
    one: str, other: str, digit: int
) -> None:
    mantissa, e, exponent = one.partition("e")
    edited = mantissa[:-1] + str(digit) + e + exponent
    for written in (other, edited):
        if written.lstrip("-").startswith("0") and written.lstrip("-")[1:2].isdigit():
            continue  # 01 is no JSON
        if "E" in written or not written[-1].isdigit():
            continue
        assert (canonical(one) == canonical(written)) == (Fraction(one) == Fraction(written))


@given(VALUES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_text_spelt_anew_by_a_client_without_floats_is_the_same(text: str) -> None:
    kept: dict[str, Any] = {"parse_float": _Kept, "parse_int": _Kept}
    spelt = _written(json.loads(text, **kept))
    assert canonical(spelt) == canonical(text)


@given(VALUES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_faster_reader_spells_as_the_other_does(text: str) -> None:
    spelt = canonical(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools_api.item_identity._NOT_PLAIN", re.compile(""))
        assert canonical(text) == spelt


class _Kept(str):
    """A number as it was written."""

    __slots__ = ()


def _written(value: Any) -> str:
    if isinstance(value, _Kept):
        return value
    if isinstance(value, list):
        return "[" + " ,".join(map(_written, value)) + " ]"
    return json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "1" * 5000,
        "1e" + "9" * 2000,
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
    ids=lambda text: text[:5],
)
def test_what_is_beyond_all_measure_is_the_same_as_itself(text: str) -> None:
    assert canonical(text) == canonical(text)
    assert canonical(text) != canonical(text + "1")


def test_spellings_of_what_a_float_holds_are_those_of_earlier_releases() -> None:
    """Digests of histories are in journals."""
    text = '{"b": [1, -2, 1.5, true, null, 18446744073709551615], "a": "é\\n\\u0001"}'
    spelt = '{"a":"é\\n\\u0001","b":[1,-2,1.5,true,null,18446744073709551615]}'
    assert canonical(text) == spelt


def items(*raw: dict[str, Any]) -> tuple[Item, ...]:
    return parse_items(list(raw))


def test_items_of_other_kinds_are_the_same_by_what_they_say() -> None:
    call = {"call_id": "c", "name": "f"}
    function, custom, output, thought = items(
        {"type": "function_call", **call, "arguments": '{"a":  1}'},
        {"type": "custom_tool_call", **call, "input": '{"a":  1}'},
        {"type": "function_call_output", "call_id": "c", "output": "1.0"},
        {"type": "reasoning", "summary": []},
    )
    assert normalised(function) == ("call", "c", "f", '{"a":1}')
    assert normalised(custom) == ("custom", "c", "f", '{"a":  1}')
    assert normalised(output) == ("output", "c", "1.0")
    assert normalised(thought) is None
