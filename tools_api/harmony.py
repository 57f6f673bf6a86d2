"""harmony, as gpt-oss writes it: an output is a run of messages, each with a header that names its
channel and whom it is for.

``<|channel|>analysis`` is reasoning, ``final`` and ``commentary`` are text, and a message to
``functions.NAME`` is a call, closed by ``<|call|>``. A header is text between special tokens.

Knows the tokens and how an output is read. The renderer is ``tools_api.chat_harmony``, the rules
are ``tools_api.harmony_rules``.

Always true: the events' texts, concatenated by kind, and the order of the other events do not
depend on how the output was split into pushes. A header that names no channel, or no message of
which comes, is text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tools_api.chat_format import CallSyntax, Segment
from tools_api.json_scanner import ValueScanner
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
NAMESPACE = "functions."
_HEADER = re.compile(
    rf"\s*(?:assistant)?(?:\s+to=(?P<first>[^\n<]+?))?\s*{re.escape(CHANNEL)}\s*"
    rf"(?P<channel>{ANALYSIS}|{COMMENTARY}|{FINAL})(?:\s+to=(?P<second>[^\n<]+?))?"
    rf"(?:\s*(?:{re.escape(CONSTRAIN)}\s*)?(?:json|code))?\s*"
)
"""Whom a message is for stands in front of its channel or behind it."""
_BEGUN_HEADER = re.compile(
    rf"\s*(?:assistant)?(?:\s+to=[^\s<]*)?\s*{re.escape(CHANNEL)}\s*"
    rf"\w*(?:\s+(?:t|to|to=[^\s<]*))?\s*(?:{re.escape(CONSTRAIN)}\s*)?\w*\s*"
)
"""What a header may be that was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyCalls(CallSyntax):
    """Calls are messages; the whole of an output is written in their way."""

    opener: str | None = CHANNEL
    closer: str | None = CALL
    parallel: bool = False

    @property
    def specials(self) -> frozenset[str]:
        return frozenset({CONSTRAIN})


def is_reasoning(header: str) -> bool:
    """Whether a header, its tokens included, opens reasoning where messages to functions are
    calls."""
    known = _HEADER.fullmatch(header)
    named = known is not None and (known["first"] or known["second"])
    return known is not None and known["channel"] == ANALYSIS and not named


class ChannelParser:
    """Reads one output; not reusable."""

    def __init__(self, *, calls: bool, plain: frozenset[str]) -> None:
        """
        Args:
            calls: messages to functions are calls; otherwise they are text.
            plain: names of the tools whose input is plain text.
        """
        self._calls = calls
        self._plain = plain
        self._at: Literal["header", "reasoning", "text", "call", "over"] = "header"
        self._header = ""
        """The text of a message's header as far as it was read, its special tokens included."""
        self._has_channel = False
        self._has_text = False
        """The message that is open has any."""
        self._name = ""
        self._pieces: list[str] = []
        self._scanner = ValueScanner()
        self._behind = False
        """Something stands behind the arguments' object."""
        self._events: list[ParsedEvent] = []

    def push(self, segments: Iterable[Segment]) -> list[ParsedEvent]:
        """Read on; return what has become certain."""
        for segment in segments:
            if segment.special:
                self._special(segment.text)
            elif self._at == "header":
                self._header += segment.text
            elif self._at != "over":
                self._body(segment.text)
        events, self._events = self._events, []
        return events

    @property
    def inside_call(self) -> bool:
        """A call is open, or a header that may open one."""
        return self._at == "call" or (self._at == "header" and bool(self._header.strip()))

    def opens(self, special: str) -> bool:
        """Whether a special token begins another message."""
        return special in (START, CHANNEL)

    def finish(self) -> list[ParsedEvent]:
        """The output has ended; close what is open. A header that was cut is no text."""
        if self._has_channel and _BEGUN_HEADER.fullmatch(self._header):
            self._header = ""
        self._close(CALL if self._at == "over" else "")
        self._at = "over"
        return self.push(())

    def _special(self, name: str) -> None:
        if name in (END, RETURN, CALL) or name == START:
            self._close(name)
        elif name == CHANNEL and self._at != "header":
            self._close(name)
            self._header, self._has_channel = name, True
        elif self._at == "header":
            if name == MESSAGE and self._has_channel:
                self._open()
                return
            if name == CHANNEL:
                self._has_channel = True
            self._header += name
        else:
            self._body(name)

    def _open(self) -> None:
        """A header is whole: the message begins."""
        known = _HEADER.fullmatch(self._header)
        self._has_channel, self._has_text = False, False
        if known is None:
            self._at, text, self._header = "text", self._header + MESSAGE, ""
            self._body(text)
            return
        self._header = ""
        name = (known["second"] or known["first"] or "").removeprefix(NAMESPACE)
        if name and self._calls:
            self._at, self._name, self._pieces = "call", name, []
            self._scanner, self._behind = ValueScanner(), False
            self._events.append(ParsedCallStart(name))
        else:
            self._at = "reasoning" if known["channel"] == ANALYSIS else "text"

    def _body(self, text: str) -> None:
        if not text:
            return
        self._has_text = True
        if self._at == "reasoning":
            self._events.append(ParsedReasoning(text))
        elif self._at == "text":
            self._events.append(ParsedText(text))
        else:
            self._pieces.append(text)
            self._events.append(CallArgumentsDelta(text))
            if self._name not in self._plain:
                read = 0 if self._scanner.done else self._scanner.feed(text)
                self._behind = self._behind or bool(text[read:].strip())

    def _close(self, by: str) -> None:
        """The message that is open is over, or what was taken for a header was none."""
        if self._at == "header":
            text = self._header.strip()
            if text and text != "assistant":
                self._events += [ParsedText(self._header), TextDone()]
        elif self._at == "call":
            whole = self._name in self._plain or (self._scanner.done and not self._behind)
            complete = whole and by in (CALL, END, RETURN)
            self._events.append(CallDone(self._name, "".join(self._pieces), complete))
        elif self._has_text:
            self._events.append(ReasoningDone() if self._at == "reasoning" else TextDone())
        self._at, self._header, self._has_channel, self._has_text = "header", "", False, False
