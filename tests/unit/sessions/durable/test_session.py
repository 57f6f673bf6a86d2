"""The session's states and the queue of its turns."""

import random

import pytest

from sessions.durable.account import NOTHING, Amount
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.session import Session, SessionState


def new_session() -> Session:
    return Session(name="s", tenant="t", ledger=Ledger(PriceTable()), now=0.0)


def test_a_session_goes_from_idle_over_running_to_waiting_for_tools_and_back() -> None:
    session = new_session()
    states = [session.state]
    session.start_turn("r1", None, 1.0)
    states.append(session.state)
    session.end_turn("r1", 2.0, open_calls=True)
    states.append(session.state)
    session.start_turn("r2", None, 3.0)
    session.end_turn("r2", 4.0, open_calls=False)
    states.append(session.state)
    session.close()
    states.append(session.state)
    assert states == [
        SessionState.IDLE,
        SessionState.RUNNING,
        SessionState.WAITING_FOR_TOOLS,
        SessionState.IDLE,
        SessionState.CLOSED,
    ]


def test_a_closed_session_keeps_equal_amounts_once_and_nothing_of_its_turns() -> None:
    session = new_session()
    session.start_turn("r1", None, 1.0)
    session.request_turn("ticket")
    session.withdraw("ticket")
    session.end_turn("r1", 2.0)
    ledger, spent = session.ledger, Amount(input_uncached=1000, output=400, cost=7)
    for account in (ledger.account, ledger.tree):
        account.held = account.held.plus(spent)
        account.spend(spent, spent)
    ledger.tree.spend(Amount(output=1))
    assert ledger.account.held is not NOTHING
    session.close()
    assert ledger.account.held is ledger.tree.held is NOTHING
    assert (ledger.account.spent, ledger.tree.spent) == (spent, spent._replace(output=401))
    ledger.account.spend(Amount(output=1))
    session.close()
    assert ledger.account.spent is ledger.tree.spent
    assert not hasattr(session, "__dict__")
    idle = new_session()
    assert session.running is idle.running
    assert session.tickets is idle.tickets


def test_a_failed_turn_leaves_the_session_waiting_for_its_tools() -> None:
    session = new_session()
    session.start_turn("r1", None, 1.0)
    session.end_turn("r1", 2.0, open_calls=True)
    session.start_turn("r2", None, 3.0)
    session.end_turn("r2", 4.0)
    assert session.state is SessionState.WAITING_FOR_TOOLS


def test_turns_are_numbered_from_one() -> None:
    session = new_session()
    assert [session.start_turn(f"r{i}", None, 0.0) for i in range(3)] == [1, 2, 3]


def test_a_second_turn_by_name_waits_for_the_first() -> None:
    session = new_session()
    assert session.request_turn("a")
    session.start_turn("r1", "a", 0.0)
    assert not session.request_turn("b")
    assert session.end_turn("r1", 1.0, open_calls=False) == "b"
    session.start_turn("r2", "b", 2.0)
    assert session.state is SessionState.RUNNING


def test_a_turn_by_name_waits_for_turns_by_id_too() -> None:
    session = new_session()
    session.start_turn("r1", None, 0.0)
    session.start_turn("r2", None, 0.0)
    assert not session.request_turn("a")
    assert session.end_turn("r1", 1.0) is None
    assert session.end_turn("r2", 1.0) == "a"


@pytest.mark.parametrize("gives_up", ["a", "b"])
def test_a_ticket_given_up_does_not_block_the_next(gives_up: str) -> None:
    session = new_session()
    session.request_turn("a")
    session.request_turn("b")
    session.request_turn("c")
    granted = session.withdraw(gives_up)
    if gives_up == "a":
        assert granted == "b"
    else:
        assert granted is None
        assert session.withdraw("a") == "c"


@pytest.mark.parametrize("seed", range(20))
def test_tickets_are_served_in_order_one_at_a_time(seed: int) -> None:
    rng, session = random.Random(seed), new_session()
    queue: list[int] = []  # the model: asked and not yet begun, in order
    granted: int | None = None
    running: list[str] = []
    by_name: set[str] = set()
    for number in range(300):
        match rng.choice(["request", "begin", "end", "withdraw", "by id"]):
            case "request":
                if session.request_turn(number):
                    assert not queue
                    assert not running
                    granted = number
                queue.append(number)
            case "begin" if granted is not None:
                assert granted == queue[0]
                session.start_turn(f"r{number}", queue.pop(0), 0.0)
                granted = None
                assert not by_name & set(running)
                running.append(f"r{number}")
                by_name.add(f"r{number}")
            case "end" if running:
                told = session.end_turn(running.pop(rng.randrange(len(running))), 0.0)
                assert told in (None, *queue[:1])
                granted = told if told is not None else granted
            case "withdraw" if queue:
                ticket = queue.pop(rng.randrange(len(queue)))
                told = session.withdraw(ticket)
                granted = told if granted == ticket else granted
            case "by id":
                session.start_turn(f"x{number}", None, 0.0)
                running.append(f"x{number}")
        assert session.in_use == bool(queue or running)
        if queue and not running:
            assert granted == queue[0]
