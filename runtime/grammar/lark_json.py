"""JSON written in Lark: rules and terminals with names, and how objects and arrays are spelled.

Spelled as the grammar library spells what stands in a ``%json``: commas, colons, brackets and
names are terminals of their own, so that both can stand side by side.

Knows Lark and our spacing of JSON. Knows no schema.

Always true: a name stands for one body; what is spelled has a comma between two values and
nowhere else.
"""

import itertools
import json
from collections.abc import Iterable, Sequence

_COMMA, _COLON = '", "', '": "'
_CHARS = r'[^"\\\x00-\x1F\x7F]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])'
"""Each character in one spelling alone, so that no name is a second one for another."""


class TooLong(Exception):
    """There is no room for one more rule."""


class RuleBook:
    """Rules and terminals, each with a name made from a prefix."""

    def __init__(self, prefix: str, room: int) -> None:
        """
        Args:
            room: characters that the rules may have in all.
        """
        self.lines: list[str] = []
        self._prefix = prefix
        self._room = room
        self._numbers = itertools.count()
        self._names: dict[str, str] = {}

    def name(self) -> str:
        """For a rule that ``add`` is told later."""
        return f"{self._prefix}_{next(self._numbers)}"

    def add(self, name: str, body: str) -> str:
        """Write a rule down; gives its name.

        Raises:
            TooLong: it does not fit any more.
        """
        line = f"{name}: {body}\n"
        self._room -= len(line)
        if self._room < 0:
            raise TooLong
        self.lines.append(line)
        return name

    def knows(self, body: str) -> bool:
        """Whether something has that body."""
        return body in self._names

    def rule(self, body: str) -> str:
        """The name of a rule with that body."""
        if body not in self._names:
            self._names[body] = self.add(self.name(), body)
        return self._names[body]

    def terminal(self, body: str) -> str:
        """The name of a terminal with that body."""
        if body not in self._names:
            self._names[body] = self.add(self.name().upper(), body)
        return self._names[body]

    def one_of(self, texts: Iterable[str]) -> str:
        """A terminal for texts that are written as they are."""
        return self.terminal(" | ".join(json.dumps(text) for text in dict.fromkeys(texts)))

    def other_name(self, taken: Iterable[str]) -> str:
        """A terminal for the names that are none of those; there has to be one."""
        return self.terminal(f'/"(?:{_CHARS})*"/ & ~({" | ".join(map(key, taken))})')

    def object(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """An object with those pairs in their order, of which some have to come."""
        first = next((at for at, (_, needed) in enumerate(pairs) if needed), len(pairs))
        behind = ""
        for text, needed in reversed(pairs[first + 1 :]):
            comma = f"{_COMMA} {text}"
            behind = f"{comma} {behind}" if needed else self.rule(f"({comma})? {behind}")
        inner = f"{pairs[first][0]} {behind}" if pairs[first:] else ""
        behind = self.rule(f"{_COMMA} {inner}") if inner else '""'
        inner = inner or '""'
        for text, _ in reversed(pairs[:first]):
            inner = self.rule(f"{text} {behind} | {inner}")
            behind = self.rule(f"({_COMMA} {text})? {behind}")
        return f'"{{" {inner} "}}"'


def key(name: str) -> str:
    """A property's name, as a literal."""
    return json.dumps(json.dumps(name, ensure_ascii=False))


def pair(name: str, value: str) -> str:
    """A name and its value."""
    return f"{name} {_COLON} {value}"


def several(body: str, least: int, most: int | None) -> str:
    """The same again and again, with commas between; at least one.

    Args:
        most: None where there is no bound.
    """
    return f"{body} {_repeated(body, max(least - 1, 0), None if most is None else most - 1)}"


def array(items: Sequence[str], other: str | None, least: int, most: int | None) -> str:
    """An array of those items in their order, as many of ``other`` behind them as fit.

    Args:
        least, most: how many there may be in all; ``most`` is None where there is no bound.
    """
    rest = ""
    if other is not None and items:
        left = None if most is None else most - len(items)
        rest = _repeated(other, max(least - len(items), 0), left)
    elif other is not None:
        items, least = [several(other, least, most)], min(least, 1)
    for at in reversed(range(1, len(items))):
        rest = f"{_COMMA} {items[at]} {rest}"
        rest = rest if at < least else f"({rest})?"
    inner = f"{items[0]} {rest}" if items else ""
    return f'"[" {inner if least or not items else f"({inner})?"} "]"'


def _repeated(body: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    return f"({_COMMA} {body}){{{least},{'' if most is None else most}}}"
