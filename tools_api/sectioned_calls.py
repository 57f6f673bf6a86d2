"""Calls in one section of a turn, each between two tokens of its own: DeepSeek V3 and Kimi K2.

A call has a head and one JSON object, with a token between them. The head is the function's name;
Kimi writes ``functions.`` before it and a number behind it, and DeepSeek V3 writes the word
``function``, with the name behind the token on a line of its own.

Knows the tokens; description, writer and reader stand together, being short. The rules are in
``tools_api.call_rules``.

Always true: see ``tools_api.call_reader``.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import CallSyntax, SegmentWriter
from tools_api.items import FunctionCall
from tools_api.json_scanner import ValueScanner

_NUMBER = re.compile(r"[:_]([0-9]{1,4})\Z")
_NUMBERS = 10_000
_NUMBERED_HEAD = re.compile(r"(.*):\s*([0-9]{1,9})\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionedCalls(CallSyntax):
    """``opener (call_opener HEAD separator {...} call_closer)+ closer``."""

    call_opener: str
    separator: str
    """The special token between a call's head and what follows."""
    call_closer: str
    before_name: str = ""
    """The text in front of a function's name in the head."""
    numbered: bool = False
    """A colon and a number stand behind the name in the head."""
    word: str | None = None
    """The whole head; the name stands on the first line behind the separator."""
    before_arguments: str = ""
    after_arguments: str = ""

    @property
    def specials(self) -> frozenset[str]:
        names = (self.opener, self.closer, self.call_opener, self.separator, self.call_closer)
        return frozenset(name for name in names if name is not None)


def call_number(call_id: str) -> str:
    """The number that a call is known by in a format that numbers them: the one that its id ends
    with, behind ``:`` or ``_``, as ids of calls end that a model numbered; else one that follows
    from the id."""
    if found := _NUMBER.search(call_id):
        return str(int(found[1]))
    digest = hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest()
    return str(int.from_bytes(digest) % _NUMBERS)


def write_sectioned_calls(
    out: SegmentWriter, syntax: SectionedCalls, calls: Sequence[FunctionCall]
) -> None:
    """Add the calls of one turn."""
    out.special(syntax.opener)
    for i, call in enumerate(calls):
        out.text(syntax.between if i else "")
        out.special(syntax.call_opener)
        number = f":{call_number(call.call_id)}" if syntax.numbered else ""
        named = f"{syntax.before_name}{call.full_name}{number}"
        out.text(named if syntax.word is None else syntax.word)
        out.special(syntax.separator)
        out.text("" if syntax.word is None else named)
        out.text(syntax.before_arguments + (call.arguments or "{}") + syntax.after_arguments)
        out.special(syntax.call_closer)
    out.special(syntax.closer)


class SectionedCallReader(CallReader):
    """Reads the calls of one section."""

    def __init__(self, syntax: SectionedCalls, plain: frozenset[str]) -> None:
        """
        Args:
            plain: names of the tools whose input is plain text.
        """
        super().__init__()
        self._syntax = syntax
        self._plain = plain
        self._at: Literal["next", "head", "name", "gap", "arguments", "plain", "tail"] = "next"
        self._seen = syntax.opener or ""
        """The text taken of a call whose name is not known yet."""
        self._scanner = ValueScanner()

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        return self._seen + self._held if self._at in ("next", "head", "name") else ""

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        syntax = self._syntax
        match self._at, name:
            case "next", syntax.call_opener:
                self._seen += name
                self._at = "head"
            case "next" | "tail", syntax.closer:
                self.over = True
            case "head", syntax.separator if syntax.word in (None, self._held.strip(SPACE)):
                self._headed()
            case "gap", syntax.call_closer if not self._held.strip(SPACE):
                self._add("{}")
                self._end_call()
            case "plain", syntax.call_closer:
                self._end_call()
            case "tail", syntax.call_closer:
                self._at = "next"
            case _:
                return False
        self._held = ""
        return True

    def end_of_turn(self) -> None:
        """See ``CallReader``: every call has a token that closes it."""

    def _headed(self) -> None:
        """The separator ends a head."""
        if self._syntax.word is not None:
            self._seen += self._held + self._syntax.separator
            self._at = "name"
            return
        head, number = self._held.strip(SPACE), ""
        if self._syntax.numbered and (found := _NUMBERED_HEAD.fullmatch(head)):
            head, number = found[1], found[2]
        self._named(head.removeprefix(self._syntax.before_name).strip(SPACE), number)

    def _named(self, name: str, number: str = "") -> None:
        self._start(name, number)
        self._seen = ""
        self._scanner = ValueScanner()
        self._at = "plain" if name in self._plain else "gap"

    def _end_call(self) -> None:
        self._done()
        self._at = "next"

    def _step(self) -> bool:
        match self._at:
            case "name":
                return self._read_name()
            case "gap":
                return self._skip_gap()
            case "arguments":
                return self._read_arguments()
            case "plain":
                self._add(self._held)
                self._held = ""
            case "next" | "tail":
                return self._skip_space()
        return False

    def _read_name(self) -> bool:
        line, end, rest = self._held.partition("\n")
        if end:
            self._named(line.strip(SPACE))
            self._held = rest
        return bool(end)

    def _skip_gap(self) -> bool:
        """White space, and the line that opens a block of code, are the format's."""
        body = self._held.lstrip(SPACE)
        fence = self._syntax.before_arguments.strip(SPACE)
        if fence and (body.startswith(fence) or fence.startswith(body)):
            self._held = body[len(fence) :] if body.startswith(fence) else body
            return bool(body) and len(body) >= len(fence)
        self._held = body
        self._at = "arguments" if body else "gap"
        return bool(body)

    def _read_arguments(self) -> bool:
        read = self._scanner.feed(self._held)
        self._add(self._held[:read])
        self._held = self._held[read:]
        if self._scanner.failed:
            self._done(complete=False)
            self.over = True
        elif self._scanner.done:
            self._done()
            self._at = "tail"
        return self._scanner.done

    def _skip_space(self) -> bool:
        """Between calls nothing but white space stands; behind arguments also what closes them."""
        body = self._held.lstrip(SPACE)
        closing = self._syntax.after_arguments.strip(SPACE)
        if self._at == "tail" and closing and body:
            if body.startswith(closing):
                self._held = body[len(closing) :]
                return True
            if closing.startswith(body):
                return False
        self._held = body
        self.over = bool(body)
        if self.over and self._at == "next":
            self._held, self._seen = self._seen + body, ""
        return False
