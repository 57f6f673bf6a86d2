"""A conversation as lines of a terminal: cut to its width, coloured where that is wanted."""

import io

import pytest

from keepwarm import (
    CallRecord,
    FunctionCall,
    LoopResult,
    TextDelta,
    ToolFailed,
    ToolFinished,
    ToolStarted,
    TurnRestarted,
    Warned,
)
from keepwarm.commands.screen import LEAST_COLUMNS, Screen, printable, wants_colour

CALL = FunctionCall(id="fc_1", call_id="c1", name="get_price", arguments='{"product":"desk"}')


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(output: str, *, failed: bool = False) -> CallRecord:
    return CallRecord(call=CALL, output=output, failed=failed, duration_s=0.1)


def shown(*events: object, columns: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    screen = Screen(out, colour=colour, columns=columns)
    for event in events:
        screen.show(event)  # type: ignore[arg-type]
    return out.getvalue()


def test_text_comes_as_it_is_and_tools_have_lines_of_their_own() -> None:
    assert shown(
        TextDelta(text="I look"),
        ToolStarted(call=CALL),
        ToolFinished(record=record('{"price":180}')),
        TextDelta(text="It is "),
        TextDelta(text="180."),
        LoopResult(),
    ) == ('I look\n-> get_price({"product":"desk"})\n<- {"price":180}\nIt is 180.\n')


def test_failures_and_notes_are_told() -> None:
    text = shown(
        ToolFailed(record=record("boom", failed=True)),
        Warned(text="something else"),
        TurnRestarted(reason="the socket closed"),
    )
    assert text.splitlines() == [
        *("<- boom", "note: something else", "note: begun again (the socket closed)"),
    ]


@pytest.mark.parametrize("columns", [1, LEAST_COLUMNS, 21, 80])
def test_a_tools_line_fits_any_terminal_from_20_columns_on(columns: int) -> None:
    (line,) = shown(ToolFinished(record=record("x" * 500)), columns=columns).splitlines()
    assert len(line) == max(columns, LEAST_COLUMNS)
    assert line.endswith("...")


def test_what_a_tool_says_cannot_drive_the_terminal() -> None:
    text = shown(
        ToolFinished(record=record("a\x1b[2J\r\nb")), TextDelta(text="\x1b]0;x\x07\ttab\nline")
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.splitlines()[0] == "<- a\ufffd[2J\ufffd b"
    assert printable("\ttab\nline") == "\ttab\nline"


def test_colour_is_for_terminals_that_want_it() -> None:
    assert wants_colour(Terminal(), {})
    assert not wants_colour(Terminal(), {"NO_COLOR": "1"})
    assert wants_colour(Terminal(), {"NO_COLOR": ""})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(io.StringIO(), {})
    assert "\x1b[36m" in shown(ToolStarted(call=CALL), colour=True)
    assert "\x1b" not in shown(ToolStarted(call=CALL), colour=False)
