"""JSON whose numbers are read, compared and written to the last digit."""

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from tests.support.exact_schemas import some_number
from tools_api.exact_numbers import (
    exact,
    identity,
    is_number,
    is_whole,
    num_digits,
    packed,
    plain,
    read,
    written,
)

SEEDS = range(5)


def number_text(rng: random.Random) -> str:
    """A number as JSON may have it."""
    whole = str(rng.randint(0, 10 ** rng.randint(0, 40)))
    fraction = f".{rng.randint(0, 10**9)}{'0' * rng.randint(0, 3)}" if rng.random() < 0.6 else ""
    exponent = f"{rng.choice('eE')}{rng.choice(('', '+', '-'))}{rng.randint(0, 400)}"
    return f"{rng.choice(('', '-'))}{whole}{fraction}{exponent if rng.random() < 0.3 else ''}"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_and_written_again_is_the_same_number(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        text = number_text(rng)
        (value,) = read(f"[{text}]")
        assert exact(value) == Decimal(text), (seed, text)
        assert Decimal(written(value)) == Decimal(text), (seed, text)
        assert Decimal(packed([value])[1:-1].decode()) == Decimal(text), (seed, text)
        if "." not in text and "e" not in text.lower():
            assert type(value) is int, text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1", int),
        ("1.0", float),
        ("1e2", float),
        ("0.1", float),
        ("1.7976931348623157e308", float),
        ("123456789.12345679", float),
        ("123456789.123456789", Decimal),
        ("0.10000000000000001", Decimal),
        ("1e400", Decimal),
        ("1e-400", Decimal),
        ("18446744073709551617", int),
    ],
)
def test_a_number_is_a_float_where_that_is_exact(text: str, kind: type) -> None:
    assert type(read(text)) is kind


@pytest.mark.parametrize(
    "text", ["", "[1", "NaN", "[1e5, NaN]", "-Infinity", "[1e99999999999999999999]"]
)
def test_what_is_no_json_is_a_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(text)


def test_values_without_long_numbers_are_written_as_by_json() -> None:
    value: dict[str, Any] = {"a": [1, 2.5, None, True, "é\n"], "b": {"c": -0.0}}
    assert written(value) == json.dumps(value, ensure_ascii=False)
    assert written(value, ensure_ascii=True, indent=2) == json.dumps(value, indent=2)
    assert read(packed(value)) == value


def test_long_numbers_are_written_beside_texts_that_look_like_them() -> None:
    value = {"text": "000000", "d": [Decimal("1.00000000000000000001"), Decimal("1E+400")]}
    again = read(written(value, indent=4))
    assert again == value
    assert again["text"] == "000000"
    assert packed({"b": 1, "a": 2**70}, sort_keys=True) == b'{"a":1180591620717411303424,"b":1}'


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_what_is_no_json_is_not_written(value: Any) -> None:
    for write in (written, packed):
        with pytest.raises(TypeError):
            write([value])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, Decimal("1.00"), True),
        (1, True, False),
        (0, False, False),
        (0.1, Decimal("0.1"), True),
        (2**53, 2**53 + 1, False),
        (float(2**53), 2**53, True),
        ([1, [2.0]], [1.0, [2]], True),
        ([1], {"0": 1}, False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": None}, {}, False),
        ("1", 1, False),
        (0.0, -0.0, True),
    ],
)
def test_identity_is_equality_as_json_schema_has_it(one: Any, other: Any, same: bool) -> None:
    assert (identity(one) == identity(other)) is same


@pytest.mark.parametrize(
    ("value", "whole", "digits"),
    [
        (1, True, 1),
        (1.0, True, 2),
        (0.5, False, 2),
        (Decimal("1E+400"), True, 401),
        (Decimal("1E-3"), False, 4),
        (Decimal("1500E-2"), True, 4),
        (Decimal("0E-5"), True, 6),
        (-(10**20), True, 21),
    ],
)
def test_whole_numbers_and_digits(value: Any, whole: bool, digits: int) -> None:
    assert is_number(value)
    assert is_whole(value) is whole
    assert num_digits(value) == digits


def test_true_and_text_are_no_numbers() -> None:
    assert not any(map(is_number, (True, "1", None, [1])))


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_gives_what_read_would(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        value = some_number(rng)
        again = plain(exact(value))
        assert exact(again) == exact(value)
        assert type(again) is int or not is_whole(value)
