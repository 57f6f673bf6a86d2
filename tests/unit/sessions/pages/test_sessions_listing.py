"""The list and one session: live sessions over the journal's, each tenant its own."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from sessions.journal.errors import JournalUnavailable
from sessions.pages.list_query import PAGE_ROWS
from sessions.pages.sessions_listing import MAX_NEW, SessionsListing
from sessions.tenants import Principal, Role
from tests.support.exchange import make_call
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import Rig
from tools_api.errors import ApiError

OPERATOR = Principal(tenant="ops", role=Role.OPERATOR)


async def at_once(_: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return work()


async def out_of_reach(_: str, _work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    raise JournalUnavailable("away")


def listing_of(rig: Rig, journal: MemoryJournal | None, beside: Any = at_once) -> SessionsListing:
    return SessionsListing(
        store=rig.store,
        journal=journal,
        beside=beside,
        log_of=lambda _tenant, _name: None,
        clock=rig.clock,
        wall_clock=rig.service.wall_clock,
    )


def asked(
    rig: Rig,
    journal: MemoryJournal | None,
    *pairs: tuple[str, str],
    who: Principal = OPERATOR,
    beside: Any = at_once,
    listing: SessionsListing | None = None,
) -> dict[str, Any]:
    listing = listing or listing_of(rig, journal, beside)
    call = replace(make_call(target=f"/sessions.json?{urlencode(pairs)}"), principal=who)
    show = listing.show_one if "session" in dict(pairs) else listing.show_list
    body: dict[str, Any] = orjson.loads(asyncio.run(show(call)).body)
    return body


def kept(count: int, tenant: str = "acme") -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(
        [
            record(
                f"r{n}",
                session=f"s{n}",
                tenant=tenant,
                created_s=float(n),
                accounts=(f"tree/s{n}",),
            )
            for n in range(count)
        ]
    )
    return journal


def test_pages_follow_by_cursor_and_end() -> None:
    journal, rig = kept(PAGE_ROWS * 2 + 1), Rig()
    sizes, names, more = list[int](), list[str](), list[tuple[str, str]]()
    while True:
        body = asked(rig, journal, ("list", "1"), *more)
        sizes.append(len(body["rows"]))
        names += [row["session"] for row in body["rows"]]
        if body["next_cursor"] is None:
            break
        more = [("cursor", body["next_cursor"])]
    assert sizes == [PAGE_ROWS, PAGE_ROWS, 1]
    assert names == [f"s{n}" for n in reversed(range(PAGE_ROWS * 2 + 1))]
    assert body["matching"] == PAGE_ROWS * 2 + 1


def test_what_is_live_is_told_over_the_journals_row() -> None:
    journal, rig = kept(2), Rig()
    session = rig.store.tenant("acme").session("s0")
    session.ledger.turns = 1
    session.start_turn("resp", None, rig.clock())
    rows = {row["session"]: row for row in asked(rig, journal, ("list", "1"))["rows"]}
    assert (rows["s0"]["state"], rows["s0"]["live"], rows["s0"]["turns"]) == ("running", True, 1)
    assert (rows["s1"]["state"], rows["s1"]["live"]) == ("idle", False)
    running = asked(rig, journal, ("list", "1"), ("state", "running"))["rows"]
    assert [row["session"] for row in running] == ["s0"]
    idle = asked(rig, journal, ("list", "1"), ("state", "idle"))["rows"]
    assert [row["session"] for row in idle] == ["s1"]


@pytest.mark.parametrize(("order", "place"), [("recent", 0), ("cost", -1)])
def test_a_session_in_its_first_turn_is_there_once(order: str, place: int) -> None:
    journal, rig = kept(3), Rig()
    rig.store.tenant("acme").session("fresh").labels = (("team", "red"),)
    rows = asked(rig, journal, ("list", "1"), ("sort", order))["rows"]
    assert rows[place]["session"] == "fresh"
    assert len(rows) == 4
    for found, words in (("fresh", ("q", "RED")), ("fresh", ("label", "team:red"))):
        assert [r["session"] for r in asked(rig, journal, ("list", "1"), words)["rows"]] == [found]
    for nothing in (("failed", "1"), ("budget", "1"), ("several", "1"), ("label", "team:x")):
        names = {r["session"] for r in asked(rig, journal, ("list", "1"), nothing)["rows"]}
        assert "fresh" not in names


def test_new_sessions_on_a_page_are_bounded() -> None:
    rig = Rig()
    for number in range(MAX_NEW + 5):
        rig.store.tenant("acme").session(f"new{number}")
    assert len(asked(rig, kept(1), ("list", "1"))["rows"]) == MAX_NEW + 1


def test_a_tenant_sees_its_own() -> None:
    journal, rig = kept(3), Rig()
    rig.store.tenant("acme").session("fresh")
    other = Principal(tenant="other")
    assert asked(rig, journal, ("list", "1"), who=other)["rows"] == []
    with pytest.raises(ApiError):
        asked(rig, journal, ("session", "s1"), who=other)
    assert len(asked(rig, journal, ("list", "1"), who=Principal(tenant="acme"))["rows"]) == 4
    assert asked(rig, journal, ("session", "s1"), ("tenant", "acme"))["session"]["turns"] == 1


def test_one_session_that_is_new_has_a_tree_of_itself() -> None:
    rig = Rig()
    rig.store.tenant("acme").session("fresh")
    body = asked(rig, kept(1), ("session", "fresh"), ("tenant", "acme"))
    assert [row["session"] for row in body["tree"]["rows"]] == ["fresh"]
    assert body["bounds"] == body["parents"] == []


@pytest.mark.parametrize("pairs", [[("session", "none")], [("session", "s0"), ("page", "1")]])
def test_what_is_not_there_or_makes_no_sense_is_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ApiError):
        asked(Rig(), kept(1), *pairs, who=Principal(tenant="acme"))


def test_a_journal_that_is_away_is_told() -> None:
    with pytest.raises(ApiError) as away:
        asked(Rig(), kept(1), ("list", "1"), beside=out_of_reach)
    assert away.value.status == 503


def test_without_a_journal_the_live_sessions_are_listed_in_pages() -> None:
    rig = Rig()
    for number in range(PAGE_ROWS + 3):
        rig.clock.advance(1)
        session = rig.store.tenant("acme").session(f"s{number}")
        session.ledger.cost, session.ledger.turns = number % 10, 1
    listing = listing_of(rig, None)
    for order in ("recent", "cost", "again", "hit"):
        pairs = (("list", "1"), ("sort", order))
        first = asked(rig, None, *pairs, listing=listing)
        cursor = ("cursor", first["next_cursor"])
        second = asked(rig, None, *pairs, cursor, listing=listing)
        names = [row["session"] for row in (*first["rows"], *second["rows"])]
        assert len(set(names)) == len(names) == PAGE_ROWS + 3
        assert second["next_cursor"] is None
        assert first["matching"] == PAGE_ROWS + 3
    dearest = asked(rig, None, ("list", "1"), ("sort", "cost"))["rows"][0]
    assert (dearest["session"], dearest["cost_nano"], dearest["live"]) == ("s19", 9, True)
    assert asked(rig, None, ("list", "1"), ("q", "S52"))["matching"] == 1
    assert asked(rig, None, ("list", "1"), who=Principal(tenant="other"))["rows"] == []


def test_without_a_journal_a_tree_is_that_of_the_live_sessions() -> None:
    rig = Rig()
    lead, child, below = (rig.store.tenant("acme").session(name) for name in ("lead", "a", "aa"))
    child.parent, below.parent = lead, child
    body = asked(rig, None, ("session", "lead"), ("tenant", "acme"))
    assert [(r["depth"], r["session"]) for r in body["tree"]["rows"]] == [
        (0, "lead"),
        (1, "a"),
        (2, "aa"),
    ]
    assert asked(rig, None, ("session", "aa"), ("tenant", "acme"))["parents"] == ["a", "lead"]
    with pytest.raises(ApiError):
        asked(rig, None, ("session", "none"), ("tenant", "acme"))
