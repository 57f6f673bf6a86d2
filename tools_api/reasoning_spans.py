"""Which tokens of an output are reasoning, told token by token and without parsing it whole.

Knows think markers and harmony's channels. What reasoning says is ``tools_api.call_parser``'s.

Always true: a span is a value; looking ahead changes nothing. The token that closes reasoning
counts as reasoning, the one that opens it does not.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from tools_api.chat_format import REASONING_CLOSERS, REASONING_OPENERS, ChatFormat
from tools_api.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START, HarmonyCalls, is_reasoning

_MARKERS = REASONING_OPENERS | REASONING_CLOSERS
_LONGEST_HEADER = 1024


class ReasoningSpan(Protocol):
    """Where a piece of reasoning begins and ends in an output."""

    @property
    def reads_text(self) -> bool:
        """The output that follows depends on the text of the next token."""
        ...

    def counts(self, special: str | None) -> bool:
        """Whether the next token is reasoning; ``special``: its name, if it is a special one."""
        ...

    def behind(self, special: str | None, text: str) -> "ReasoningSpan":
        """The place behind it; ``text`` may be empty where it is not read."""
        ...


def reasoning_span(
    chat_format: ChatFormat, *, thinking: bool, reasons_first: bool
) -> ReasoningSpan:
    """The start of an output; arguments as for ``CallParser``."""
    if isinstance(chat_format.calls, HarmonyCalls):
        return _Channels("header", "")
    thinking = thinking and chat_format.thinking
    return _Marked(thinking, reasons_first or (thinking and chat_format.opens_reasoning))


@dataclass(frozen=True, slots=True)
class _Marked:
    """Reasoning between markers."""

    thinking: bool
    inside: bool

    reads_text = False

    def counts(self, special: str | None) -> bool:
        return self.inside and special not in REASONING_OPENERS

    def behind(self, special: str | None, text: str) -> "_Marked":
        if not self.thinking or special not in _MARKERS:
            return self
        return _Marked(True, special in REASONING_OPENERS)


@dataclass(frozen=True, slots=True)
class _Channels:
    """Messages, of which each has a header."""

    at: Literal["header", "reasoning", "other"]
    header: str

    @property
    def reads_text(self) -> bool:
        return self.at == "header"

    def counts(self, special: str | None) -> bool:
        return self.at == "reasoning"

    def behind(self, special: str | None, text: str) -> "_Channels":
        if special in (END, RETURN, CALL, START):
            return _Channels("header", "")
        if self.at != "header":
            return self if special != CHANNEL else _Channels("header", CHANNEL)
        if special == MESSAGE and CHANNEL in self.header:
            return _Channels("reasoning" if is_reasoning(self.header) else "other", "")
        return _Channels("header", (self.header + (special or text))[:_LONGEST_HEADER])
