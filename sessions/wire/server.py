"""The port: listens, knows every open socket, and takes leave of all of them.

WebSockets, the HTTP APIs and a few pages share it; ``routes`` is the whole list. One ticker
looks at every socket once a second, so that no socket needs a timer of its own. Where sockets
run out, the HTTP connection that has been idle for longest gives way.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from sessions.ground import DESCRIPTORS, Ground
from sessions.http.exchange import Call, at_once
from sessions.http.front_door import Access, FrontDoor, OriginPolicy, Route
from sessions.http.message import HttpResponse
from sessions.http.openapi import OpenApi
from sessions.pages.archive import Archive, Beside
from sessions.pages.assets import Assets
from sessions.pages.cluster_page import ClusterPage
from sessions.pages.dashboard import Dashboard
from sessions.pages.live import LivePages
from sessions.pages.metrics import CONTENT_TYPE, Metrics
from sessions.pages.past import PastCurves
from sessions.pages.sessions_listing import SessionsListing
from sessions.pages.usage_report import UsageReport
from sessions.pages.views import Views
from sessions.tenants import Principal, Tenants
from sessions.turns.service import Service
from sessions.wire.acceptor import Acceptor
from sessions.wire.arriving import TENANT_S, Arriving
from sessions.wire.descriptors import DescriptorWatch, most_sockets
from sessions.wire.fair_reading import TenantTurns
from sessions.wire.http_api import HttpApi
from sessions.wire.http_connection import HttpConnection
from sessions.wire.http_pages import Index
from sessions.wire.hub import Hub
from sessions.wire.seats import Seats
from sessions.wire.websocket_peer import OpenSocket, SocketTimes, WebSocketPeer
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.limits import Limits

log = logging.getLogger(__name__)

TICK_S = 1.0


def routes(
    *, hub: Hub, metrics: Metrics, dashboard: Dashboard, api: HttpApi, service: Service
) -> list[Route]:
    """The routes of everything that the port answers to."""
    live = _live_pages(hub, dashboard, service)
    table = [
        *_pages(hub, metrics, dashboard, service.ground),
        *_dashboard_routes(live, _archive(hub, service)),
        _sessions_route(hub, dashboard, service),
        _usage_route(hub, service),
        _cluster_route(hub, service),
        *api.routes(),
    ]
    openapi = OpenApi()
    told = {"GET": at_once(openapi.show)}
    table.append(Route(path="/openapi.json", access=Access.PUBLIC, calls=told))
    listed = [("/", ("GET", "HEAD")), *((route.path, route.methods) for route in table)]
    calls = {"GET": at_once(Index(sorted(listed)).show)}
    table.insert(0, Route(path="/", access=Access.PUBLIC, calls=calls))
    openapi.describe(table)
    return table


def _pages(hub: Hub, metrics: Metrics, dashboard: Dashboard, ground: Ground) -> list[Route]:
    return [
        Route(path="/health", access=Access.PUBLIC, page=lambda _: _text("ok\n")),
        Route(path="/healthz", access=Access.PUBLIC, page=lambda _: _text("ok\n")),
        Route(path="/readyz", access=Access.PUBLIC, page=lambda _: _readiness(ground)),
        Route(
            path="/metrics",
            access=Access.OPERATOR,
            for_browsers=True,
            page=lambda _: HttpResponse(
                status=HTTPStatus.OK, content_type=CONTENT_TYPE, body=metrics.text()
            ),
        ),
    ]


def _dashboard_routes(live: LivePages, archive: Archive) -> list[Route]:
    assets = Assets()
    answers = {
        "/dashboard": at_once(lambda _: assets.page()),
        "/dashboard/assets/{id}": at_once(assets.show),
        "/dashboard/events": live.events,
        "/dashboard/journal": archive.show,
        "/dashboard/items/{id}": at_once(live.items),
    }
    return [
        Route(path=path, access=Access.TENANT, for_browsers=True, calls={"GET": answer})
        for path, answer in answers.items()
    ]


def _beside(hub: Hub) -> Beside:
    async def beside(tenant: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        assert hub.journal is not None
        return await hub.journal.beside(tenant, work)

    return beside


def _archive(hub: Hub, service: Service) -> Archive:
    return Archive(None if service.commits is None else service.commits.journal, _beside(hub))


def _sessions_route(hub: Hub, dashboard: Dashboard, service: Service) -> Route:
    listing = SessionsListing(
        store=service.store,
        journal=None if service.commits is None else service.commits.journal,
        beside=_beside(hub),
        log_of=dashboard.log.of,
        clock=service.clock,
        wall_clock=service.wall_clock,
    )

    async def show(call: Call) -> HttpResponse:
        if call.request.query("list") is not None:
            return await listing.show_list(call)
        if call.request.query("session") is not None:
            return await listing.show_one(call)
        return dashboard.sessions(call.principal, num_connections=hub.num_connections)

    return Route(
        path="/sessions.json", access=Access.TENANT, for_browsers=True, calls={"GET": show}
    )


def _usage_route(hub: Hub, service: Service) -> Route:
    journal = None if service.commits is None else service.commits.journal
    report = UsageReport(journal, _beside(hub), wall_clock=service.wall_clock)
    return Route(
        path="/v1/usage", access=Access.TENANT, for_browsers=True, calls={"GET": report.show}
    )


def _cluster_route(hub: Hub, service: Service) -> Route:
    ownership = None if service.commits is None else service.commits.journal.ownership
    page = ClusterPage(service.store.quotas.servers.cluster, ownership, _beside(hub))
    return Route(
        path="/cluster.json", access=Access.OPERATOR, for_browsers=True, calls={"GET": page.show}
    )


def _past(hub: Hub, service: Service) -> PastCurves | None:
    if hub.journal is None or service.commits is None:
        return None
    return PastCurves(
        service.commits.journal,
        hub.journal.beside,
        clock=service.clock,
        wall_clock=service.wall_clock,
    )


def _live_pages(hub: Hub, dashboard: Dashboard, service: Service) -> LivePages:
    views = Views(
        dashboard=dashboard,
        wall_clock=service.wall_clock,
        num_connections=lambda: hub.num_connections,
        past=_past(hub, service),
        quotas=service.store.quotas,
    )
    return LivePages(
        views=views,
        store=service.store,
        limits=service.limits,
        clock=service.clock,
        # Of their own: what a tenant's clients send does not wait behind its pages.
        turns=TenantTurns(budget_s=TENANT_S).run,
        ending=lambda: hub.draining,
    )


class Server:
    """A listening socket and everything that hangs on it."""

    def __init__(
        self,
        *,
        hub: Hub,
        metrics: Metrics,
        routes: Iterable[Route],
        tenants: Tenants,
        origins: OriginPolicy,
        limits: Limits,
        clock: Callable[[], float],
        times: SocketTimes | None = None,
    ) -> None:
        self.part_of: Callable[[int | None], int | None] = lambda most: most
        """This server's part of the sockets that a tenant may have at all of a cluster."""
        self._hub = hub
        self._metrics = metrics
        self._front_door = FrontDoor(routes=routes, tenants=tenants, origins=origins)
        self.arriving = Arriving(limits)
        self._clock = clock
        self._times = times or SocketTimes()
        self._sockets: set[HttpConnection | WebSocketPeer] = set()
        if tenants.open:  # one tenant has all places
            limits = replace(limits, max_connections_per_tenant=limits.max_open_connections)
        self._seats: Seats[HttpConnection | WebSocketPeer] = Seats(
            limits,
            self._make_room,
            lambda name: self.part_of(tenants.policy_of(name)().connections),
        )
        self._thinning = False
        """Whether silent connections are about to be cut."""
        self._descriptors = DescriptorWatch()
        hub.ground.stands_on(DESCRIPTORS, lambda: self._descriptors.trouble)
        self._looking: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()
        self._acceptor = Acceptor(
            greet=self._greet,
            taken=self._look_for_room,
            room=lambda: most_sockets() - self.num_sockets,
            head_s=self._times.head_s,
            clock=clock,
        )
        self._ticker: asyncio.Task[None] | None = None

    @property
    def sockets(self) -> "list[HttpConnection | WebSocketPeer]":
        """Clients that have said something."""
        return list(self._sockets)

    @property
    def num_sockets(self) -> int:
        """Open sockets, those included whose request is not yet read or answered."""
        return len(self._sockets) + self._acceptor.num_silent

    async def start(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket, from here on owned by the server."""
        self._acceptor.start(bound)
        loop = asyncio.get_running_loop()
        self._ticker = loop.create_task(self._tick_forever())
        self._looking = loop.create_task(self._hub.ground.keep_looking())

    async def stop(self, drain_s: float) -> None:
        """Accept nobody, let running turns end within ``drain_s``, close every socket."""
        await self._acceptor.stop()
        for each in self._http_connections():
            each.leave()
        await self._hub.drain(drain_s)
        if self._sockets:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), self._times.close_s)
        for left in list(self._sockets):
            left.abort()
        tasks = [task for task in (self._ticker, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def revoke(self, principals: Collection[Principal]) -> int:
        """End what the holders of revoked keys have open; returns how many sockets that were."""
        ended = [each for each in self._sockets if each.principal in principals]
        for each in ended:
            each.revoke()
        return len(ended)

    def _greet(self) -> HttpConnection:
        newcomer = HttpConnection(
            front_door=self._front_door,
            upgrade=self._open,
            closed_because=self._closed_because,
            arriving=self.arriving,
            times=self._times,
            metrics=self._metrics,
            clock=self._clock,
            on_lost=self._forget,
        )
        self._sockets.add(newcomer)
        self._seats.greet(newcomer)
        return newcomer

    def _look_for_room(self) -> None:
        if self._seats.too_many(self._acceptor.num_silent) and not self._thinning:
            self._thinning = True
            asyncio.get_running_loop().call_soon(self._thin_out)

    def _thin_out(self) -> None:
        self._thinning = False
        excess = self._seats.too_many(self._acceptor.num_silent)
        excess -= self._acceptor.thin_out(excess)
        for each in self._seats.thin_out(_silent, excess):
            each.abort()

    def _closed_because(
        self, asking: HttpConnection, principal: Principal | None
    ) -> ApiError | None:
        if self._hub.draining:
            return errors.overloaded("it is shutting down")
        if principal is None:
            return None
        reason = self._seats.seat(asking, asking.address, principal.tenant)
        return None if reason is None else errors.overloaded(reason)

    def _make_room(self) -> bool:
        """End the HTTP connection that has been idle for longest, if there is one."""
        idle = [
            (since, number, each)
            for number, each in enumerate(self._http_connections())
            if (since := each.idle_since) is not None
        ]
        if idle:
            min(idle)[2].leave()
        return bool(idle)

    def _http_connections(self) -> list[HttpConnection]:
        return [each for each in self._sockets if isinstance(each, HttpConnection)]

    def _open(
        self, opener: HttpConnection, opened: OpenSocket, principal: Principal
    ) -> WebSocketPeer:
        peer = WebSocketPeer(
            socket=opened,
            hub=self._hub,
            principal=principal,
            arriving=self.arriving,
            times=self._times,
            metrics=self._metrics,
            clock=self._clock,
            on_lost=self._forget,
        )
        self._sockets.add(peer)
        self._seats.pass_on(opener, peer)
        return peer

    def _forget(self, gone: HttpConnection | WebSocketPeer) -> None:
        self._sockets.discard(gone)
        self._seats.forget(gone)
        if not self._sockets:
            self._all_gone.set()

    def tick(self) -> None:
        """Look at the clock for every socket. The server does it once a second by itself."""
        now = self._clock()
        self._thin_out()
        self._acceptor.tick()
        for each in list(self._sockets):
            each.tick(now)
        self._hub.tick()
        self._descriptors.tick()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()


def _silent(each: HttpConnection | WebSocketPeer) -> bool:
    return isinstance(each, HttpConnection) and each.silent


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(status=status, content_type="text/plain; charset=utf-8", body=text.encode())


def _readiness(ground: Ground) -> HttpResponse:
    """A line for each reason; those that do not count stand there too."""
    ground.look()
    left_out = ground.left_out
    lines = [
        f"{'degraded' if part in left_out else 'not ready'}: {reason} ({part})\n"
        for part, reason in ground.reasons.items()
    ]
    if ground.ready:
        return _text("".join(["ready\n", *lines]))
    return _text("".join(lines), HTTPStatus.SERVICE_UNAVAILABLE)
