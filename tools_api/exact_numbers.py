"""Numbers of JSON to the last digit: what ``tools_api.exact_json`` reads, and how they compare.

A whole number is an ``int`` of any size. Another is a ``float`` where the shortest decimal that
gives this float is the number in the text, and a ``Decimal`` where it is not: so a float always
stands for the decimal that Python prints for it, and nothing here rounds.

Knows numbers. Knows no text but theirs, and no schema.

Always true: two numbers are equal here exactly if their decimals are.
"""

from collections.abc import Hashable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeGuard

Number = int | float | Decimal

_SHORT_CHARS = 16
_MOST_WHOLE_DIGITS = 4000
"""Python makes no text of a longer ``int``."""


def is_number(value: object) -> TypeGuard[Number]:
    """Whether JSON calls it a number; true and false are none."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def exact(value: Number) -> Decimal:
    """The number as it was written. Compare these; other operations of ``Decimal`` round."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def plain(value: Decimal) -> Number:
    """The number as ``read`` would give it."""
    if is_whole(value) and num_digits(value) <= _MOST_WHOLE_DIGITS:
        return int(value)
    return number(str(value))


def is_whole(value: Number) -> bool:
    """Whether JSON Schema calls it an integer: 1.0 is one."""
    if isinstance(value, int):
        return True
    _, digits, exponent = exact(value).as_tuple()
    assert isinstance(exponent, int)  # JSON has no infinity
    zeros = next((at for at, digit in enumerate(reversed(digits)) if digit), len(digits))
    return exponent + zeros >= 0 or not any(digits)


def num_digits(value: Number) -> int:
    """How many digits it has, written without an exponent."""
    _, digits, exponent = exact(value).as_tuple()
    assert isinstance(exponent, int)  # JSON has no infinity
    return max(len(digits), len(digits) + exponent, 1 - exponent)


def identity(value: Any) -> Hashable:
    """Equal for what JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((key, identity(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(map(identity, value))
    if isinstance(value, bool):
        return bool, value
    return exact(value) if is_number(value) else value


def number(text: str) -> float | Decimal:
    """A number that is not a whole one, or has an exponent, as it stands in JSON text.

    Raises:
        ValueError: its exponent has too many digits.
    """
    value = float(text)
    if len(text) < _SHORT_CHARS and "e" not in text and "E" not in text:
        return value
    try:
        written = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("an exponent has too many digits") from error
    return value if exact(value) == written else written
