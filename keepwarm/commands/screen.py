"""The looks of a conversation in a terminal: text as it comes, tools in a line each.

Colours are used where a terminal is and ``NO_COLOR`` is not (no-color.org); control characters
of a model or a tool never reach the terminal. Knows no session and no socket.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click

from keepwarm import (
    LoopResult,
    ReasoningDelta,
    Response,
    RunEvent,
    TextDelta,
    ToolFailed,
    ToolFinished,
    ToolStarted,
    TurnRestarted,
    Warned,
)

LEAST_COLUMNS = 20
MOST_COLUMNS = 120


def printable(text: str) -> str:
    """Text whose control characters, but for line ends and tabs, cannot drive a terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def wants_colour(out: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether colours belong on ``out``."""
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    return out.isatty() and not plain


class Screen:
    """Shows the events of a session."""

    def __init__(self, out: TextIO, *, colour: bool, columns: int | None = None) -> None:
        """``columns``: of the terminal; None asks it."""
        self._out = out
        self._colour = colour
        self._columns = columns
        self._column_zero = True

    @classmethod
    def here(cls) -> "Screen":
        """The screen on standard output."""
        return cls(sys.stdout, colour=wants_colour(sys.stdout, os.environ))

    def show(self, event: RunEvent) -> None:
        """One event of a run; most say nothing to people."""
        match event:
            case TextDelta(text=text):
                self._write(printable(text))
            case ReasoningDelta(text=text):
                self._write(self._styled(printable(text), dim=True))
            case ToolStarted(call=call):
                self.line(f"-> {call.name}({call.arguments})", fg="cyan")
            case ToolFinished(record=record):
                self.line(f"<- {record.output}", dim=True)
            case ToolFailed(record=record):
                self.line(f"<- {record.output}", fg="red")
            case Warned(text=text):
                self.line(f"note: {text}", fg="yellow")
            case TurnRestarted(reason=reason):
                self.line(f"note: begun again ({reason})", fg="yellow")
            case Response() | LoopResult():
                self.end_line()
            case _:
                pass

    def line(self, text: str, **style: Any) -> None:
        """A line of its own, cut to the terminal's width."""
        self.end_line()
        shown = " ".join(printable(text).split())
        width = self._width()
        if len(shown) > width:
            shown = shown[: width - 3] + "..."
        self._write(self._styled(shown, **style) + "\n")

    def whole(self, text: str, **style: Any) -> None:
        """Lines that are not cut: what a person has to read or copy."""
        self.end_line()
        self._write(self._styled(printable(text), **style) + "\n")

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        if not self._column_zero:
            self._write("\n")

    def _width(self) -> int:
        columns = self._columns or shutil.get_terminal_size().columns
        return max(LEAST_COLUMNS, min(columns, MOST_COLUMNS))

    def _styled(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self._colour and style else text

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._column_zero = text.endswith("\n")
