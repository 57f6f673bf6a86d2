"""Numbers of JSON: what they are, and when two of them are one."""

import random
from decimal import Decimal
from typing import Any

import pytest

from tests.support.exact_schemas import some_number
from tools_api.exact_numbers import exact, identity, is_number, is_whole, num_digits, number, plain

SEEDS = range(5)


def number_text(rng: random.Random) -> str:
    """A number as JSON may have it."""
    whole = str(rng.randint(0, 10 ** rng.randint(0, 40)))
    fraction = f".{rng.randint(0, 10**9)}{'0' * rng.randint(0, 3)}" if rng.random() < 0.6 else ""
    exponent = f"{rng.choice('eE')}{rng.choice(('', '+', '-'))}{rng.randint(0, 400)}"
    return f"{rng.choice(('', '-'))}{whole}{fraction}{exponent if rng.random() < 0.3 else ''}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_has_the_value_of_its_text(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        text = number_text(rng)
        assert exact(number(text)) == Decimal(text), (seed, text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.0", float),
        ("1e2", float),
        ("0.1", float),
        ("1.7976931348623157e308", float),
        ("123456789.12345679", float),
        ("123456789.123456789", Decimal),
        ("0.10000000000000001", Decimal),
        ("1e400", Decimal),
        ("1e-400", Decimal),
    ],
)
def test_a_number_is_a_float_where_that_is_exact(text: str, kind: type) -> None:
    assert type(number(text)) is kind


def test_an_exponent_beyond_any_is_a_fault() -> None:
    with pytest.raises(ValueError, match="exponent"):
        number("1e99999999999999999999")


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
