"""Ranges of numbers as regular expressions, exact whatever the number of digits.

Numbers are written as JSON has them, without an exponent: the one way in which a bound can be
read off digit by digit. Alternatives stand side by side and never nest, so that a pattern is as
deep for a number of 300 digits as for one of three.

Knows digits. Knows no schema and no grammar library.

Always true: a text that a pattern matches is a number within its bounds, and every number within
them has a text that it matches.
"""

from collections.abc import Iterator
from decimal import Decimal

from runtime.grammar.number_ranges import Bound

ANY_WHOLE = "-?(?:0|[1-9][0-9]*)"
_REST = "[0-9]*"


def whole_numbers(low: int | None, high: int | None) -> str | None:
    """The whole numbers from ``low`` to ``high``, both included; None if there are none.

    Args:
        low, high: None where there is no bound.
    """
    if low is None and high is None:
        return ANY_WHOLE
    alternatives: list[str] = []
    if low is None or low < 0:
        largest = None if low is None else -low
        alternatives += [
            f"-{way}" for way in _natural(1 if high is None else max(1, -high), largest)
        ]
    if high is None or high >= 0:
        alternatives += _natural(0 if low is None else max(0, low), high)
    return _either(alternatives)


def decimals(low: Bound | None, high: Bound | None) -> str | None:
    """The numbers from ``low`` to ``high``; None if there are none.

    Args:
        low, high: None where there is no bound.
    """
    zero = Bound(value=Decimal(0), included=False)
    alternatives: list[str] = []
    if low is None or low.value < 0:
        nearest = zero if high is None or high.value >= 0 else _mirrored(high)
        farthest = None if low is None else _mirrored(low)
        alternatives += [f"-{way}" for way in _not_negative(nearest, farthest)]
    if high is None or high.value >= 0:
        nearest = Bound(value=Decimal(0), included=True) if low is None or low.value < 0 else low
        alternatives += _not_negative(nearest, high)
    return _either(alternatives)


def _mirrored(bound: Bound) -> Bound:
    return Bound(value=bound.value.copy_negate(), included=bound.included)


def _either(alternatives: list[str]) -> str | None:
    return f"(?:{'|'.join(alternatives)})" if alternatives else None


def _natural(low: int, high: int | None) -> Iterator[str]:
    """Alternatives for ``low`` to ``high``, of which the former is not negative."""
    if high is not None and low > high:
        return
    least, most = str(low), None if high is None else str(high)
    if most is not None and len(least) == len(most):
        yield from _of_equal_length(least, most)
        return
    yield from _of_equal_length(least, "9" * len(least))
    if most is None:
        yield f"[1-9][0-9]{{{len(least)},}}"
        return
    if len(least) + 1 < len(most):
        yield f"[1-9][0-9]{{{len(least)},{len(most) - 2}}}"
    yield from _of_equal_length("1" + "0" * (len(most) - 1), most)


def _of_equal_length(low: str, high: str) -> Iterator[str]:
    """Texts of as many digits as both have, between them."""
    same = _common(low, high)
    if same == len(low):
        yield low
        return
    before, first, last = low[:same], int(low[same]), int(high[same])
    low_rest, high_rest = low[same + 1 :], high[same + 1 :]
    first += _has_other(low_rest, "0")
    last -= _has_other(high_rest, "9")
    if first <= last:
        yield before + _digit(first, last) + _digits(len(low_rest))
    if _has_other(low_rest, "0"):
        yield from _from_on(before + low[same], low_rest)
    if _has_other(high_rest, "9"):
        yield from _up_to(before + high[same], high_rest)


def _from_on(before: str, low: str) -> Iterator[str]:
    """``before`` and as many digits as ``low`` has, that are not less."""
    end = len(low.rstrip("0"))
    for at in range(end):
        least = int(low[at]) + (at + 1 < end)
        if least <= 9:
            yield before + low[:at] + _digit(least, 9) + _digits(len(low) - at - 1)


def _up_to(before: str, high: str) -> Iterator[str]:
    """``before`` and as many digits as ``high`` has, that are not more."""
    end = len(high.rstrip("9"))
    for at in range(end):
        most = int(high[at]) - (at + 1 < end)
        if most >= 0:
            yield before + high[:at] + _digit(0, most) + _digits(len(high) - at - 1)


def _not_negative(low: Bound, high: Bound | None) -> Iterator[str]:
    """Alternatives for the numbers from ``low`` on, which is not negative."""
    whole, fraction = _split(low)
    if high is None:
        yield from _with_fractions(whole, _fractions_from(fraction, low.included))
        yield from (f"{way}(?:\\.[0-9]+)?" for way in _natural(whole + 1, None))
        return
    most, last_fraction = _split(high)
    if whole > most:
        return
    if whole == most:
        between = _fractions_between(fraction, low.included, last_fraction, high.included)
        yield from _with_fractions(whole, between)
        return
    yield from _with_fractions(whole, _fractions_from(fraction, low.included))
    yield from (f"{way}(?:\\.[0-9]+)?" for way in _natural(whole + 1, most - 1))
    yield from _with_fractions(most, _fractions_up_to(last_fraction, high.included))


def _split(bound: Bound) -> tuple[int, str]:
    """The whole part, and the digits behind the point without zeros at their end."""
    whole, _, fraction = format(bound.value, "f").partition(".")
    return int(whole), fraction.rstrip("0")


def _with_fractions(whole: int, fractions: Iterator[str]) -> Iterator[str]:
    """``whole`` with each of the fractions, of which the empty one needs no point."""
    for fraction in fractions:
        yield f"{whole}\\.{fraction}" if fraction else str(whole)


def _fractions_from(low: str, included: bool) -> Iterator[str]:
    """Digits behind a point that are not less than ``low``."""
    if not low:
        if included:
            yield from ("", "[0-9]+")
        else:
            yield "0*[1-9]" + _REST
        return
    yield low + (_REST if included else "0*[1-9]" + _REST)
    for at, digit in enumerate(low):
        if digit != "9":
            yield low[:at] + _digit(int(digit) + 1, 9) + _REST


def _fractions_up_to(high: str, included: bool) -> Iterator[str]:
    """Digits behind a point that are not more than ``high``."""
    if high or included:
        yield ""
    if included:
        yield high + "0*" if high else "0+"
    for at, digit in enumerate(high):
        if at:
            yield high[:at]
        if digit != "0":
            yield high[:at] + _digit(0, int(digit) - 1) + _REST


def _fractions_between(
    low: str, low_included: bool, high: str, high_included: bool
) -> Iterator[str]:
    size = max(len(low), len(high))
    least, most = low.ljust(size, "0"), high.ljust(size, "0")
    if least >= most:
        if least == most and low_included and high_included:
            yield low
        return
    same = _common(least, most)
    # ``most`` has a digit other than zero behind ``same``: it is the larger one.
    before, first, last = least[:same], int(least[same]), int(most[same])
    if last - first > 1:
        yield before + _digit(first + 1, last - 1) + _REST
    if low_included and not low[same:]:
        yield low  # written without the zeros that ``before`` ends with
    for way in _fractions_from(low[same + 1 :], low_included):
        yield before + str(first) + way
    for way in _fractions_up_to(high[same + 1 :], high_included):
        yield before + str(last) + way


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        len(one),
    )


def _has_other(digits: str, digit: str) -> bool:
    return bool(digits.strip(digit))


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _digits(count: int) -> str:
    return "" if count == 0 else f"[0-9]{{{count}}}"
