"""Wrong values in right places: JSON that is nearly what was meant.

Every choice comes from ``choose(n)``, an integer below n, so that seeds and hypothesis drive the
same code.
"""

from collections.abc import Callable, Iterable
from typing import Any

import orjson

Choose = Callable[[int], int]

WRONG: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 2**63, "", "word", [], [None], {}),
    {"word": 1},
)
"""Eleven values, of which no field takes them all."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to all values in a JSON value, itself included."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    return [path, *(place for name, part in parts for place in places(part, (*path, name)))]


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy with ``other`` at a place."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other)
    return copy


def mutant(value: Any, choose: Choose) -> Any:
    """One to three values of a JSON value replaced, by others of it now and then."""
    for _ in range(1 + choose(3)):
        found = places(value)
        where = found[choose(len(found))]
        other = WRONG[choose(len(WRONG))]
        if choose(4) == 0:
            other = value
            for name in found[choose(len(found))]:
                other = other[name]
        value = replaced(value, where, other)
    return value


def damaged(text: bytes, choose: Choose) -> bytes:
    """Bytes cut short, doubled in part, or with one of them changed."""
    at = choose(len(text) + 1)
    match choose(3):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[at // 2 :]
    return text[:at] + bytes([choose(256)]) + text[at + 1 :]


def as_bytes(value: Any) -> bytes:
    """Compact JSON."""
    return orjson.dumps(value)
