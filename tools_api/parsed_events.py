"""Events of a parser of model output: text, reasoning and calls, as they become certain.

Knows no syntax. Always true: every ``ParsedCallStart`` is followed by exactly one ``CallDone``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedText:
    """More of the message that is open, or the beginning of one."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDone:
    """The text before this point is one message, complete."""


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    """More of the think block that is open, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDone:
    """The reasoning before this point is one item, complete."""


@dataclass(frozen=True, slots=True)
class ParsedCallStart:
    """The name's string is closed; arguments follow."""

    name: str
    number: str = ""
    """The call's number as the model writes it, in formats that number calls."""


@dataclass(frozen=True, slots=True)
class CallArgumentsDelta:
    """More of the arguments: JSON text as the model writes it, or plain text; cut anywhere."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """The end of the call that was started last."""

    name: str
    arguments: str
    """The arguments as written: JSON text, ``{}`` for a call without arguments; or plain text."""
    complete: bool = True
    """False: the output ended, or went wrong, inside the arguments."""


CallEvent = ParsedCallStart | CallArgumentsDelta | CallDone
ParsedEvent = ParsedText | TextDone | ParsedReasoning | ReasoningDone | CallEvent
