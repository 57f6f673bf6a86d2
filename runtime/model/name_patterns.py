"""Patterns for modules' names out of a model's folder: expressions, matched in bounded time.

A folder is not trusted, and Python's own engine can be made to search for ever. So an expression is
read into plain sequences, its alternatives written out, and these are followed side by side: the
time is that of the sequence times that of the name.

Knows the syntax that is used for names: characters, ``.``, classes, ``*``, ``+`` and ``?`` behind
one of those, and groups of alternatives, which are not repeated.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

_MOST_CHARS = 1000
_MOST_SEQUENCES = 256
_NEUTRAL_GROUP = "?:"
_CLASSES = ("\\d", "\\w", "\\s", "\\D", "\\W", "\\S")


class UnknownSyntax(Exception):
    """The expression has something that is not known here. The message says what."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One character, so many times; or the end."""

    fits: str | None
    """A class that Python's engine looks at alone; None: nothing may follow."""
    repeats: Literal["", "*", "+", "?"] = ""


Steps = tuple[_Step, ...]


def expression(text: str) -> "NamePattern":
    """An expression that fits names from their beginning on, as ``re.match`` does.

    Raises:
        UnknownSyntax: see there.
    """
    if len(text) > _MOST_CHARS:
        raise UnknownSyntax(f"more than {_MOST_CHARS} characters")
    reader = _Reader(text)
    try:
        sequences = reader.alternatives()
    except RecursionError:
        raise UnknownSyntax("groups nested too deep") from None
    if reader.at < len(text):
        raise UnknownSyntax(f"{text[reader.at]!r} at {reader.at}")
    return NamePattern(sequences)


class NamePattern:
    """One regular expression for names of modules."""

    def __init__(self, sequences: Sequence[Steps]) -> None:
        self._sequences = sequences

    def fits(self, name: str) -> bool:
        """Whether a name begins with what the expression describes."""
        return any(_fits(sequence, name) for sequence in self._sequences)


def _fits(sequence: Steps, name: str) -> bool:
    places = set(_onwards(sequence, 0))
    for char in name:
        if len(sequence) in places:
            return True
        following: set[int] = set()
        for place in places:
            step = sequence[place]
            if step.fits is not None and re.fullmatch(step.fits, char, re.DOTALL):
                following.update(_onwards(sequence, place + 1))
                if step.repeats in ("*", "+"):
                    following.update(_onwards(sequence, place, entered=True))
        places = following
    return any(_only_ends(sequence[place:]) for place in places)


def _onwards(sequence: Steps, place: int, *, entered: bool = False) -> Iterator[int]:
    """The places that can be next, those behind steps that may be left out too."""
    yield place
    while place < len(sequence):
        step = sequence[place]
        if step.repeats not in ("*", "?") and not (entered and step.repeats == "+"):
            return
        place, entered = place + 1, False
        yield place


def _only_ends(rest: Steps) -> bool:
    return all(step.fits is None or step.repeats in ("*", "?") for step in rest)


class _Reader:
    """Goes through an expression once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def alternatives(self) -> list[Steps]:
        found = self._sequences()
        while self._next() == "|":
            self.at += 1
            found = [*found, *self._sequences()]
        return _bounded(found)

    def _sequences(self) -> list[Steps]:
        found: list[Steps] = [()]
        while self._next() not in ("", "|", ")"):
            item = self._item()
            found = _bounded([(*before, *after) for before in found for after in item])
        return found

    def _item(self) -> list[Steps]:
        char = self._taken()
        if char == "(":
            return self._group()
        if char == "^":
            if self.at > 1:
                raise UnknownSyntax(f"'^' at {self.at - 1}")
            return [()]
        if char == "$":
            return [(_Step(None),)]
        return [(_Step(self._class(char), self._repeats()),)]

    def _group(self) -> list[Steps]:
        if self._text.startswith(_NEUTRAL_GROUP, self.at):
            self.at += len(_NEUTRAL_GROUP)
        elif self._next() == "?":
            raise UnknownSyntax(f"'(?' at {self.at - 1}")
        found = self.alternatives()
        if self._taken() != ")":
            raise UnknownSyntax("a group without an end")
        repeats = self._repeats()
        if repeats not in ("", "?"):
            raise UnknownSyntax(f"a group that is repeated, at {self.at - 1}")
        return [*found, ()] if repeats else found

    def _class(self, char: str) -> str:
        if char == "\\":
            pair = char + self._taken()
            if pair[1].isalnum() and pair not in _CLASSES:
                raise UnknownSyntax(f"{pair!r} at {self.at - 2}")
            return pair if pair in _CLASSES else re.escape(pair[1])
        if char == "[":
            end = self._text.find("]", self.at + 1)
            inner = self._text[self.at : end]
            if end < 0 or "[" in inner or "\\" in inner:
                raise UnknownSyntax(f"a class of characters at {self.at - 1}")
            self.at = end + 1
            return _checked(f"[{inner}]")
        if char in "*+?{}":
            raise UnknownSyntax(f"{char!r} at {self.at - 1}")
        return "." if char == "." else re.escape(char)

    def _repeats(self) -> Literal["", "*", "+", "?"]:
        found: Literal["", "*", "+", "?"] = ""
        char = self._next()
        if char in ("*", "+", "?"):
            found = char  # type: ignore[assignment]
            self.at += 1
            if self._next() == "?":  # the shortest match: whether there is one is the same
                self.at += 1
        if self._next() in ("*", "+", "{"):
            raise UnknownSyntax(f"{self._next()!r} at {self.at}")
        return found

    def _next(self) -> str:
        return self._text[self.at : self.at + 1]

    def _taken(self) -> str:
        char = self._next()
        if not char:
            raise UnknownSyntax("an end too early")
        self.at += 1
        return char


def _checked(char_class: str) -> str:
    try:
        re.compile(char_class)
    except (re.error, FutureWarning) as error:
        raise UnknownSyntax(f"{char_class!r}") from error
    return char_class


def _bounded(sequences: list[Steps]) -> list[Steps]:
    if len(sequences) > _MOST_SEQUENCES:
        raise UnknownSyntax(f"more than {_MOST_SEQUENCES} alternatives")
    return sequences
