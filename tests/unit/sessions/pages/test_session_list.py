"""Sessions are searched, filtered, sorted and cut into pages; nonsense is refused by name."""

import random
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
    Found,
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
    running.start_turn("resp", None, 1.0)
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


def test_a_parent_that_was_dropped_and_came_back_is_the_same_one() -> None:
    gone, back, child = session("root"), session("root"), session("child")
    child.parent = gone
    assert grouped([child, back]) == [back, child]


def above(each: Session, page: list[Session]) -> set[str]:
    """Names of all that it is a part of, as those of the page know their own."""
    here = {(one.tenant, one.name): one for one in page}
    found: set[str] = set()
    todo = [each]
    while todo:
        for one in todo.pop().parents():
            if one.name not in found:
                found.add(one.name)
                todo.append(here.get((one.tenant, one.name), one))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_each_of_any_page_stands_once_and_right_behind_those_it_is_a_part_of(seed: int) -> None:
    chance = random.Random(seed)
    every = [session(f"s{number}", tenant=chance.choice("ab")) for number in range(60)]
    for number, each in enumerate(every):
        mine = [above for above in every[:number] if above.tenant == each.tenant]
        if mine and chance.random() < 0.8:
            each.parent = chance.choice(mine)
    if seed % 2:  # names may go round where one was dropped and came back
        every[0].parent = session("s59", tenant=every[0].tenant)
        every[0].parent.parent = session("s0", tenant=every[0].tenant)
    page = chance.sample(every, 25)
    found = grouped(page)
    assert {each.name for each in found} == {each.name for each in page}, f"seed {seed}"
    assert len(found) == len(page)
    for number, each in enumerate(() if seed % 2 else found):
        here = above(each, page) & {one.name for one in found[:number]}
        if number and here:
            line = {found[number - 1].name} | above(found[number - 1], page)
            assert here & line, f"seed {seed}: {each.name} stands behind a stranger"


def test_a_budget_of_a_tree_is_one_for_all_of_it() -> None:
    root, child, grandchild, other = (session(name) for name in ("root", "c", "g", "other"))
    child.parent, grandchild.parent = root, child
    root.ledger.tree.budget = Budget(cost=5)
    assert names([other, grandchild, child, root], budget=True) == ["g", "c", "root"]


def test_pages_are_counted_as_far_as_they_can_be_asked_for() -> None:
    def pages(matching: int) -> int:
        return Found(total=10**6, matching=matching, sessions=[]).pages

    assert [pages(n) for n in (0, 1, PAGE_ROWS, PAGE_ROWS + 1)] == [0, 1, 1, 2]
    assert pages(10**6) == MAX_PAGE + 1
