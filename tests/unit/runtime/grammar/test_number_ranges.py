"""Ranges as the keywords of all drafts give them."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

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


def bound(value: Any, *, included: bool = True) -> Bound:
    return Bound(value=Decimal(str(value)), included=included)


@pytest.mark.parametrize(
    ("schema", "low", "high"),
    [
        ({}, None, None),
        ({"minimum": 2**64 + 1}, bound(2**64 + 1), None),
        ({"maximum": 0.1}, None, bound("0.1")),
        ({"minimum": 1, "exclusiveMinimum": 1}, bound(1, included=False), None),
        ({"minimum": 2, "exclusiveMinimum": 1}, bound(2), None),
        ({"minimum": 1, "exclusiveMinimum": True}, bound(1, included=False), None),
        ({"minimum": 1, "exclusiveMinimum": False}, bound(1), None),
        ({"exclusiveMinimum": True}, None, None),
        ({"maximum": 3, "exclusiveMaximum": 3}, None, bound(3, included=False)),
        ({"maximum": "3"}, None, None),
    ],
)
def test_the_tightest_bound_counts(schema: Any, low: Bound | None, high: Bound | None) -> None:
    assert ends_of(schema) == (low, high)


def test_what_two_ranges_have_in_common() -> None:
    one = bound(1), bound(9)
    other = bound(1, included=False), None
    assert tighter(one, other) == (other[0], one[1])
    assert tighter((None, None), one) == one


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [
        (bound("0.5"), bound("2.5"), 1, 2),
        (bound(1, included=False), bound(3, included=False), 2, 2),
        (bound("-1.5", included=False), None, -1, None),
        (None, bound(2**70 + 1, included=False), None, 2**70),
    ],
)
def test_the_first_and_last_whole_number(
    low: Bound | None, high: Bound | None, first: int | None, last: int | None
) -> None:
    assert whole_ends((low, high)) == (first, last)


def test_multiples_are_counted_in_steps() -> None:
    ends = bound("0.3"), bound("0.3")
    assert counts(ends, Fraction(1, 10)) == (3, 3)
    assert counts((bound(0, included=False), bound(7, included=False)), Fraction(7)) == (1, 0)
    assert counts((None, bound(2**70)), Fraction(3)) == (None, 2**70 // 3)


@pytest.mark.parametrize("text", ["0.125", "1", "-12.5", "1000", "0"])
def test_a_fraction_that_is_a_decimal_becomes_one(text: str) -> None:
    assert decimal_of(Fraction(text)) == Decimal(text)


def test_places_and_powers_of_ten() -> None:
    assert [places_of(Decimal(text)) for text in ("1.50", "1E+3", "1E-7")] == [1, 0, 7]
    powers = [is_power_of_ten(Decimal(text)) for text in ("1", "1000", "0.01", "1.1", "20", "0.5")]
    assert powers == [True, True, True, False, False, False]
