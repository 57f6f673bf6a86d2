"""Patterns of ranges, against the numbers themselves."""

import random
import re
from decimal import Decimal

import pytest

from runtime.grammar.number_patterns import decimals, whole_numbers
from runtime.grammar.number_ranges import Bound
from tests.support.exact_schemas import some_number
from tools_api.exact_numbers import exact

SEEDS = range(8)


def spelled(value: Decimal) -> str:
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def matches(pattern: str | None, text: str) -> bool:
    return pattern is not None and re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_numbers_of_any_size(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        low = rng.choice((None, int(exact(some_number(rng)))))
        size = rng.choice((-1, 0, 1, 9, 10, 12345, 10**25))
        high = rng.choice((None, int(exact(some_number(rng))), None if low is None else low + size))
        pattern = whole_numbers(low, high)
        around = [end + step for end in (low, high) if end is not None for step in range(-11, 12)]
        for value in [*around, 0, 9, 10, rng.randint(-(10**26), 10**26)]:
            fits = (low is None or value >= low) and (high is None or value <= high)
            assert matches(pattern, str(value)) is fits, (seed, low, high, value)
        assert (pattern is None) is (low is not None and high is not None and low > high)


@pytest.mark.samples(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_decimals_of_any_number_of_digits(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        low, high = some_bound(rng), some_bound(rng)
        if low is not None and rng.random() < 0.5:
            apart = Decimal(rng.choice(("0", "1", "0.1", "0.001", "-0.1")))
            high = Bound(value=low.value + apart, included=rng.random() < 0.5)
        pattern = decimals(low, high)
        for value in near(low, high):
            text = spelled(value)
            fits = is_within(value, low, high)
            assert matches(pattern, text) is fits, (seed, low, high, text)
            longer = text + ("0" if "." in text else ".0")
            assert fits or not matches(pattern, longer), (seed, low, high, longer)
            assert not matches(pattern, text + ".")


def some_bound(rng: random.Random) -> Bound | None:
    if rng.random() < 0.2:
        return None
    return Bound(value=exact(some_number(rng)), included=rng.random() < 0.5)


def near(low: Bound | None, high: Bound | None) -> list[Decimal]:
    steps = [Decimal(step) for step in ("0", "1", "-1", "0.1", "-0.1", "0.01", "1e-21", "-1e-21")]
    ends = [bound.value for bound in (low, high) if bound is not None]
    whole = [Decimal(int(end)) for end in ends]
    return [*(end + step for end in ends for step in steps), *steps, *whole]


def is_within(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    if low is not None and not (value > low.value or (low.included and value == low.value)):
        return False
    return high is None or value < high.value or (high.included and value == high.value)


def test_alternatives_do_not_nest_however_long_the_number() -> None:
    least = Bound(value=Decimal("5e-324"), included=True)
    for pattern in (whole_numbers(10**300 + 7, None), decimals(least, None)):
        assert pattern is not None
        depth = deepest = 0
        for char in pattern:
            depth += (char == "(") - (char == ")")
            deepest = max(deepest, depth)
        assert deepest <= 2
