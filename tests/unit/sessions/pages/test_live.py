"""What the live endpoints refuse, how many pages may be open, whose items are shown."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.pages.live import LivePages
from sessions.pages.views import Views, Wish
from sessions.tenants import Principal, Role
from tests.support.dashboards import make_dashboard
from tests.support.exchange import KeptExchange, make_call
from tests.support.sessions_rig import Rig
from tests.unit.sessions.pages.test_dashboard import REPORT
from tools_api.errors import ApiError
from tools_api.limits import Limits

FEW = Limits(max_pages=3, max_pages_per_tenant=2)


class Pages:
    """The endpoints over a server's inside."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.ending = False
        self._connections: list[KeptExchange] = []
        """As a server keeps them: an exchange that nobody names is collected with its task."""
        self.turns: Callable[[str, Callable[[], None]], None] = lambda _, call: call()
        self.dashboard = make_dashboard(self.rig.clock, self.rig.store)
        self.views = views = Views(
            dashboard=self.dashboard, wall_clock=lambda: 0.0, num_connections=lambda: 0
        )
        self.live = LivePages(
            views=views,
            store=self.rig.store,
            limits=FEW,
            clock=self.rig.clock,
            turns=self._in_turn,
            ending=lambda: self.ending,
        )

    def _in_turn(self, tenant: str, call: Callable[[], None]) -> None:
        self.turns(tenant, call)

    def open(self, query: str = "", tenant: str = "acme", **call: Any) -> KeptExchange:
        exchange = KeptExchange()
        self._connections.append(exchange)
        target = "/dashboard/events?" + query
        asked = make_call(target=target, tenant=tenant, exchange=exchange, **call)
        return exchange.play(self.live.events(asked))

    def status(self, query: str = "", **call: Any) -> int:
        """Of what is answered instead of a stream."""
        return self.open(query, **call).status


def run(scenario: Callable[[Pages], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(Pages()))


def test_a_stream_begins_with_the_view() -> None:
    async def scenario(pages: Pages) -> None:
        exchange = pages.open("view=session&name=s1")
        assert exchange.content_type == "text/event-stream"
        assert b'"session":null' in exchange.writes[0]

    run(scenario)


@pytest.mark.parametrize(
    ("query", "status"),
    [("view=all", 400), ("view=curves&level=year", 400), ("page=x", 400), ("view=tenants", 403)],
)
def test_what_makes_no_sense_or_is_not_theirs_is_refused(query: str, status: int) -> None:
    async def scenario(pages: Pages) -> None:
        assert pages.status(query) == status
        assert pages.live.num_streams == 0

    run(scenario)


def test_pages_are_bounded_for_a_tenant_and_in_all_and_closing_makes_room() -> None:
    async def scenario(pages: Pages) -> None:
        first, second = pages.open(), pages.open()
        assert pages.status() == 429
        pages.open(tenant="other")
        assert pages.status(tenant="third") == 429
        first.leave()
        await asyncio.sleep(0)
        assert not first.over
        pages.open(tenant="third")
        assert pages.live.num_streams == 3
        assert not second.over

    run(scenario)


def test_to_ask_for_the_head_opens_nothing() -> None:
    async def scenario(pages: Pages) -> None:
        assert pages.status(method="HEAD") == 200
        assert pages.live.num_streams == 0

    run(scenario)


def test_a_page_whose_stream_was_refused_is_told_why_by_the_head() -> None:
    async def scenario(pages: Pages) -> None:
        for query, status in (("state=asleep", 400), ("view=tenants", 403)):
            assert pages.status(query, method="HEAD") == status
        for _ in range(2):
            pages.open()
        assert pages.status(method="HEAD") == 429

    run(scenario)


def test_streams_end_when_the_server_takes_its_leave() -> None:
    async def scenario(pages: Pages) -> None:
        exchange = pages.open()
        pages.ending = True
        exchange.tick(1.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert exchange.over
        assert pages.live.num_streams == 0

    run(scenario)


def test_a_page_is_made_anew_in_the_turn_of_its_own_tenant() -> None:
    async def scenario(pages: Pages) -> None:
        waiting = list[tuple[str, Callable[[], None]]]()
        pages.turns = lambda tenant, call: waiting.append((tenant, call))
        opened = [pages.open(tenant=tenant) for tenant in ("acme", "acme", "other")]
        pages.ending = True
        for exchange in opened:
            exchange.tick(1.0)
        assert [tenant for tenant, _ in waiting] == ["acme", "acme", "other"]
        for left, (_, call) in zip((3, 2, 1), waiting, strict=True):
            assert pages.live.num_streams == left
            call()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert pages.live.num_streams == 0

    run(scenario)


def test_items_are_shown_to_their_own_tenant_only() -> None:
    pages = Pages()
    response = pages.rig.connect("acme").turn(input="Say <b>hi</b>", instructions="Be brief")
    found = pages.live.items(make_call(response["id"]))
    for text in (b"Say <b>hi</b>", b"Be brief", b'"output"'):
        assert text in found.body
    operator = Principal(tenant="other", role=Role.OPERATOR)
    for call in (
        make_call(response["id"], tenant="other"),
        replace(make_call(response["id"]), principal=operator),
        make_call("resp_unknown"),
    ):
        with pytest.raises(ApiError) as caught:
            pages.live.items(call)
        assert caught.value.status == 404


def test_what_was_not_stored_is_not_shown() -> None:
    pages = Pages()
    response = pages.rig.connect("acme").turn(input="Hi", store=False)
    with pytest.raises(ApiError):
        pages.live.items(make_call(response["id"]))


def test_a_turns_words_stand_in_its_row_for_its_own_tenant_and_follow_what_is_kept() -> None:
    pages = Pages()
    rig = pages.rig
    response = rig.connect("acme").turn(input="Say hi", keepwarm={"session": "s"})
    log = pages.dashboard.log
    log.add(replace(REPORT, tenant="acme", session="s", response_id=response["id"]), 1.0)
    wish = Wish(view="session", tenant="acme", session="s")

    def said(who: Principal) -> Any:
        rig.clock.advance(1.0)
        (row,) = [part for name, part in pages.views.parts(who, wish).items() if name[:2] == "t0"]
        return orjson.loads(row).get("said")

    assert said(Principal(tenant="acme"))["asked"] == "Say hi"
    assert said(Principal(tenant="other", role=Role.OPERATOR)) is None
