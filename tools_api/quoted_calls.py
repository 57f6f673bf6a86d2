"""Calls with strings between special tokens, ``call:f{city:<|"|>Oslo<|"|>,days:3}``: Gemma 4.

Values are written as JSON has them but for strings, which stand as they are between two quote
tokens, and for keys, which stand bare. No text closes a string, so none is escaped. Clients get
JSON, as it streams; a number keeps its letters.

Knows the syntax; description, writer and reader stand together. The rules are in
``tools_api.quoted_call_rules``.

Always true: see ``tools_api.call_reader``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools_api import exact_json
from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import CallSyntax, SegmentWriter, to_json
from tools_api.items import FunctionCall

_CLOSERS = {"{": "}", "[": "]"}
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NULL_OF_PYTHON = "None"
"""The first published templates write it for ``null``."""
_END_OF_KEY = re.compile(r"[:,{}\[\]\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedCalls(CallSyntax):
    """``opener before_name f {key:value,...} closer``, repeated."""

    quote: str
    """The special token on either side of a string."""
    ends_with: str | None = None
    """The special token with which the model ends a turn that calls; None: as any other."""
    before_name: str = ""

    @property
    def specials(self) -> frozenset[str]:
        names = (self.opener, self.closer, self.quote)
        return frozenset(name for name in names if name is not None)


def write_quoted_calls(
    out: SegmentWriter, syntax: QuotedCalls, calls: Sequence[FunctionCall]
) -> None:
    """Add the calls of one turn. Arguments that are no object are written as they are."""
    for call in calls:
        out.special(syntax.opener)
        out.text(syntax.before_name + call.full_name)
        value = _object_of(call.arguments)
        if value is None:
            out.text("{" + call.arguments + "}")
        else:
            write_quoted(out, value, syntax.quote)
        out.special(syntax.closer)


def _object_of(arguments: str) -> dict[str, Any] | None:
    try:
        value = exact_json.loads(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_quoted(out: SegmentWriter, value: Any, quote: str, *, quoted_keys: bool = False) -> None:
    """Add a value of JSON, its keys in alphabetical order."""
    match value:
        case str():
            out.special(quote)
            out.text(value)
            out.special(quote)
        case dict():
            for i, (key, inner) in enumerate(in_order(value)):
                out.text("," if i else "{")
                if quoted_keys:
                    write_quoted(out, key, quote)
                else:
                    out.text(key)
                out.text(":")
                write_quoted(out, inner, quote, quoted_keys=quoted_keys)
            out.text("}" if value else "{}")
        case list():
            for i, inner in enumerate(value):
                out.text("," if i else "[")
                write_quoted(out, inner, quote, quoted_keys=quoted_keys)
            out.text("]" if value else "[]")
        case _:
            out.text(to_json(value))


def in_order(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """The members in the order of the templates (``dictsort``): case does not count."""
    return sorted(value.items(), key=lambda member: member[0].lower())


class QuotedCallReader(CallReader):
    """Reads the call behind one opener."""

    def __init__(self, syntax: QuotedCalls, plain: frozenset[str]) -> None:
        """
        Args:
            plain: names of the tools whose input is plain text.
        """
        super().__init__()
        self._syntax = syntax
        self._plain = plain
        self._at: Literal[
            "head", "plain", "key", "quoted key", "colon", "value", "string", "word", "next", "tail"
        ] = "head"
        self._closers: list[str] = []
        """The closers of the objects and lists that are open."""
        self._empty = True
        """The innermost of these has nothing in it yet."""
        self._read = 0
        """Characters of a word that were looked at."""
        self._in_quotes = False

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        return (self._syntax.opener or "") + self._held if self._at == "head" else ""

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        quote, closer = self._syntax.quote, self._syntax.closer
        match self._at, name:
            case "string", _ if name == quote:
                self._add('"')
                self._at = "next"
            case "quoted key", _ if name == quote:
                self._add(f"{to_json(self._held)}: ")
                self._at = "colon"
            case "value", _ if name == quote and not self._held.strip(SPACE):
                self._begin('"')
                self._at = "string"
            case "key", _ if name == quote and not self._held.strip(SPACE):
                self._begin("")
                self._at = "quoted key"
            case "plain", _ if name == closer:
                self._done()
                self.over = True
            case "tail", _ if name == closer:
                self.over = True
            case _:
                return False
        self._held = ""
        return True

    def end_of_turn(self) -> None:
        """See ``CallReader``: every call has a token that closes it."""

    def _step(self) -> bool:
        match self._at:
            case "head":
                return self._read_head()
            case "plain":
                self._add(self._held)
                self._held = ""
                return False
            case "string":
                self._add(to_json(self._held)[1:-1])
                self._held = ""
                return False
            case "quoted key":
                return False
            case "word":
                return self._read_word()
        body = self._held.lstrip(SPACE)
        self._held = body
        if not body:
            return False
        match self._at:
            case "key":
                return self._read_key(body)
            case "value":
                return self._read_value(body)
            case "next":
                return self._read_next(body)
        if self._at == "colon" and body[0] == ":":
            self._held, self._at = body[1:], "value"
            return True
        return self._give_up()

    def _read_head(self) -> bool:
        before = self._syntax.before_name
        head = self._held.lstrip(SPACE)
        if not head.startswith(before):
            return False if before.startswith(head) else self._give_up()
        head = head.removeprefix(before)
        line, found, rest = head.partition("\n")
        if found and line.strip(SPACE) in self._plain:
            self._start(line.strip(SPACE))
            self._held, self._at = rest, "plain"
            return True
        name, found, rest = head.partition("{")
        if not found:
            return False
        if not name.strip(SPACE):
            return self._give_up()
        self._start(name.strip(SPACE))
        self._add("{")
        self._closers.append("}")
        self._held, self._at, self._empty = rest, "key", True
        return True

    def _read_key(self, body: str) -> bool:
        if body[0] == "}" and self._empty:
            return self._close(body)
        end = _END_OF_KEY.search(body)
        if end is None:
            return False
        key = body[: end.start()].strip(SPACE)
        if end[0] != ":" or not key:
            return self._give_up()
        self._begin(f"{_unquoted(key)}: ")
        self._held, self._at = body[end.end() :], "value"
        return True

    def _read_value(self, body: str) -> bool:
        if body[0] in _CLOSERS:
            self._begin(body[0])
            self._closers.append(_CLOSERS[body[0]])
            self._held, self._empty = body[1:], True
            self._at = "key" if body[0] == "{" else "value"
            return True
        if body[0] == "]" and self._closers[-1] == "]" and self._empty:
            return self._close(body)
        if body[0] in ",]}":
            return self._give_up()
        self._at, self._read, self._in_quotes = "word", 0, False
        return True

    def _read_word(self) -> bool:
        """A number or another word, up to what ends it. Where it begins as JSON's strings do, to
        its end."""
        while self._read < len(self._held):
            char = self._held[self._read]
            if self._in_quotes:
                if char == "\\":
                    if self._read + 1 == len(self._held):
                        return False
                    self._read += 1
                elif char == '"':
                    self._in_quotes = False
            elif char == '"' and self._read == 0:
                self._in_quotes = True
            elif char in ",}]":
                word = self._held[: self._read].strip(SPACE)
                self._begin(_json_of(word))
                self._held, self._at = self._held[self._read :], "next"
                return True
            self._read += 1
        return False

    def _read_next(self, body: str) -> bool:
        if body[0] == ",":
            self._at = "key" if self._closers[-1] == "}" else "value"
            self._held = body[1:]
            return True
        return self._close(body) if body[0] == self._closers[-1] else self._give_up()

    def _begin(self, text: str) -> None:
        """Something new of the innermost object or list, or a value behind a key."""
        is_member = self._at == "key" or self._closers[-1] == "]"
        self._add((", " if is_member and not self._empty else "") + text)
        self._empty = False

    def _close(self, body: str) -> bool:
        self._add(self._closers.pop())
        self._held, self._at, self._empty = body[1:], "next", False
        if not self._closers:
            self._done()
            self._at = "tail"
        return True

    def _give_up(self) -> bool:
        if self.inside:
            self._done(complete=False)
        elif self._at == "head":
            self._held = self.unannounced
        self.over, self._at = True, "tail"
        return False


def _unquoted(key: str) -> str:
    """The JSON of a key; one that is written as JSON's are stays one."""
    return key if _is_json_string(key) else to_json(key)


def _json_of(word: str) -> str:
    if _WORD.fullmatch(word) or _is_json_string(word):
        return word
    return "null" if word == _NULL_OF_PYTHON else to_json(word)


def _is_json_string(text: str) -> bool:
    if not text.startswith('"'):
        return False
    try:
        return isinstance(exact_json.loads(text), str)
    except ValueError:
        return False
