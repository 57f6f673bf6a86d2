"""Values of a peer's JSON as fields of our dataclasses: exact types, or an error.

The checks follow from the annotations of the classes, so that a new field cannot be forgotten. What
JSON cannot tell apart is told apart here: a boolean is no integer, a list becomes the tuple that is
wanted, an enumeration's value the member. Numbers have ranges: those of ``RANGES`` by the field's
name, else an integer is a count.

Knows no message in particular and no bytes.

Always true: what ``build`` returns holds in every field what its annotation says, all the way down.
"""

import enum
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

INT64 = (1 << 63) - 1
RANGES: Mapping[str, tuple[float, float]] = {
    "seed": (0, (1 << 64) - 1),
    "priority": (-INT64, INT64),
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, (1 << 31) - 1),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "repetition_penalty": (1e-6, 1e6),
    "base_offset": (0, (1 << 31) - 1),
    "max_new_tokens": (0, (1 << 31) - 1),
    "top_logprobs": (0, 1 << 10),
    "deadline_s": (-1e12, 1e12),
    "logprob": (-math.inf, 1.0),
    "top": (-math.inf, INT64),
}
"""Least and most of numbers, by the field's name; other integers are from 0 to what 64 bits hold,
and other floats are any."""
_UNTOLD = (-math.inf, math.inf)
_COUNT = (0, INT64)

Made = TypeVar("Made")
Check = Callable[[Any], Any]


class WrongField(Exception):
    """A value is not what its field says; the message names the field."""


def build(kind: type[Made], value: Any, **given: Any) -> Made:
    """An instance of a dataclass from an object of JSON.

    Args:
        kind: the dataclass.
        value: names and values of its fields; those with a default may be missing.
        given: fields that are not in ``value`` and need no check.

    Raises:
        WrongField: a field is missing, unknown or of another type, at any depth.
    """
    if type(value) is not dict:
        raise WrongField(f"{kind.__name__} is {_kind_of(value)}, not an object")
    checks, required = _checks_of(kind)  # type: ignore[arg-type]
    found = dict(given)
    for name, part in value.items():
        check = checks.get(name)
        if check is None or name in given:
            raise WrongField(f"{kind.__name__} has no field {str(name)[:80]!r}")
        found[name] = _checked(kind, name, check, part)
    if not found.keys() >= required:
        missing = required - found.keys()
        raise WrongField(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**found)


def checked(kind: type, name: str, value: Any) -> Any:
    """The value of one field of a dataclass. Raises WrongField."""
    return _checked(kind, name, _checks_of(kind)[0][name], value)


def _checked(kind: type, name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except WrongField as error:
        raise WrongField(f"{kind.__name__}.{name}: {error}") from None


@cache
def _checks_of(kind: Any) -> tuple[dict[str, Check], frozenset[str]]:
    """A check for each field of a dataclass, and the names of those that have no default."""
    hints = get_type_hints(kind)
    declared = fields(kind)
    checks = {
        field.name: _check_of(hints[field.name], RANGES.get(field.name, _UNTOLD))
        for field in declared
    }
    required = (
        field.name
        for field in declared
        if field.default is MISSING and field.default_factory is MISSING
    )
    return checks, frozenset(required)


def _check_of(hint: Any, bounds: tuple[float, float]) -> Check:
    """The check of values of one annotation; one that nobody has thought of refuses them all."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(parts, bounds)
    if origin is Literal:
        return _one_of(parts)
    if origin is tuple and parts[-1] is Ellipsis:
        return _many(tuple, _check_of(parts[0], bounds))
    if origin is tuple:
        return _row([_check_of(part, bounds) for part in parts])
    if origin is list:
        return _many(list, _check_of(parts[0], bounds))
    if origin is dict and parts[0] is str:
        return _named(_check_of(parts[1], bounds))
    if hint in (int, float):
        return _number(hint, bounds)
    if hint is str:
        return _text
    if hint is bool:
        return _exactly(bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _member(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: build(hint, value)
    return _unchecked(hint)


def _unchecked(hint: Any) -> Check:
    """Fields such as arrays come beside the JSON, and never in it."""

    def refuse(value: Any) -> Any:
        raise WrongField(f"{hint} does not come as JSON")

    return refuse


def _optional(parts: tuple[Any, ...], bounds: tuple[float, float]) -> Check:
    rest = [part for part in parts if part is not type(None)]
    if len(rest) != 1 or len(rest) == len(parts):
        return _unchecked(parts)
    check = _check_of(rest[0], bounds)
    return lambda value: None if value is None else check(value)


def _one_of(words: tuple[Any, ...]) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise WrongField(f"{_kind_of(value)}, not one of {', '.join(map(str, words))}")
        return value

    return check


def _many(kind: type, check: Check) -> Check:
    def check_all(value: Any) -> Any:
        if type(value) is not list:
            raise WrongField(f"{_kind_of(value)}, not a list")
        return kind(map(check, value))

    return check_all


def _row(checks: list[Check]) -> Check:
    def check_row(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise WrongField(f"{_kind_of(value)}, not a list of {len(checks)}")
        return tuple(check(part) for check, part in zip(checks, value, strict=True))

    return check_row


def _named(check: Check) -> Check:
    def check_all(value: Any) -> Any:
        if type(value) is not dict:
            raise WrongField(f"{_kind_of(value)}, not an object")
        return {name: check(part) for name, part in value.items()}

    return check_all


def _number(kind: type, bounds: tuple[float, float]) -> Check:
    """Where a float is wanted an integer will do; of an integer nothing else."""
    allowed = (int,) if kind is int else (float, int)
    least, most = _COUNT if kind is int and bounds == _UNTOLD else bounds

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise WrongField(f"{_kind_of(value)}, not {kind.__name__}")
        if not least <= value <= most:
            raise WrongField(f"{value!r} is not in {least}..{most}")
        return kind(value)

    return check


def _text(value: Any) -> str:
    if type(value) is not str:
        raise WrongField(f"{_kind_of(value)}, not a string")
    return value


def _exactly(kind: type) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise WrongField(f"{_kind_of(value)}, not {kind.__name__}")
        return value

    return check


def _member(kind: type[enum.Enum]) -> Check:
    members = {member.value: member for member in kind}

    def check(value: Any) -> Any:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise WrongField(f"{_kind_of(value)}, not one of {', '.join(map(str, members))}")
        return member

    return check


def _kind_of(value: Any) -> str:
    """A value in an error message: what it is, and shortly what it says."""
    if value is None:
        return "null"
    said = repr(value)
    return f"{type(value).__name__} {said if len(said) <= 40 else said[:40] + '...'}"
