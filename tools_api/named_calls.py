"""Calls that name their function and then give its arguments as one JSON object: Mistral from
tokenizer v11 on, ``[TOOL_CALLS]f[ARGS]{...}``.

Knows the two tokens; description, writer and reader stand together, being short. The rules are in
``tools_api.call_rules``.

Always true: see ``tools_api.call_reader``. A call's id is skipped: calls are known by ours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import CallSyntax, SegmentWriter
from tools_api.items import FunctionCall
from tools_api.json_scanner import ValueScanner

_ID = re.compile("[A-Za-z0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls(CallSyntax):
    """``opener NAME before_arguments {...}``; the next opener or the end of the turn closes it."""

    before_arguments: str
    """The special token before a call's arguments."""
    before_id: str | None = None
    """A special token that a name may be followed by, and behind it the call's id."""

    @property
    def specials(self) -> frozenset[str]:
        return frozenset({self.opener or "", self.before_arguments}) - {""}


def write_named_calls(
    out: SegmentWriter, syntax: NamedCalls, calls: Sequence[FunctionCall], ids: Sequence[str] = ()
) -> None:
    """Add the calls of one turn.

    Args:
        ids: one for each call, where the format has them.
    """
    for i, call in enumerate(calls):
        out.special(syntax.opener)
        out.text(call.full_name)
        if ids:
            out.special(syntax.before_id)
            out.text(ids[i])
        out.special(syntax.before_arguments)
        out.text(call.arguments or "{}")


class NamedCallReader(CallReader):
    """Reads one call out of an output."""

    def __init__(self, syntax: NamedCalls, plain: frozenset[str]) -> None:
        super().__init__()
        self._syntax = syntax
        self._plain = plain
        self._at: Literal["name", "id", "arguments", "plain"] = "name"
        self._function = ""
        self._has_odd_id = False
        """The text where an id may stand is none, and would be lost."""
        self._scanner = ValueScanner()

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        if self._at not in ("name", "id"):
            return ""
        return (self._syntax.opener or "") + self._function + self._held

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        if self._at == "name" and name in (self._syntax.before_id, self._syntax.before_arguments):
            self._function, self._held = self._held.strip(SPACE), ""
            self._at = "id"
        if self._at != "id" or name not in (self._syntax.before_id, self._syntax.before_arguments):
            return self._ends_plain()
        if name == self._syntax.before_arguments:
            self._has_odd_id = bool(self._held) and not _ID.fullmatch(self._held.strip(SPACE))
            self._held = ""
            self._start(self._function)
            self._at = "plain" if self._function in self._plain else "arguments"
        return True

    def end_of_turn(self) -> None:
        """See ``CallReader``."""
        self._ends_plain()

    def _ends_plain(self) -> bool:
        """Plain text that any special token ends; the token is not taken."""
        if self._at == "plain" and self.inside:
            self._done()
        return False

    def _step(self) -> bool:
        match self._at:
            case "plain":
                self._add(self._held)
                self._held = ""
                return False
            case "arguments":
                return self._read_arguments()
        return False

    def _read_arguments(self) -> bool:
        read = self._scanner.feed(self._held)
        self._add(self._held[:read])
        self._held = self._held[read:]
        if self._scanner.done or self._scanner.failed:
            self._done(complete=self._scanner.done and not self._has_odd_id)
            self.over = True
        return False
