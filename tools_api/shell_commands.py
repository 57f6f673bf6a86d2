"""The commands of a shell call, read out of its JSON arguments while a model writes them.

Knows JSON and one name in it. What cannot be read is nobody's command: the arguments are bound by
a grammar, and what they are in the end says the item of the call.

Always true: the pieces do not depend on how the JSON was split; the text of a command's pieces,
joined, is the string that JSON has there.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tools_api.custom_input import StringText

_SIGN = re.compile(r'["{}\[\],]')
_NAME = "commands"


@dataclass(frozen=True, slots=True)
class CommandPiece:
    """A command begins, goes on or ends."""

    what: Literal["added", "delta", "done"]
    index: int
    """Number of the command, from 0."""
    text: str = ""
    """More of it; the whole of it at its end."""


class CommandReader:
    """Reads the arguments of one call."""

    def __init__(self) -> None:
        self._open: list[str] = []
        """The arrays and objects around what comes next, by their opening signs."""
        self._is_key = False
        """The next string of the outermost object is a name."""
        self._name = ""
        """The name whose value is read."""
        self._string: StringText | None = None
        self._parts: list[str] = []
        """Of the string that is open."""
        self._count = 0
        """Commands that have begun."""

    def feed(self, json_text: str) -> list[CommandPiece]:
        """Read on; returns what has become certain, deltas without text left out."""
        out: list[CommandPiece] = []
        while json_text:
            if self._string is not None:
                json_text = self._read_string(self._string, json_text, out)
                continue
            sign = _SIGN.search(json_text)
            if sign is None:
                break
            json_text = json_text[sign.end() :]
            self._take(sign[0], out)
        return out

    def end(self) -> list[CommandPiece]:
        """The call was cut short: what is open ends here."""
        if self._string is None or not self._in_command:
            return []
        self._string = None
        return [CommandPiece("done", self._count - 1, "".join(self._parts))]

    @property
    def _in_command(self) -> bool:
        return self._open == ["{", "["] and self._name == _NAME

    def _take(self, sign: str, out: list[CommandPiece]) -> None:
        if sign == '"':
            self._string, self._parts = StringText(), []
            if self._in_command:
                out.append(CommandPiece("added", self._count))
                self._count += 1
        elif sign in "{[":
            self._open.append(sign)
            self._is_key = self._open == ["{"]
        elif sign in "}]":
            if self._open:
                self._open.pop()
        elif self._open == ["{"]:
            self._is_key = True

    def _read_string(self, string: StringText, json_text: str, out: list[CommandPiece]) -> str:
        """Returns what stands behind the string."""
        text, rest = string.feed(json_text)
        self._parts.append(text)
        if self._in_command and text:
            out.append(CommandPiece("delta", self._count - 1, text))
        if string.closed:
            self._string = None
            whole = "".join(self._parts)
            if self._in_command:
                out.append(CommandPiece("done", self._count - 1, whole))
            elif self._open == ["{"] and self._is_key:
                self._name, self._is_key = whole, False
        return rest
