"""A balance says in a line when it waits, and when it carries, and each only once."""

import threading
from pathlib import Path

import pytest

from cluster.balance import BalanceOptions, _rounds
from cluster.haproxy import HaproxyError

OPTIONS = BalanceOptions(
    journal="postgresql:///none", cluster="c", bind="127.0.0.1:1", certificate=None, haproxy=None,
    targets=None, folder=Path("/nonexistent"), log_level="info", log_format="text",
)  # fmt: skip
WAITS, CARRIES = (True, False), (False, True)


class FakeBalancer:
    """Each round it is as the next of these says; then it is told to stop."""

    def __init__(self, stopping: threading.Event, *states: tuple[bool, bool] | Exception) -> None:
        self.states, self.stopping = list(states), stopping
        self.waits = self.carries = False

    def round(self) -> None:
        state = self.states.pop(0)
        if not self.states:
            self.stopping.set()
        if isinstance(state, Exception):
            raise state
        self.waits, self.carries = state


def lines(*states: tuple[bool, bool] | Exception) -> list[str]:
    stopping, look, said = threading.Event(), threading.Event(), list[str]()
    look.set()
    _rounds(OPTIONS, FakeBalancer(stopping, *states), said.append, stopping, look)  # type: ignore[arg-type]
    return said


def test_each_state_is_said_once_as_it_begins() -> None:
    waiting = "keepwarm cluster c: another balance is at work, waiting"
    ready = "keepwarm cluster c ready at http://127.0.0.1:1/v1"
    assert lines(WAITS, WAITS, CARRIES, CARRIES) == [waiting, ready]


def test_a_haproxy_that_cannot_be_run_is_the_end_only_where_none_ran() -> None:
    with pytest.raises(HaproxyError):
        lines(HaproxyError("no"), CARRIES)
    assert len(lines(CARRIES, HaproxyError("no"), CARRIES)) == 1
