import json
import random
from decimal import Decimal
from typing import Any

import orjson
import pytest
from pydantic import Field

from tools_api.errors import ApiError
from tools_api.json_fields import depth_of
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.wire import WireModel, parse_json, validate


class Inner(WireModel):
    size: int = Field(default=1, ge=0)


class Outer(WireModel):
    name: str
    inner: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ({}, "missing_required_parameter", "base.name"),
        ({"name": None}, "missing_required_parameter", "base.name"),
        ({"name": 1}, "invalid_type", "base.name"),
        ({"name": "a", "inner": ({"size": "1"},)}, "invalid_type", "base.inner[0].size"),
        ({"name": "a", "inner": ({}, {"size": True})}, "invalid_type", "base.inner[1].size"),
        ({"name": "a", "inner": ({"size": -1},)}, "invalid_value", "base.inner[0].size"),
        ([], "invalid_type", "base"),
    ],
)
def test_a_fault_is_named_by_its_path(raw: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        validate(Outer, raw, "base")
    assert (refused.value.code, refused.value.param) == (code, param)


def test_null_equals_absent_and_unknown_keys_are_ignored() -> None:
    made = validate(Outer, {"name": "a", "inner": ({"size": None},), "other": 1}, "")
    assert made == Outer(name="a", inner=(Inner(),))


def test_a_message_does_not_repeat_long_client_text() -> None:
    class Short(WireModel):
        name: str = Field(max_length=3)

    with pytest.raises(ApiError) as refused:
        validate(Short, {"name": "x" * 10_000}, "")
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{",
        "[1]",
        '"text"',
        "null",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e9999999999999999999}',
        '{"a": 1e400, "b": NaN}',
        '{"a": 1,}',
        '{"a": "\\ud80"}',
        "\ufeff{}",
        '{"a": "\ud800"}',
        b'{"a": "\xff"}',
        "{'a': 1}",
        "[" * 1_000_000,
        '{"a":' * 1_000_000,
        '{"a": "' + "[" * 100 + '"} x',
    ],
)
def test_what_is_no_json_object_is_refused(frame: str | bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_json(frame, DEFAULT_LIMITS)
    assert (refused.value.code, refused.value.param) == ("invalid_json", None)
    assert len(refused.value.message) < 300


def test_of_equal_keys_the_last_one_counts() -> None:
    assert parse_json('{"a": 1, "a": 2}', DEFAULT_LIMITS) == {"a": 2}


def test_brackets_and_quotes_in_strings_do_not_count() -> None:
    value = {"a": '[[[{{"\\"', '"\\': "\\\\[", "b": "]]}}"}
    limits = Limits(max_json_depth=1, max_json_values=10)
    assert parse_json(json.dumps(value), limits) == value


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6) if depth else rng.randrange(4)
    text = "".join(rng.choices('a"\\[]{},: é', k=rng.randrange(6)))
    match kind:
        case 0:
            return rng.randrange(10)
        case 1 | 2:
            return text
        case 3:
            return rng.choice([None, True, [], {}])
        case 4:
            return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {text + str(i): random_value(rng, depth - 1) for i in range(rng.randrange(4))}


def naive_depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + max((naive_depth(child) for child in value), default=0)
    return 0


@pytest.mark.parametrize("seed", range(200))
def test_the_bound_on_depth_agrees_with_a_recursive_count(seed: int) -> None:
    value = {"root": random_value(random.Random(seed), 6)}
    depth = naive_depth(value)
    assert depth_of(value) == depth
    for text in (json.dumps(value), orjson.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parse_json(text, Limits(max_json_depth=depth)) == value
        with pytest.raises(ApiError, match="nested deeper"):
            parse_json(text, Limits(max_json_depth=depth - 1))


def test_a_frame_of_empty_arrays_is_refused_before_it_takes_memory() -> None:
    frame = b"[" + b"[]," * 1_000_000 + b"[]]"
    with pytest.raises(ApiError, match="more than 500000 values"):
        parse_json(frame, DEFAULT_LIMITS)
    strings = b'{"a":[' + b'"",' * 1_000_000 + b'""]}'
    with pytest.raises(ApiError, match="more than 500000 strings"):
        parse_json(strings, DEFAULT_LIMITS)


HALVES = [
    ("cut \\ud83d", "cut \ufffd"),
    ("\\ude00 rest", "\ufffd rest"),
    ("\\ude00\\ud83d", "\ufffd\ufffd"),
    ("a\\uD83Db", "a\ufffdb"),
    ("\\\\ud83d", "\\ud83d"),
    ("\\\\\\ud83d", "\\\ufffd"),
    ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
]


@pytest.mark.parametrize("number", ["1", "1190000000000000000001"])
@pytest.mark.parametrize(("written", "text"), HALVES)
def test_half_a_surrogate_pair_is_a_replacement_character(
    written: str, text: str, number: str
) -> None:
    frame = f'{{"a": "{written}", "{written}": {number}}}'
    assert parse_json(frame, DEFAULT_LIMITS) == {"a": text, text: int(number)}
    assert parse_json(frame.encode(), DEFAULT_LIMITS) == {"a": text, text: int(number)}


def test_a_number_is_kept_to_the_last_digit() -> None:
    frame = '{"a": [18446744073709551617, 0.12345678901234567890, 1e400, 0.1, 1e23]}'
    assert parse_json(frame, DEFAULT_LIMITS)["a"] == [
        18446744073709551617,
        Decimal("0.12345678901234567890"),
        Decimal("1e400"),
        0.1,
        1e23,
    ]


LONG = [21 * "1", "-" + 21 * "1", "0." + 20 * "1", "1E+99999", "-1.2e-400", "1e400"]
SHORT = [20 * "1", "-" + 20 * "1", "0." + 19 * "1", "1e22", "0e99999", 18 * "1" + ".50", "1.5e-9"]


@pytest.mark.parametrize("number", LONG)
def test_a_number_that_is_too_long_is_refused_with_its_path(number: str) -> None:
    limits = Limits(max_number_digits=20)
    with pytest.raises(ApiError, match="more than 20 digits; send it as a string") as refused:
        parse_json(f'{{"tools": [{{"const": {number}}}]}}', limits)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "tools[0].const")


@pytest.mark.parametrize("number", SHORT)
def test_a_number_of_as_many_digits_is_not(number: str) -> None:
    text = f'{{"a": {number}, "b": "{30 * "1"} 1e99999"}}'
    found = parse_json(text, Limits(max_number_digits=20))["a"]
    assert Decimal(repr(found) if isinstance(found, float) else found) == Decimal(number)


def test_a_number_of_a_million_digits_is_refused_by_its_path_before_anything_is_reckoned() -> None:
    with pytest.raises(ApiError) as refused:
        parse_json('{"a": {"b": -' + "1" * 1_000_000 + "}}", DEFAULT_LIMITS)
    assert refused.value.param == "a.b"
