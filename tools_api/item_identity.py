"""Equality of two items in a history.

A client's copy of what was said has ids, status and annotations of its own, and may spell the JSON
of arguments anew: other spaces, another order of keys, ``1.50`` for ``1.5``, U+FFFD for half a
surrogate pair, which is what clients get who are given objects. Nothing else is the same. Numbers
are compared by their value to the last digit, never as what a float can hold.

Always true: arguments have one canonical form only if they are one value; what is no JSON is the
same as itself alone.
"""

import json
import math
import re
from typing import Any, NamedTuple, NoReturn

import orjson

from tools_api.built_in_items import AdditionalTools, BuiltInCall, ConfigurationUpdate
from tools_api.exact_json import whole_text
from tools_api.items import Compaction, CustomToolCall, FunctionCall, Item, Message, Reasoning

_NOT_PLAIN = re.compile(r"[0-9][.eE]|[0-9]{16}|-0")
"""Signs in arguments whose numbers are not all short whole ones: others are the same however they
are read, and the faster reader has them."""
_PLAIN_DIGITS = 20
"""Whole numbers of so many digits are written out."""
_LONGEST_EXPONENT = 1000
"""Digits of an exponent that is looked into."""
_NO_JSON = "not JSON: "
"""A mark before arguments that are compared as they are; no JSON begins so."""


def normalised(item: Item) -> tuple[str, ...] | None:
    """The part that has to be equal in two items; None for what clients drop, or never saw."""
    match item:
        case Message():
            return ("message", item.role, item.text)
        case FunctionCall():
            return ("call", item.call_id, item.full_name, canonical(item.arguments))
        case CustomToolCall():
            return ("custom", item.call_id, item.full_name, item.input)
        case BuiltInCall():
            return (item.type, item.call_id, canonical(item.arguments))
        case AdditionalTools():
            return (item.type, item.tools)
        case ConfigurationUpdate():
            return (item.type, item.told)
        case Reasoning():
            return None
        case Compaction():
            return None if item.kind == "inner" else ("compaction", item.encrypted_content)
    return ("output", item.call_id, item.output)


def canonical(arguments: str) -> str:
    """One spelling of all texts that are the same JSON value. Of equal keys the last one counts."""
    if _NOT_PLAIN.search(arguments) is None:
        try:
            return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass  # half a surrogate pair, or no JSON
    try:
        text = _WRITER.encode(_READER.decode(arguments))
    except (ValueError, RecursionError):
        return _NO_JSON + arguments  # cut short, or nested too deep
    return whole_text(text)


class _Decimal(NamedTuple):
    """sign * digits * 10**power; no zeros at either end of the digits, none in 0."""

    sign: str
    digits: str
    power: int


def _number(literal: str) -> Any:
    """A number as Python's own where that is exact; else what no other JSON value becomes, with
    its digits. Decided by its value alone, not by how it is spelt."""
    found = _decimal(literal)
    if found is None:
        return [math.nan, literal]
    sign, digits, power = found
    if power >= 0 and len(digits) + power <= _PLAIN_DIGITS:
        return int(sign + digits + "0" * power) if digits else 0
    value = float(literal)
    if math.isfinite(value) and _decimal(repr(value)) == found:
        return value
    return [math.nan, f"{sign}{digits}e{power}"]


def _decimal(literal: str) -> _Decimal | None:
    """A number as a decimal; None: its exponent is beyond all measure."""
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    shortest = digits.rstrip("0")
    if not shortest:
        return _Decimal("", "", 0)
    if len(exponent) > _LONGEST_EXPONENT:
        return None
    power = int(exponent or 0) - len(fraction) + len(digits) - len(shortest)
    return _Decimal("-" if literal.startswith("-") else "", shortest, power)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_READER = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
_WRITER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
