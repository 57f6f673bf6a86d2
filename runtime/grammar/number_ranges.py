"""Ranges of numbers as the keywords of a schema give them, to the last digit.

Knows the keywords of numbers, as all drafts write them. Knows no grammar library.

Always true: nothing is rounded.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from tools_api.exact_numbers import exact, is_number

_BOUNDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
_UNBOUNDED = Context(prec=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of a range of numbers."""

    value: Decimal
    included: bool


Ends = tuple[Bound | None, Bound | None]
"""The two ends of a range: the lower one and the upper one."""


def ends_of(node: dict[str, Any]) -> Ends:
    """The range that a node's keywords give its numbers, as they are written."""
    lows, highs = (_bounds(node, *names) for names in _BOUNDS)
    return _highest(lows), _lowest(highs)


def tighter(one: Ends, other: Ends) -> Ends:
    """The range that two ranges have in common."""
    lows, highs = (
        [end for end in ends if end is not None] for ends in zip(one, other, strict=True)
    )
    return _highest(lows), _lowest(highs)


def whole_ends(ends: Ends) -> tuple[int | None, int | None]:
    """The first and the last whole number of a range."""
    low, high = ends
    first = None if low is None else _whole(low, math.ceil(low.value), 1)
    return first, None if high is None else _whole(high, math.floor(high.value), -1)


def counts(ends: Ends, step: Fraction) -> tuple[int | None, int | None]:
    """The first and the last multiple of ``step`` in a range, counted in steps."""
    low, high = ends
    first = None if low is None else math.ceil(Fraction(low.value) / step)
    last = None if high is None else math.floor(Fraction(high.value) / step)
    if first is not None and low is not None and not low.included:
        first += first * step == Fraction(low.value)
    if last is not None and high is not None and not high.included:
        last -= last * step == Fraction(high.value)
    return first, last


def decimal_of(value: Fraction) -> Decimal:
    """The decimal that a fraction is, which has to be one."""
    places = 0
    while 10**places % value.denominator:
        places += 1
    digits = value.numerator * (10**places // value.denominator)
    return Decimal(digits).scaleb(-places, _UNBOUNDED)


def places_of(value: Decimal) -> int:
    """Digits behind its point."""
    return len(format(value, "f").partition(".")[2].rstrip("0"))


def is_power_of_ten(value: Decimal) -> bool:
    """Whether it is 1, 10, 0.1 and so on."""
    return "".join(map(str, value.as_tuple().digits)).strip("0") == "1"


def _highest(lows: Iterable[Bound]) -> Bound | None:
    return max(lows, key=lambda bound: (bound.value, not bound.included), default=None)


def _lowest(highs: Iterable[Bound]) -> Bound | None:
    return min(highs, key=lambda bound: (bound.value, bound.included), default=None)


def _whole(bound: Bound, nearest: int, step: int) -> int:
    return nearest + step if not bound.included and nearest == bound.value else nearest


def _bounds(node: dict[str, Any], included: str, excluded: str) -> Iterator[Bound]:
    inner, outer = node.get(included), node.get(excluded)
    if is_number(inner):
        # Before draft 6 the other keyword only says whether this one is excluded.
        yield Bound(value=exact(inner), included=outer is not True)
    if is_number(outer):
        yield Bound(value=exact(outer), included=False)
