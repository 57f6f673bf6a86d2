"""The port: listens, knows every open socket, and takes leave of all of them.

WebSockets at ``/v1/responses`` and a few pages share it; ``routes`` is the whole list. One
ticker looks at every socket once a second, so that no socket needs a timer of its own.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus

from sessions.dashboard import Dashboard
from sessions.front_door import Access, FrontDoor, OriginPolicy, Route
from sessions.http_message import HttpResponse, error_response
from sessions.http_protocol import HttpProtocol
from sessions.hub import Hub
from sessions.metrics import CONTENT_TYPE, Metrics
from sessions.tenants import Principal, Tenants
from sessions.websocket_peer import OpenSocket, SocketTimes, WebSocketPeer
from tools_api.limits import Limits

log = logging.getLogger(__name__)

RESPONSES_PATH = "/v1/responses"
BACKLOG = 1024
TICK_S = 1.0


def routes(*, hub: Hub, metrics: Metrics, dashboard: Dashboard) -> list[Route]:
    """Everything the port answers to."""
    return [
        Route(path=RESPONSES_PATH, access=Access.TENANT, page=None),
        Route(path="/healthz", access=Access.PUBLIC, page=lambda _: _text("ok\n")),
        Route(path="/readyz", access=Access.PUBLIC, page=lambda _: _readiness(hub)),
        Route(
            path="/metrics",
            access=Access.OPERATOR,
            for_browsers=True,
            page=lambda _: HttpResponse(
                status=HTTPStatus.OK, content_type=CONTENT_TYPE, body=metrics.text()
            ),
        ),
        Route(
            path="/dashboard",
            access=Access.TENANT,
            for_browsers=True,
            page=lambda _: dashboard.page(),
        ),
        Route(
            path="/sessions.json",
            access=Access.TENANT,
            for_browsers=True,
            page=lambda who: dashboard.sessions(who, num_connections=hub.num_connections),
        ),
    ]


class Server:
    """One listening socket and what hangs on it."""

    def __init__(
        self,
        *,
        hub: Hub,
        metrics: Metrics,
        dashboard: Dashboard,
        tenants: Tenants,
        origins: OriginPolicy,
        limits: Limits,
        clock: Callable[[], float],
        times: SocketTimes | None = None,
    ) -> None:
        self._hub = hub
        self._metrics = metrics
        self._front_door = FrontDoor(
            routes=routes(hub=hub, metrics=metrics, dashboard=dashboard),
            tenants=tenants,
            origins=origins,
        )
        self._limits = limits
        self._clock = clock
        self._times = times or SocketTimes()
        self._sockets: set[HttpProtocol | WebSocketPeer] = set()
        self._all_gone = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def num_sockets(self) -> int:
        """Open sockets, those included whose request is not yet read or answered."""
        return len(self._sockets)

    async def start(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket, from here on owned by the server."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._greet, sock=bound, backlog=BACKLOG)
        self._ticker = loop.create_task(self._tick_forever())

    async def stop(self, drain_s: float) -> None:
        """Accept nobody, let running turns end within ``drain_s``, close every socket."""
        if self._listener is not None:
            self._listener.close()
        await self._hub.drain(drain_s)
        if self._sockets:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), self._times.close_s)
        for left in list(self._sockets):
            left.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    def _greet(self) -> HttpProtocol:
        newcomer = HttpProtocol(
            front_door=self._front_door,
            upgrade=self._open,
            refusal=self._refusal,
            max_frame_bytes=self._limits.max_frame_bytes,
            times=self._times,
            metrics=self._metrics,
            clock=self._clock,
            on_lost=self._forget,
        )
        self._sockets.add(newcomer)
        return newcomer

    def _refusal(self, on_arrival: bool) -> HttpResponse | None:
        if self._hub.draining:
            return _overloaded("it is shutting down")
        if on_arrival and len(self._sockets) > self._limits.max_open_connections:
            return _overloaded(f"{self._limits.max_open_connections} connections are open")
        return None

    def _open(self, opened: OpenSocket, principal: Principal) -> WebSocketPeer:
        peer = WebSocketPeer(
            socket=opened,
            hub=self._hub,
            tenant=principal.tenant,
            max_unsent_bytes=self._limits.max_unsent_bytes,
            times=self._times,
            metrics=self._metrics,
            clock=self._clock,
            on_lost=self._forget,
        )
        self._sockets.add(peer)
        return peer

    def _forget(self, gone: HttpProtocol | WebSocketPeer) -> None:
        self._sockets.discard(gone)
        if not self._sockets:
            self._all_gone.set()

    def tick(self) -> None:
        """Look at the clock for every socket. The server does it once a second by itself."""
        now = self._clock()
        for each in list(self._sockets):
            each.tick(now)
        self._hub.tick()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(status=status, content_type="text/plain; charset=utf-8", body=text.encode())


def _readiness(hub: Hub) -> HttpResponse:
    if hub.ready:
        return _text("ready\n")
    return _text("not ready: the engine is starting\n", HTTPStatus.SERVICE_UNAVAILABLE)


def _overloaded(reason: str) -> HttpResponse:
    return error_response(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The server takes no new connection: {reason}.",
        code="server_is_overloaded",
        headers=(("Retry-After", "1"),),
    )
