"""JSON text to values and back: any text, numbers to the last digit.

orjson does the work. What it would round or refuse is done beside it: a whole number of any size
is an ``int``, any other number the ``float`` whose shortest spelling has its value, or else a
``Decimal``; half a surrogate pair, which JSON can write and UTF-8 cannot, is U+FFFD. Numbers cost
linear time, however long they are.

Knows JSON. Knows no request and no bound on one.

Always true: the numbers of ``loads(text)`` are those of ``text``, and ``dumps`` and ``written``
give them back.
"""

import json
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import orjson

from tools_api.exact_numbers import number
from tools_api.json_bounds import outside_strings, without_escapes

MAX_INT_DIGITS = 4300
"""Python reads and writes no longer ``int``; a longer whole number is a ``Decimal`` too."""

_LONG = re.compile(rb"[0-9.]{17}|[0-9.]{16}[eE]|[0-9][eE][-+]?[0-9]{3}")
"""Among what is outside strings: a number that orjson may round. A double has the value of any
decimal of 15 digits with an exponent of two."""
_LONG_FRACTION = re.compile(rb"(?=[0-9.]{17})[0-9]*\.|[0-9.]{16}[eE]|[0-9][eE][-+]?[0-9]{3}")
_ESCAPED_PAIRS = re.compile(
    rb"(?<!\\)((?:\\\\)*+)"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MAX_DEPTH = 250
"""orjson writes no deeper."""


def loads(text: bytes | str, outside: bytes | None = None) -> Any:
    """The value of a JSON text. Of equal keys in one object the last one counts.

    Args:
        outside: what stands outside its strings, where that is known.

    Raises:
        ValueError: it is none, it is nested too deep, or a number has an exponent of more than
            18 digits.
    """
    data = whole_text(text).encode() if isinstance(text, str) else text
    outside = outside_strings(without_escapes(data)) if outside is None else outside
    if _LONG.search(outside) is not None:
        return _loads_exactly(whole_pairs(data))
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        mended = whole_pairs(data)
        if mended == data:
            raise
    return orjson.loads(mended)


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """``value`` as compact JSON.

    Raises:
        TypeError: it has something that JSON does not know, or is nested too deep.
    """
    option = orjson.OPT_SORT_KEYS if sort_keys else None
    try:
        return orjson.dumps(value, default=_fragment, option=option)
    except orjson.JSONEncodeError:
        # A whole number beyond 64 bits, half a surrogate pair, or a fault.
        return orjson.dumps(_writable(value), default=_fragment, option=option)


def written(
    value: Any, *, indent: int | None = None, ensure_ascii: bool = False, spaces: bool = True
) -> str:
    """``value`` as ``json.dumps`` spells it, with spaces unless told otherwise; what is outside
    ASCII as it is, unless ``ensure_ascii``."""
    separators = None if spaces else (",", ":")
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators)
    except TypeError:
        return _Spelling(indent, ensure_ascii, "" if not spaces else " ").of(value)


def whole_text(text: str) -> str:
    """``text`` as UTF-8 can write it: each half of a surrogate pair is U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_pairs(text: bytes) -> bytes:
    """A JSON text of the same length that escapes no half of a surrogate pair: U+FFFD instead."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPED_PAIRS.sub(lambda found: found[0] if found[2] else found[1] + rb"\ufffd", text)


def may_have_decimals(text: str) -> bool:
    """Whether ``loads`` may find a ``Decimal`` in a JSON text."""
    bare = without_escapes(text.encode("utf-8", "replace"))
    return _LONG_FRACTION.search(outside_strings(bare)) is not None


def beginning(text: str) -> Any:
    """The value of a JSON text that may have been cut short: what of it is whole.

    Raises:
        ValueError: nothing is.
    """
    try:
        return loads(text)
    except ValueError:
        return loads(_completed(text))


# Reading


def _loads_exactly(text: bytes) -> Any:
    try:
        return json.loads(
            text.decode(), parse_int=_whole, parse_float=number, parse_constant=_refused
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    except InvalidOperation:
        raise ValueError("the exponent of a number is too large") from None


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else Decimal(digits)


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


_TOKEN = re.compile(
    r'[ \t\r\n]*(?:(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+")'
    r'|(?P<sign>[{}\[\],:])|(?P<word>[^\s{}\[\],:"]+))',
    re.DOTALL,
)
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]"}


def _completed(text: str) -> str:
    """``text`` up to its last value that is whole, with what closes the arrays and objects that
    are open there."""
    closers: list[str] = []
    end, before, at = 0, "", 0
    kept: list[str] = []
    while (found := _TOKEN.match(text, at)) is not None:
        at = found.end()
        sign = found["sign"] or ""
        in_object = bool(closers) and closers[-1] == "}"
        is_key = in_object and before in ("{", ",")
        if sign in _CLOSERS:
            closers.append(_CLOSERS[sign])
        elif sign in ("}", "]") and closers:
            closers.pop()
        word = found["word"]
        whole = found["string"] is not None or (word and _WORD.fullmatch(word))
        if sign in ("{", "}", "[", "]") if sign else whole and not is_key:
            end, kept = at, closers.copy()
        before = sign
    return text[:end] + "".join(reversed(kept))


# Writing


def _fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value))
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _writable(value: Any, depth: int = 0) -> Any:
    """``value`` with what orjson refuses to write written for it."""
    if depth > _MAX_DEPTH:
        raise TypeError("nested too deep")
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {
            whole_text(key) if isinstance(key, str) else key: _writable(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_writable(inner, depth + 1) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 63:
        return orjson.Fragment(str(value))
    return value


class _Spelling:
    """How ``json.dumps`` spells arrays and objects, for values that it does not know."""

    def __init__(self, indent: int | None, ensure_ascii: bool, space: str) -> None:
        self._indent = indent
        self._ensure_ascii = ensure_ascii
        self._space = space

    def of(self, value: Any, level: int = 1) -> str:
        if isinstance(value, Decimal) and value.is_finite():
            return str(value)
        if isinstance(value, dict):
            pairs = (
                f"{self._plain(key)}:{self._space}{self.of(each, level + 1)}"
                for key, each in value.items()
            )
            return "{" + self._joined(pairs, level) + "}"
        if isinstance(value, list | tuple):
            return "[" + self._joined((self.of(each, level + 1) for each in value), level) + "]"
        return self._plain(value)

    def _plain(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=self._ensure_ascii)

    def _joined(self, parts: Iterable[str], level: int) -> str:
        listed = list(parts)
        if self._indent is None or not listed:
            return f",{self._space}".join(listed)
        line = "\n" + " " * (self._indent * level)
        outer = "\n" + " " * (self._indent * (level - 1))
        return line + f",{line}".join(listed) + outer
