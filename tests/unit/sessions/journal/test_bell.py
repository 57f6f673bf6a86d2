"""Waking another server: nothing that is told is missed. (With PostgreSQL: ``test_postgres``.)"""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sessions.journal import bell
from sessions.journal.bell import Bell
from sessions.journal.errors import JournalPooled


class Line:
    """A connection on which what is put there is heard, or which breaks."""

    def __init__(self, *payloads: str, breaks: bool = False, given_away: bool = False) -> None:
        self.payloads, self.breaks, self.given_away = payloads, breaks, given_away
        self.autocommit = False

    def execute(self, *_: object) -> None:
        """Say nothing."""

    def notifies(self, *, timeout: float) -> Iterator[Any]:
        for payload in self.payloads:
            yield psycopg.Notify(bell.CHANNEL, payload, 0)
        if self.breaks:
            raise psycopg.OperationalError("cut")

    def begin(self) -> None:
        """Look whose session it is in."""
        if self.given_away:
            raise JournalPooled

    def close(self) -> None:
        """It is of no use any more."""


def test_who_waits_hears_what_was_told_before_and_lost_lines_are_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bell, "RETRY_S", 0.0)
    lines, told = [Line("b", "a", breaks=True), Line(given_away=True)], threading.Semaphore(0)
    lines.append(Line())
    last = threading.Event()

    def connect() -> Any:
        if lines:
            return lines.pop(0)
        last.wait(10)
        raise psycopg.OperationalError("gone")

    mine = Bell(connect, "a")
    mine.wait(0.0)
    mine.start(told.release)
    for _ in range(4):  # all lines' beginnings, and what was told
        assert told.acquire(timeout=10)
    mine.wait(1e6)
    waited: list[float] = []
    monkeypatch.setattr(mine.rung, "wait", waited.append)
    mine.wait(5.0)
    assert waited == [5.0], "what it has heard it does not hear again"
    last.set()
    mine.close()
