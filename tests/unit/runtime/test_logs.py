"""Log lines by way of a queue: in order, never in anybody's way, and what is lost is said."""

import json
import logging
import os
import threading

import pytest

from runtime.log_lines import JsonLines
from runtime.logs import QueuedLines, _write_to, log_to_stderr
from tests.conftest import take_down_logs


class Reader:
    """Takes lines only while it is allowed to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reads = threading.Event()
        self.asked = threading.Event()

    def __call__(self, line: bytes) -> None:
        self.asked.set()
        assert self.reads.wait(30)
        self.lines.append(line.decode())


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, text, (), None)


def test_lines_come_out_as_they_went_in() -> None:
    reader = Reader()
    reader.reads.set()
    handler = QueuedLines(reader)
    for n in range(200):
        handler.handle(record(f"line {n}"))
    handler.close()
    assert reader.lines == [f"line {n}\n" for n in range(200)]


def test_a_reader_that_stalls_holds_nobody_up_and_is_told_what_it_missed() -> None:
    reader = Reader()
    handler = QueuedLines(reader, capacity=3)
    handler.handle(record("first"))
    assert reader.asked.wait(30)  # the thread has it, and waits
    for n in range(10):
        handler.handle(record(f"line {n}"))
    assert handler.num_dropped == 7
    reader.reads.set()
    while handler.num_queued:
        reader.asked.wait(0.001)
    handler.handle(record("later"))
    handler.close()
    assert reader.lines == [
        *("first\n", "line 0\n", "line 1\n", "line 2\n"),
        "7 log lines were lost: nobody read them in time\n",
        "later\n",
    ]
    assert handler.num_dropped == 0


def test_the_end_does_not_wait_for_a_reader_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.logs.CLOSE_TIMEOUT_S", 0.01)
    reader = Reader()
    handler = QueuedLines(reader, capacity=1)
    for n in range(5):
        handler.handle(record(f"line {n}"))
    handler.close()
    assert reader.lines == []
    reader.reads.set()


def test_a_reader_that_is_gone_and_letters_that_are_none_harm_nobody() -> None:
    lines: list[bytes] = []

    def write(line: bytes) -> None:
        lines.append(line)
        raise BrokenPipeError

    handler = QueuedLines(write)
    handler.handle(record("half a pair: \ud800"))
    handler.handle(record("second"))
    handler.close()
    assert lines == [b"half a pair: \\ud800\n", b"second\n"]


def test_what_is_written_goes_to_the_descriptor_itself() -> None:
    reading, writing = os.pipe()
    _write_to(writing)(b"x" * 5000)
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b"x" * 5000


def test_lost_lines_are_told_in_the_form_of_the_others() -> None:
    reader = Reader()
    handler = QueuedLines(reader, capacity=3)
    handler.setFormatter(JsonLines("server"))
    handler.handle(record("first"))
    assert reader.asked.wait(30)
    for _ in range(6):
        handler.handle(record("more"))
    reader.reads.set()
    while handler.num_queued:
        reader.asked.wait(0.001)
    handler.handle(record("later"))
    handler.close()
    told = [json.loads(line) for line in reader.lines]
    assert [line["lost"] for line in told if "lost" in line] == [3]


def test_a_log_that_a_test_has_set_up_is_not_the_next_ones() -> None:
    log_to_stderr("INFO", "text")
    root = logging.getLogger()
    (handler,) = root.handlers
    take_down_logs()
    assert handler not in root.handlers
    assert root.level == logging.WARNING
    assert isinstance(handler, QueuedLines)
