"""Live sessions by every filter, as the journal has them."""

from typing import Any

import pytest

from sessions.durable.account import Budget
from sessions.durable.session import Session, SessionState
from sessions.journal.listing import ListAsked, ListPlace
from sessions.pages.list_query import SessionsQuery
from sessions.pages.live_listing import bounded, live_places, live_tree
from sessions.pages.turn_log import SessionLog
from tests.support.sessions_rig import Rig


def some() -> dict[str, Session]:
    store = Rig().store
    found = {
        name: store.tenant("acme").session(name) for name in ("plain", "Bounded", "below", "busy")
    }
    found["Bounded"].ledger.tree.budget = Budget(output=5)
    found["below"].parent = found["Bounded"]
    found["plain"].labels = (("team", "red"),)
    found["plain"].turns_begun = 2
    found["busy"].start_turn("r", None, 0.0)
    return found


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, {"plain", "Bounded", "below", "busy"}),
        ({"bounded": True}, {"Bounded", "below"}),
        ({"several": True}, {"plain"}),
        ({"failed": True}, {"busy"}),
        ({"search": "team:r"}, {"plain"}),
        ({"search": "bounded"}, {"Bounded"}),
        ({"labels": (("team", "red"),)}, {"plain"}),
        ({"from_ms": 6}, set()),
        ({"to_ms": 5}, set()),
        ({"from_ms": 5, "to_ms": 6, "search": "p"}, {"plain"}),
    ],
)
def test_every_filter_holds(fields: dict[str, Any], names: set[str]) -> None:
    query = SessionsQuery(asked=ListAsked(**fields), state=None, cursor="")

    def log_of(_tenant: str, name: str) -> SessionLog | None:
        return SessionLog(failed=1, avoidable_tokens=7) if name == "busy" else None

    places = live_places(query, some().values(), lambda _: 5, log_of)
    assert {place.name for place in places} == names


def test_states_and_orders() -> None:
    sessions = some()
    sessions["plain"].ledger.cost = 9

    def places(state: SessionState | None, **fields: Any) -> list[ListPlace]:
        query = SessionsQuery(asked=ListAsked(**fields), state=state, cursor="")
        return live_places(query, sessions.values(), lambda _: 5, lambda *_: None)

    assert [place.name for place in places(SessionState.RUNNING)] == ["busy"]
    assert places(None, order="cost")[0] == ListPlace(9, "acme", "plain")
    assert [place.name for place in places(None)] == ["Bounded", "below", "busy", "plain"]


def test_a_tree_is_cut_where_it_is_long() -> None:
    sessions = some()
    assert bounded(sessions["below"])
    found = live_tree(sessions["Bounded"], sessions.values(), 9)
    assert [(depth, each.name) for depth, each in found] == [(0, "Bounded"), (1, "below")]
    assert len(live_tree(sessions["Bounded"], sessions.values(), 1)) == 1
