"""Numbers of JSON to the last digit: read, compared and written as they stand in the text.

A whole number is an ``int`` of any size. Another is a ``float`` where the shortest decimal that
gives this float is the number in the text, and a ``Decimal`` where it is not: so a float always
stands for the decimal that Python prints for it, and nothing here rounds.

Knows JSON. Knows no schema.

Always true: a number that is read and written again has the same value.
"""

import json
import re
import secrets
from collections.abc import Hashable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeGuard

import orjson

Number = int | float | Decimal

_LONG = re.compile(rb"[0-9.]{17}|[0-9][eE]")
"""What a number has in it that a double of 15 digits does not hold."""
_SHORT_CHARS = 16
_MOST_WHOLE_DIGITS = 4000
"""Python makes no text of a longer ``int``."""
_INT64 = range(-(2**63), 2**64)


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


def read(text: str | bytes) -> Any:
    """The value of JSON text.

    Raises:
        ValueError: it is none, or has a number with too many digits.
        RecursionError: it is nested too deep.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if _LONG.search(data) is None:
        return orjson.loads(data)
    return json.loads(data, parse_float=number, parse_constant=_no_constant)


def written(value: Any, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """``json.dumps`` of a value that may have a ``Decimal`` in it."""
    numbers: list[str] = []
    mark = ""

    def marked(inner: object) -> str:
        nonlocal mark
        mark = mark or secrets.token_hex(16)
        numbers.append(_text(inner))
        return f"{mark}{len(numbers) - 1:06d}"

    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=marked)
    if not numbers:
        return text
    return re.sub(rf'"{mark}(\d+)"', lambda found: numbers[int(found[1])], text)


def packed(value: Any, *, sort_keys: bool = False) -> bytes:
    """``orjson.dumps`` of a value that may have numbers of any size in it."""
    option = orjson.OPT_SORT_KEYS if sort_keys else None
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return orjson.dumps(_with_fragments(value), option=option)


def _with_fragments(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_fragments(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_with_fragments, value))
    if isinstance(value, Decimal) or (isinstance(value, int) and value not in _INT64):
        return orjson.Fragment(_text(value).encode())
    return value


def _text(value: object) -> str:
    if not isinstance(value, int | Decimal):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return str(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
