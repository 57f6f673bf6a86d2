"""JSON written in Lark: rules and terminals with names, and how objects and arrays are spelled.

Spelled as the grammar library spells what stands in a ``%json``: commas, colons, brackets and
names are terminals of their own, so that both can stand side by side.

Knows Lark and our spacing of JSON. Knows no schema.

Always true: a name stands for one body; what is spelled has a comma between two values and
nowhere else.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence

_COMMA, _COLON = '", "', '": "'
_CHARS = r'[^"\\\x00-\x1F\x7F]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])'
"""Each character in one spelling alone, so that no name is a second one for another."""


_NAMES = re.compile(r"\b(?:exact|EXACT)_\d+_\d+\b")


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
        named = [(self.rule(text), needed) for text, needed in pairs]
        behind = [f"{_COMMA} {name}" if needed else f"({_COMMA} {name})?" for name, needed in named]
        first = next((at for at, (_, needed) in enumerate(named) if needed), len(named))
        halves = _Halves(self, behind)
        ways = [
            f"{named[at][0]} {halves.part(at + 1, len(named))}"
            for at in range(min(first + 1, len(named)))
        ]
        return _enclosed("{", ways, "}", may_be_empty=first == len(named))

    def array(self, items: Sequence[str], other: str | None, least: int, most: int | None) -> str:
        """An array of those items in their order, as many of ``other`` behind them as fit.

        Args:
            least, most: how many there may be in all; ``most`` is None where there is no bound.
        """
        if not items:
            ways = [] if other is None else [several(other, least, most)]
            return _enclosed("[", ways, "]", may_be_empty=not least)
        parts = [item if at == 0 else f"{_COMMA} {item}" for at, item in enumerate(items)]
        counts = range(max(least, 1), len(items) + 1)
        halves = _Halves(self, parts)
        ways = [halves.part(0, count) for count in counts]
        if other is not None:
            left = None if most is None else most - len(items)
            whole = ways.pop() if ways else halves.part(0, len(items))
            ways.append(f"{whole} {_repeated(other, max(least - len(items), 0), left)}")
        return _enclosed("[", ways, "]", may_be_empty=not least)

    def depth(self, start: str) -> int:
        """How many rules are compiled inside each other, from the one called ``start`` on."""
        bodies = dict(line.rstrip("\n").split(": ", 1) for line in self.lines)
        seen, deepest = {start}, 1
        stack = [iter(_NAMES.findall(bodies.get(start, "")))]
        while stack:
            name = next((name for name in stack[-1] if name not in seen), None)
            if name is None:
                stack.pop()
                continue
            seen.add(name)
            stack.append(iter(_NAMES.findall(bodies.get(name, ""))))
            deepest = max(deepest, len(stack))
        return deepest


class _Halves:
    """Runs of some bodies, put together of halves of halves: the library compiles rules in as many
    calls inside each other as they refer to each other, and would not survive a chain of
    thousands."""

    def __init__(self, book: RuleBook, bodies: Sequence[str]) -> None:
        self._book = book
        self._bodies = bodies
        self._known: dict[tuple[int, int], str] = {}

    def part(self, first: int, end: int) -> str:
        """The bodies from ``first`` to before ``end``."""
        pieces: list[str] = []
        while first < end:
            size = 1
            while first % (2 * size) == 0 and first + 2 * size <= end:
                size *= 2
            pieces.append(self._joined(first, size))
            first += size
        return " ".join(pieces)

    def _joined(self, first: int, size: int) -> str:
        if (first, size) not in self._known:
            body = self._bodies[first]
            if size > 1:
                half = size // 2
                body = f"{self._joined(first, half)} {self._joined(first + half, half)}"
            self._known[first, size] = self._book.rule(body)
        return self._known[first, size]


def _enclosed(opener: str, ways: Sequence[str], closer: str, *, may_be_empty: bool) -> str:
    inner = [*ways, '""'] if may_be_empty else ways
    return f'"{opener}" ({" | ".join(inner)}) "{closer}"'


def key(name: str) -> str:
    """A property's name, as a literal."""
    return json.dumps(json.dumps(name, ensure_ascii=False))


def pair(name: str, value: str) -> str:
    """A rule for a name and its value in an object."""
    return f"{name} {_COLON} {value}"


def several(body: str, least: int, most: int | None) -> str:
    """The same again and again, with commas between; at least one.

    Args:
        most: None where there is no bound.
    """
    return f"{body} {_repeated(body, max(least - 1, 0), None if most is None else most - 1)}"


def _repeated(body: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    return f"({_COMMA} {body}){{{least},{'' if most is None else most}}}"
