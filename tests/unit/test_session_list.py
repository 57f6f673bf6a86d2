"""Sessions are searched, filtered, sorted and cut into pages; nonsense is refused by name."""

from typing import Any

import pytest
from websockets.datastructures import Headers

from sessions.durable.account import Budget
from sessions.durable.ledger import Ledger, PriceTable, TurnUsage
from sessions.durable.session import Session
from sessions.http.message import HttpRequest
from sessions.pages.session_list import (
    MAX_PAGE,
    MAX_SEARCH_CHARS,
    PAGE_ROWS,
    ListQuery,
    find,
    grouped,
    read_query,
)
from sessions.pages.turn_log import SessionLog
from tools_api.errors import ApiError


def session(name: str, *, tenant: str = "acme", turns: int = 1, **usage: int) -> Session:
    made = Session(name=name, tenant=tenant, ledger=Ledger(PriceTable()), now=0.0)
    made.turns_begun = made.ledger.turns = turns
    made.ledger.usage = TurnUsage(**usage)
    made.ledger.cost = usage.get("output_tokens", 0)
    return made


def names(
    sessions: list[Session], logs: dict[str, SessionLog] | None = None, **query: Any
) -> list[str]:
    found = find(
        ListQuery(**query),
        len(sessions),
        iter(sessions),
        sessions,
        lambda each: (logs or {}).get(each.name),
    )
    return [each.name for each in found.sessions]


def read(query: str) -> ListQuery:
    return read_query(HttpRequest(method="GET", target=f"/x?{query}", headers=Headers()))


def test_the_newest_come_first_in_pages() -> None:
    sessions = [session(f"s{number}") for number in range(PAGE_ROWS + 3)]
    assert names(sessions) == [f"s{number}" for number in range(PAGE_ROWS)]
    assert names(sessions, page=1) == [f"s{PAGE_ROWS + number}" for number in range(3)]
    assert names(sessions, page=2) == []


def test_filters_hold_together() -> None:
    running = session("Alpha-1", turns=3)
    running.begin("resp", None, 1.0)
    budgeted = session("alpha-2", turns=2)
    budgeted.ledger.account.budget = Budget(output=5)
    failed = SessionLog(failed=1)
    sessions = [running, budgeted, session("beta", tenant="other"), session("gamma")]
    assert names(sessions, search="alpha") == ["Alpha-1", "alpha-2"]
    assert names(sessions, tenant="other") == ["beta"]
    assert names(sessions, state="running") == ["Alpha-1"]
    assert names(sessions, several=True) == ["Alpha-1", "alpha-2"]
    assert names(sessions, budget=True, search="alpha") == ["alpha-2"]
    assert names(sessions, {"gamma": failed}, failed=True) == ["gamma"]
    found = find(ListQuery(several=True), 4, iter(sessions), sessions, lambda _: None)
    assert (found.total, found.matching) == (4, 2)


def test_sorting_brings_what_matters_up() -> None:
    cheap = session("cheap", input_tokens=10, cached_tokens=9, output_tokens=1)
    dear = session("dear", input_tokens=5, cached_tokens=5, output_tokens=90, turns=4)
    cold = session("cold", input_tokens=8, output_tokens=2)
    sessions = [cheap, dear, cold, session("fresh")]
    log = SessionLog()
    assert names(sessions, sort="cost")[0] == "dear"
    assert names(sessions, sort="input")[0] == "cheap"
    assert names(sessions, sort="output")[0] == "dear"
    assert names(sessions, sort="turns")[0] == "dear"
    assert names(sessions, sort="hit") == ["cold", "cheap", "dear", "fresh"]
    assert names(sessions, {"cold": log}, sort="missed")[0] == "cheap"


def test_a_query_is_read() -> None:
    asked = read("q=AbC&state=idle&tenant=t&budget=1&several=1&failed=1&sort=cost&page=3")
    assert asked == ListQuery(
        search="abc",
        state="idle",
        tenant="t",
        budget=True,
        several=True,
        failed=True,
        sort="cost",
        page=3,
    )
    assert read("") == ListQuery()
    assert len(read("q=" + "x" * (MAX_SEARCH_CHARS + 5)).search) == MAX_SEARCH_CHARS
    assert read(f"page={MAX_PAGE}").page == MAX_PAGE


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (f"page={MAX_PAGE + 1}", "page"),
        ("page=-1", "page"),
        ("page=%D9%A1", "page"),
        ("sort=name", "sort"),
        ("state=asleep", "state"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(query: str, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(query)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_sub_agents_stand_behind_their_parent_where_that_is_on_the_page() -> None:
    root, child, grandchild, other = (session(name) for name in ("root", "c", "g", "other"))
    child.parent, grandchild.parent = root, child
    shown = [grandchild, other, child, root]
    assert [each.name for each in grouped(shown)] == ["other", "root", "c", "g"]
    assert grouped([grandchild, other]) == [grandchild, other]
