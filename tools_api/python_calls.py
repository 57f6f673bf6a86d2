"""Calls as Python writes them, ``f(city="Oslo", days=3)``: LFM2, OLMo 3.

Arguments are keyword arguments; values are JSON, and Python's literals are read as well. A call is
told when its arguments are whole.

Knows the syntax; description, writer and reader stand together. The rules are in
``tools_api.python_call_rules``.

Always true: see ``tools_api.call_reader``.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tools_api import exact_json
from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import CALL_BRACE, CallSyntax, SegmentWriter, to_json
from tools_api.items import FunctionCall

_CLOSER = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls(CallSyntax):
    """``opener before f(k=v) between g() after closer``: one pair holds all calls of a turn."""

    before: str = ""
    after: str = ""

    @property
    def start(self) -> str:
        return self.before[:1] or CALL_BRACE


def write_python_calls(
    out: SegmentWriter, syntax: PythonCalls, calls: Sequence[FunctionCall]
) -> None:
    """Add the calls of one turn. Arguments that are no object are written as they are."""
    out.special(syntax.opener)
    texts = [f"{call.full_name}({_keywords(call.arguments)})" for call in calls]
    out.text(syntax.before + syntax.between.join(texts) + syntax.after)
    out.special(syntax.closer)


def _keywords(arguments: str) -> str:
    try:
        value = exact_json.loads(arguments or "{}")
    except ValueError:
        return arguments
    if not isinstance(value, dict):
        return arguments
    return ", ".join(f"{key}={to_json(each)}" for key, each in value.items())


def literal_json(text: str) -> str | None:
    """The JSON of a literal; None if it is none."""
    text = text.strip(SPACE)
    try:
        exact_json.loads(text)
    except ValueError:
        pass
    else:
        return text
    try:
        return to_json(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


class PythonCallReader(CallReader):
    """Reads the calls behind one opener."""

    def __init__(self, syntax: PythonCalls, plain: frozenset[str]) -> None:
        super().__init__()
        self._syntax = syntax
        self._plain = plain
        self._at: Literal["before", "name", "key", "value", "plain", "next"] = (
            "before" if syntax.before else "name"
        )
        self._seen = syntax.opener or ""
        self._num_arguments = 0
        self._open: list[str] = []
        """Brackets of the value that are not closed."""
        self._quote = ""
        self._read = 0
        """Characters of what is held that were looked at."""

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        return self._seen + self._held if self._at in ("before", "name") else ""

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        if name != self._syntax.closer:
            return False
        if self._at == "name" and self._held.strip(SPACE) in self._plain:
            self._start(self._held.strip(SPACE))
            self._at = "plain"
        if self._at == "plain":
            self._done()
        elif self._at != "next" or self._held.strip(SPACE):
            return False
        self.over = True
        return True

    def end_of_turn(self) -> None:
        """See ``CallReader``."""
        if self._syntax.closer is None:
            self.special("")

    def _step(self) -> bool:
        match self._at:
            case "plain":
                self._add(self._held)
                self._held = ""
                return False
            case "name":
                return self._read_name()
            case "value":
                return self._read_value()
        body = self._held.lstrip(SPACE)
        if not body:
            return False
        if self._at == "before":
            return self._read_opening(body)
        return self._read_key(body) if self._at == "key" else self._read_next(body)

    def _read_opening(self, body: str) -> bool:
        before = self._syntax.before
        if not body.startswith(before):
            if len(body) < len(before) and before.startswith(body):
                return False
            if self._syntax.opener is None:
                return self._give_up()
            self._at = "name"
            return True
        self._seen += before
        self._held, self._at = body[len(before) :], "name"
        return True

    def _read_name(self) -> bool:
        stripped = self._held.lstrip(SPACE)
        line, found, rest = stripped.partition("\n")
        if found and line.strip(SPACE) in self._plain:
            self._start(line.strip(SPACE))
            self._at, self._held = "plain", rest
            return True
        name, found, rest = stripped.partition("(")
        if not found:
            return False
        if not name.strip(SPACE):
            return self._give_up()
        self._start(name.strip(SPACE))
        self._seen, self._held, self._num_arguments = "", rest, 0
        self._at = "key"
        return True

    def _read_key(self, body: str) -> bool:
        if body[0] == ")":
            self._add("}" if self._num_arguments else "{}")
            self._done()
            self._held, self._at = body[1:], "next"
            return True
        if body[0] == "," and self._num_arguments:
            self._held = body[1:]
            return True
        key, found, rest = body.partition("=")
        if not found:
            return False
        self._add(f"{', ' if self._num_arguments else '{'}{to_json(key.strip(SPACE))}: ")
        self._num_arguments += 1
        self._held, self._at, self._read = rest, "value", 0
        return True

    def _read_value(self) -> bool:
        while self._read < len(self._held):
            char = self._held[self._read]
            if self._quote:
                if char == "\\":
                    if self._read + 1 == len(self._held):
                        return False
                    self._read += 1
                elif char == self._quote:
                    self._quote = ""
            elif char in "\"'":
                self._quote = char
            elif char in _CLOSER:
                self._open.append(_CLOSER[char])
            elif not self._open and char in ",)":
                self._end_value()
                return True
            elif char in ")]}" and (not self._open or self._open.pop() != char):
                return self._give_up()
            self._read += 1
        return False

    def _end_value(self) -> None:
        text, self._held = self._held[: self._read], self._held[self._read :]
        known = literal_json(text)
        self._add(to_json(text) if known is None else known)
        self._at = "key"

    def _read_next(self, body: str) -> bool:
        between = self._syntax.between.strip(SPACE)
        if self._syntax.after and body.startswith(self._syntax.after):
            self._held = body[len(self._syntax.after) :]
            self.over = self._syntax.closer is None or bool(self._held.strip(SPACE))
            return False
        if between and not body.startswith(between):
            return self._give_up()
        self._held, self._at = body[len(between) :], "name"
        self._seen = between
        return True

    def _give_up(self) -> bool:
        if self.inside:
            self._done(complete=False)
        else:
            self._held = self.unannounced or self._held
        self.over, self._at = True, "next"
        return False
