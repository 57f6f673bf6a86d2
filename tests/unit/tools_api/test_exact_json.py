"""JSON is read and written to the last digit: against readers that are too slow to be wrong."""

import json
import math
import random
import re
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

import orjson
import pydantic_core
import pytest

from tools_api.exact_json import (
    MAX_INT_DIGITS,
    beginning,
    dumps,
    loads,
    may_have_decimals,
    whole_pairs,
    whole_text,
    written,
)
from tools_api.exact_numbers import exact, identity

SEEDS = range(40)


def plain_reading(text: str) -> Any:
    """Every number a ``Decimal``, every half of a pair U+FFFD."""

    def mended(value: Any) -> Any:
        if isinstance(value, dict):
            return {mended(key): mended(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [mended(inner) for inner in value]
        return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value

    return mended(json.loads(text, parse_int=Decimal, parse_float=Decimal))


def in_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_decimals(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_decimals(inner) for inner in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return exact(value) if number else value


def number(rng: random.Random) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.choice([1, 2, 15, 16, 17, 18, 19, 20, 30])))
    text = rng.choice(["", "-"]) + (digits.lstrip("0") or "0")
    if rng.random() < 0.5:
        text += "." + "".join(rng.choices("0123456789", k=rng.choice([1, 5, 14, 15, 16, 25])))
    if rng.random() < 0.3:
        text += (
            rng.choice("eE") + rng.choice(["", "-", "+"]) + str(rng.choice([0, 5, 99, 310, 400]))
        )
    return text


PIECES = ["a", "\\n", "\\\\", '\\"', "é", "\U0001f600", "\\ud83d", "\\ude00", "\\uD83D\\uDE00", "1"]


def string(rng: random.Random) -> str:
    return f'"{"".join(rng.choices(PIECES, k=rng.randrange(6)))}"'


def document(rng: random.Random, depth: int = 4) -> str:
    kind = rng.randrange(6 if depth else 3)
    if kind == 0:
        return number(rng)
    if kind == 1:
        return string(rng)
    if kind == 2:
        return rng.choice(["null", "true", "false", "[]", "{}", " 1 "])
    parts = [document(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind < 5:
        return f"[{', '.join(parts)}]"
    return "{" + ",".join(f"{string(rng)}: {part}" for part in parts) + "}"


@pytest.mark.samples(13)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_is_what_is_written_to_the_last_digit(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        text = document(rng)
        value = loads(text)
        assert in_decimals(value) == plain_reading(text), text
        assert loads(text.encode()) == value
        for again in (dumps(value), written(value), written(value, ensure_ascii=True, indent=2)):
            assert loads(again) == value, text
            assert in_decimals(loads(again)) == plain_reading(text), text


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_is_a_decimal_only_where_no_double_has_its_value(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        text = number(rng)
        value = loads(text)
        if re.fullmatch("-?[0-9]+", text):
            assert type(value) is int
            assert value == int(text)
        elif Decimal(repr(float(text))) == Decimal(text):
            assert type(value) is float
            assert math.copysign(1, value) == math.copysign(1, float(text))
        else:
            assert type(value) is Decimal
            assert may_have_decimals(f'["1.2345678901234567890", {text}]')


def changed(rng: random.Random, text: str) -> str:
    at, signs = rng.randrange(len(text) + 1), '{}[],:"\\0123eE+-. \nuda\x01'
    return text[:at] + rng.choice(["", rng.choice(signs)]) + text[at + rng.randrange(2) :]


@pytest.mark.samples(13)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_number_makes_no_other_text_json_than_a_short_one(seed: int) -> None:
    """The two ways of reading accept the same texts."""
    rng = random.Random(seed)
    for _ in range(300):
        text = changed(rng, changed(rng, document(rng)))
        try:
            alone = loads(f"[1, {text}]")
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                loads(f"[12345678901234567890123, {text}]")
        else:
            assert loads(f"[12345678901234567890123, {text}]")[1:] == alone[1:], text


@pytest.mark.parametrize("text", ["NaN", "[1e400, Infinity]", "[1e400, -Infinity]", "1e400 1", ""])
def test_what_json_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_what_is_nested_too_deep_is_a_fault_like_any_other() -> None:
    deep = "[" * 100_000
    for text in (deep, deep + "1e400"):
        with pytest.raises(ValueError, match=r"."):
            loads(text)
    value: Any = 2**70
    for _ in range(1_000):
        value = [value]
    with pytest.raises(TypeError):
        dumps(value)


def test_numbers_of_a_million_digits_keep_them() -> None:
    digits = "123456789" * 111_112
    for text in (digits, f"-{digits}", f"0.{digits}", f"{digits}.5"):
        assert dumps(loads(text)) == text.encode()
    assert type(loads("1" * MAX_INT_DIGITS)) is int
    assert dumps(loads("1" * MAX_INT_DIGITS)) == b"1" * MAX_INT_DIGITS


def test_an_exponent_beyond_any_is_refused() -> None:
    assert loads("1e999999999999999999") == Decimal("1e999999999999999999")
    with pytest.raises(ValueError, match="exponent"):
        loads("1e1000000000000000000000")


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), object(), {1: 2}, {2**70}])
def test_what_json_cannot_write_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        dumps([value])


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_it_spells_like_the_library_what_the_library_can_spell(indent: int | None) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        value = json.loads(re.sub("[\ud800-\udfff]", "?", json.dumps(json.loads(document(rng)))))
        for ensure_ascii in (True, False):
            known = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
            assert written(value, indent=indent, ensure_ascii=ensure_ascii) == known
            exact = written(
                {"d": Decimal("1.50"), "v": value}, indent=indent, ensure_ascii=ensure_ascii
            )
            as_double = json.dumps(
                {"d": 1.25, "v": value}, ensure_ascii=ensure_ascii, indent=indent
            )
            assert exact == as_double.replace('"d": 1.25', '"d": 1.50', 1)
        compact = json.dumps({"d": 1.25, "v": value}, separators=(",", ":"), ensure_ascii=False)
        exact = written({"d": Decimal("1.50"), "v": value}, spaces=False)
        assert exact == compact.replace('"d":1.25', '"d":1.50', 1)


def test_keys_are_sorted_where_that_is_asked() -> None:
    value = {"b": {"d": 2**64, "c": Decimal("1.23456789012345678901")}, "a": "\ud83d"}
    text = '{"a":"\ufffd","b":{"c":1.23456789012345678901,"d":18446744073709551616}}'
    assert dumps(value, sort_keys=True).decode() == text


def test_equal_numbers_are_one_however_they_are_spelt() -> None:
    same: list[list[int | float | Decimal]] = [
        [0, 0.0, -0.0, Decimal("0e7")],
        [100, 100.0, Decimal("1E+2"), Decimal("100.00")],
        [-0.5, Decimal("-0.50")],
        [10**30, 1e30, Decimal("1E30")],
        [10**30 + 1],
        [0.1, Decimal("0.1")],
        [Decimal("0.10000000000000000555")],
    ]
    found = [{identity(value) for value in values} for values in same]
    assert [len(spellings) for spellings in found] == [1] * len(same)
    assert len(set[Hashable]().union(*found)) == len(same)


def test_half_of_a_pair_is_replaced_in_time_linear_in_the_text() -> None:
    """Backslashes by the million, which pair or do not."""
    for text in (b"\\" * 2_000_000, b"\\" * 2_000_001, b"\\\\n" * 500_000):
        assert whole_pairs(text + b"\\ud83d") in (text + b"\\ufffd", text + b"\\ud83d")
    assert whole_pairs(b"\\ud83d\\ude00" * 1000) == b"\\ud83d\\ude00" * 1000
    assert whole_pairs(b"\\ud83d" * 1000) == b"\\ufffd" * 1000


def test_a_whole_text_is_the_one_given() -> None:
    text = "a\U0001f600\0\u2028"
    assert whole_text(text) is text
    assert whole_text("\ud83d\ude00\ud83d") == "\U0001f600\ufffd"


@pytest.mark.samples(13)
@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_text_that_was_cut_what_is_whole_is_read(seed: int) -> None:
    rng = random.Random(seed)
    text = "{" + ", ".join(f'"{i}": {document(rng)}' for i in range(4)) + "}"
    whole = loads(text)
    for end in range(1, len(text)):
        assert is_beginning(beginning(text[:end]), whole), text[:end]
    assert beginning(text) == whole
    with pytest.raises(ValueError, match=r"."):
        beginning("")


def is_beginning(part: Any, whole: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        # Of equal keys the last one counts, so that a cut may show an earlier one.
        return part.keys() <= whole.keys()
    if isinstance(part, list) and isinstance(whole, list):
        return all(map(is_beginning, part, whole)) and len(part) <= len(whole)
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_text_is_read_as_clients_do(seed: int) -> None:
    """Where those can: without halves of pairs and long numbers."""
    rng = random.Random(seed)
    value = {"a": [1, 2.5, {"b": 'x\\"y', "é": None}], "c": {"d": [[], {}, True]}, "e": "z"}
    text = rng.choice([json.dumps, lambda v: orjson.dumps(v).decode()])(value)
    for end in range(1, len(text) + 1):
        cut = text[:end]
        assert beginning(cut) == pydantic_core.from_json(cut, allow_partial=True), cut
