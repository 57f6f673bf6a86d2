"""A record as a line: fields keep their types in JSON, and nobody can write one of their own."""

import json
import logging
import math
import sys
from typing import Any

import pytest

from runtime.log_lines import JsonLines, TextLines, fields_of

HOSTILE = 'x" status=failed\n{"level":"error"} \u2028\ud800 %s %(args)s'


def record(message: str, *args: object, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("sessions.x", logging.INFO, "", 0, message, args, None)
    made.created = 1_800_000_000.25
    if fields:
        made.fields = fields
    return made


def told(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines("server").format(made)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_record_is_an_object_with_when_where_and_what() -> None:
    assert told(record("ready")) == {
        "time": "2027-01-15T08:00:00.250+00:00",
        "level": "info",
        "logger": "sessions.x",
        "process": "server",
        "message": "ready",
    }


def test_arguments_with_a_name_in_the_format_become_fields_of_their_type() -> None:
    found = told(record("engine loads stage=%r s=%.0f memory_mib=%d", "weights", 1.26, 512))
    assert found["message"] == "engine loads"
    assert (found["stage"], found["s"], found["memory_mib"]) == ("weights", 1.26, 512)


@pytest.mark.parametrize(
    ("format", "args", "message", "fields"),
    [
        ("%d log lines", (3,), "3 log lines", {}),
        ("http %s code=%d", ("GET", 200), "http GET code=200", {"code": 200}),
        ("100%% of it n=%d", (3,), "100% of it", {"n": 3}),
        ("plain", (), "plain", {}),
    ],
)
def test_formats_of_every_kind(
    format: str, args: tuple[object, ...], message: str, fields: dict[str, Any]
) -> None:
    made = record(format, *args)
    assert told(made)["message"] == message
    assert fields_of(made) == fields


def test_given_fields_keep_their_types_and_nothing_stands_for_nothing() -> None:
    found = told(record("turn", turn=3, cost=0.5, reason=None, held=True, causes={"new": 2}))
    assert (found["turn"], found["cost"], found["reason"]) == (3, 0.5, None)
    assert (found["held"], found["causes"]) == (True, {"new": 2})


@pytest.mark.parametrize("made", [
    record("turn finished session=%s status=%s", HOSTILE, "completed"),
    record("turn finished", session=HOSTILE, status="completed"),
    record(f"turn of {HOSTILE}".replace("%", "%%") + " status=%s", "completed"),
], ids=["arguments", "fields", "message"])  # fmt: skip
def test_nobody_can_forge_a_field_or_a_line(made: logging.LogRecord) -> None:
    found = told(made)
    assert found["level"] == "info"
    assert found["status"] == "completed"
    assert found.get("session", HOSTILE) == HOSTILE


def test_a_field_cannot_take_the_place_of_what_every_line_has() -> None:
    found = told(record("x", level="fatal", time=0))
    assert (found["level"], found["level_"], found["time_"]) == ("info", "fatal", 0)


def test_what_json_has_no_word_for_is_told_as_text() -> None:
    found = told(record("x", ratio=math.inf, none=math.nan, what=OSError("gone"), many=(1, {2})))
    assert (found["ratio"], found["none"], found["what"]) == ("inf", "nan", "gone")
    assert found["many"] == [1, "{2}"]


def test_an_exception_is_one_field_of_one_line() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert told(made)["exception"].endswith("ValueError: a\nb")


def test_in_text_a_given_field_is_quoted_where_it_could_be_taken_for_more() -> None:
    lines = TextLines("%(levelname)s %(message)s")
    made = record("turn finished", session="a b=c", turn=1, reason=None, name="plain-1")
    assert lines.format(made) == 'INFO turn finished session="a b=c" turn=1 reason=- name=plain-1'
    assert len(lines.format(record("turn", session=HOSTILE)).splitlines()) == 1
    assert lines.format(record("ready n=%d", 1)) == "INFO ready n=1"


def test_in_text_no_message_is_more_than_a_line_and_no_argument_more_than_a_value() -> None:
    lines = TextLines("%(levelname)s %(message)s")
    line = lines.format(record("hosted tools tools=%s status=%s n=%d", HOSTILE, "done", 3))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(" status=done n=3")
    assert line.count(" status=") == 2
    assert '\\" status=failed' in line, "the forged one is inside quotes"
    assert lines.format(record("died %s", "a\nb")) == "INFO died a\\nb"
    assert lines.format(record("died why=%r 100%%", "a b")) == "INFO died why='a b' 100%"
