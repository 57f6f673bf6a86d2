"""What a request continues: its response, its history, its session, in this order."""

import asyncio
from typing import Any

import pytest

from sessions.durable.response_table import StoredResponse
from sessions.turns.continuing import find_lineage, find_parent
from tests.unit.sessions.turns.test_memory import ASKED, KNOWN, Bench
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.requests import CreateRequest, KeepwarmOptions


def request(*, session: str | None = None, **fields: Any) -> CreateRequest:
    return CreateRequest(keepwarm=KeepwarmOptions(session=session), **fields)


def parent(bench: Bench, asked: CreateRequest) -> tuple[StoredResponse | None, int]:
    found, items = asyncio.run(find_parent(asked, bench.memory))
    return found, len(items)


@pytest.mark.parametrize("lasts", [False, True])
def test_a_named_response_goes_before_a_history_and_that_before_a_session(lasts: bool) -> None:
    bench = Bench(lasts=lasts)
    bench.keep("r2", "other")
    first, newer = bench.visible.response("r1"), bench.visible.response("r2")
    items = parse_items([KNOWN, ASKED])
    named = request(previous_response_id="r1", session="other", input=items)
    assert parent(bench, named) == (first, 2)
    assert parent(bench, request(session="known", input=items)) == (newer, 1)
    assert parent(bench, request(session="known", input=items[1:])) == (first, 1)
    assert parent(bench, request(input=items[1:])) == (None, 1)


@pytest.mark.parametrize("session", [None, "known"])
def test_what_is_continued_runs_in_its_own_session_unless_one_is_named(session: str | None) -> None:
    bench = Bench()
    bench.coming = {"r2": "other"}
    asked = request(previous_response_id="r2", session=session)
    assert parent(bench, asked)[0] is bench.visible.response("r2")
    assert bench.one.owns_first == (session is None)
    mine = None if session is None else bench.visible.session(session)
    lineage = asyncio.run(find_lineage(asked, bench.memory, mine, "new"))
    assert lineage.session_name == (session or "other")


def test_a_response_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ApiError, match="gone"):
        parent(Bench(), request(previous_response_id="gone"))


def test_what_continues_nothing_begins_a_session() -> None:
    lineage = asyncio.run(find_lineage(request(), Bench().memory, None, "new"))
    assert (lineage.parent, lineage.session, lineage.session_name) == (None, None, "new")
