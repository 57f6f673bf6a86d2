"""Which numbers of a schema the grammar library keeps to the last digit.

llguidance 1.9 reads every number into a double, with an error of its own where the digits do not
fit one or the power of ten is large; it takes bounds of integers for 64 bits, and writes doubles
with the fewest digits that tell them apart. Here its arithmetic is done again and compared with
the exact one: what comes out the same may be left to it.

Knows llguidance's reading of numbers. Compiles nothing.

Always true: of a node that ``keeps`` lets pass the library accepts the numbers that the node's
own keywords accept, and no others.
"""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from runtime.grammar.number_ranges import (
    Bound,
    Ends,
    counts,
    ends_of,
    is_power_of_ten,
    places_of,
    whole_ends,
)
from tools_api.exact_numbers import Number, exact, is_number, num_digits

MAX_DIGITS = 400
"""Numbers with more of them, written without an exponent, are not enforced; doubles have up to
344."""
_NUMERIC = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"})
_EXACT = 2**53
_EXACT_DIGITS = 15
"""No two decimals of so many digits are read into the same double."""
_EXACT_POWER = 22
"""The largest power of ten that a double holds."""
_INT64 = range(-(2**63), 2**63)
_READ_WHOLE = range(-(2**63), 2**64)
_MAX_PLACES = 40
_COUNTED = 10**18
"""From a bound the library counts on to the next power of ten, in 64 bits."""
_MAX_STEP = (2**32 - 10) // 10
"""The library divides digit by digit, in 32 bits."""


def keeps(node: dict[str, Any], *, all_of_them: bool = True) -> bool:
    """Whether the library keeps the numbers of the node's own keywords.

    Args:
        all_of_them: it also has to accept every number that they accept. Beside ``multipleOf``
            it leaves out some that it can only write with more digits.
    """
    if not keeps_value(node.get("const")):
        return False
    values = node.get("enum")
    if isinstance(values, list) and not all(map(keeps_value, values)):
        return False
    if not node.keys() & _NUMERIC:
        return True
    types = node.get("type", "number")
    kinds = types if isinstance(types, list) else [types]
    return all(
        _keeps_range(node, whole=kind == "integer", all_of_them=all_of_them)
        for kind in kinds
        if kind in ("integer", "number")
    )


def keeps_value(value: Any) -> bool:
    """Whether the library keeps the numbers in a constant."""
    if isinstance(value, dict):
        return all(map(keeps_value, value.values()))
    if isinstance(value, list):
        return all(map(keeps_value, value))
    if not is_number(value):
        return True
    if isinstance(value, int):
        return value in _INT64[1:] and int(float(value)) == value
    return _double(value) is not None


def _double(value: Number) -> float | None:
    """The double into which the library reads a number, where it is certain and written back as
    the same number."""
    if isinstance(value, int):
        return float(value) if abs(value) <= _EXACT else None
    if isinstance(value, Decimal):
        return None
    _, digits, exponent = exact(value).as_tuple()
    assert isinstance(exponent, int)  # JSON has no infinity
    few = len(digits) <= _EXACT_DIGITS and abs(exponent) <= _EXACT_POWER
    return value if few and abs(value) < _COUNTED else None


def _keeps_range(node: dict[str, Any], *, whole: bool, all_of_them: bool) -> bool:
    numbers = [node[name] for name in _NUMERIC if is_number(node.get(name))]
    if any(num_digits(value) > MAX_DIGITS for value in numbers):
        return False
    ends = ends_of(node)
    if not (_keeps_whole(node) if whole else _keeps_decimals(ends, numbers)):
        return False
    step = node.get("multipleOf")
    if not is_number(step) or not step:
        return True  # a step of zero is refused by the library
    if whole or not all_of_them:
        return _keeps_step(step, ends, whole=whole)
    return _keeps_step(step, ends, whole=False) and _reaches_all(exact(step), ends)


def _keeps_whole(node: dict[str, Any]) -> bool:
    """Whether the library makes the right whole numbers of the bounds, and can count from them."""
    doubles = {name: _read(node[name]) for name in _NUMERIC if is_number(node.get(name))}
    if None in doubles.values():
        return False
    low, high = ends_of(node | doubles)
    first, last = _as_int64(low, 1), _as_int64(high, -1)
    if (first, last) != whole_ends(ends_of(node)) or _INT64[0] in (first, last):
        return False
    if low is not None and high is not None and low.value == high.value:
        return low.included and high.included  # the library looks no further
    if last is None and first is not None:
        return first < _COUNTED
    return first is not None or last is None or last > -_COUNTED


def _read(value: Number) -> float | None:
    """The double into which the library reads a number, where that is certain."""
    if isinstance(value, int):
        return float(value) if value in _READ_WHOLE else None
    return _double(value)


def _as_int64(bound: Bound | None, step: int) -> int | None:
    """The whole number next to a bound, as the library finds it: ``step`` is 1 for a lower bound,
    -1 for an upper one."""
    if bound is None:
        return None
    value = float(bound.value)
    if not bound.included and value.is_integer():
        value += step
    nearest = math.ceil(value) if step > 0 else math.floor(value)
    return min(max(nearest, _INT64[0]), _INT64[-1])


def _keeps_decimals(ends: Ends, numbers: list[Number]) -> bool:
    if any(_double(value) is None for value in numbers):
        return False
    low, high = ends
    if low is None or high is None or low.value >= high.value:
        return True
    if low.value >= 0:
        return not _takes_its_end(low, high)
    if high.value < 0:
        return not _takes_its_end(high, low)
    return high.included or high.value > 0 or low.value <= -1


def _takes_its_end(near: Bound, far: Bound) -> bool:
    """Whether the library takes the end nearer to zero into a range that excludes it: it does
    where that is a whole number, and the other end has the same whole part."""
    return not near.included and near.value == int(near.value) == int(far.value)


def _keeps_step(step: Number, ends: Ends, *, whole: bool) -> bool:
    double = _read(step)
    if double is None:
        return False
    value, places = abs(double), 0
    while not value.is_integer() and places < _MAX_PLACES:
        value, places = value * 10, places + 1
    exact_step = Fraction(abs(exact(step)))
    if value > _MAX_STEP or Fraction(int(value), 10**places) != exact_step:
        return False
    low, high = ends
    if low is None or high is None:
        return True
    found = _library_finds(low, high, value / 10.0**places, whole=whole)
    every = exact_step * exact_step.denominator if whole else exact_step
    first, last = counts(ends, every)
    assert first is not None
    assert last is not None
    return found == (first <= last)


def _reaches_all(step: Decimal, ends: Ends) -> bool:
    """Whether the library writes every multiple in the range: it gives it as many places as the
    step has, or none, while next to a bound it needs as many as that has."""
    bounds = [bound.value for bound in ends if bound is not None]
    few = all(places_of(value) <= places_of(step) for value in bounds)
    return few and (not bounds or not places_of(step) or is_power_of_ten(step))


def _library_finds(low: Bound, high: Bound, step: float, *, whole: bool) -> bool:
    """Whether the library believes that there is a multiple of ``step`` in a range."""
    first, last = float(low.value), float(high.value)
    least, most = math.ceil(first / step) * step, math.floor(last / step) * step
    if not low.included and least == first:
        least += step
    if not high.included and most == last:
        most -= step
    return math.ceil(least) <= math.floor(most) if whole else least <= most
