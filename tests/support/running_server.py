"""The real server on a loopback port with an engine by hand behind it.

WebSockets speak to connections that obey (``EchoConnection``), unless ``real`` asks for the real
ones; HTTP always speaks to real ones.
"""

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from sessions.durable.tenant import Tenant
from sessions.http.front_door import OriginPolicy
from sessions.journal.journal import Journal
from sessions.pages.metrics import Metrics
from sessions.tenants import ApiKey, TenantPolicy, Tenants
from sessions.turns.connection import Connection
from sessions.wire.errands import LongWork
from sessions.wire.http_api import HttpApi
from sessions.wire.hub import Hub
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.server import Server, routes
from sessions.wire.websocket_peer import SocketTimes
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import INFO, EchoConnection, HandEngine
from tests.support.journals import over
from tests.support.reading import inline_reading
from tests.support.sessions_rig import make_service
from tools_api.grammar import GrammarSpec
from tools_api.limits import DEFAULT_LIMITS, Limits

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


class RunningServer:
    """``async with RunningServer() as server`` serves until the block ends."""

    def __init__(
        self,
        engine: HandEngine | None = None,
        *,
        keys: Iterable[ApiKey] = (),
        policies: Mapping[str, TenantPolicy] | None = None,
        allowed_origins: Iterable[str] = (),
        limits: Limits = DEFAULT_LIMITS,
        times: SocketTimes | None = None,
        real_time: bool = False,
        real: bool = False,
        max_context_tokens: int = 4096,
        journal: Journal | None = None,
    ) -> None:
        """
        Args:
            real_time: the clock runs; otherwise it moves by ``pass_time`` alone.
            real: WebSockets get real connections too.
            journal: keeps the turns; closed with the server.
        """
        self.now = 0.0
        self._real_time = real_time
        self.engine = engine or HandEngine()
        self.metrics = Metrics()
        self.connections: list[EchoConnection] = []
        tenants = Tenants(keys, policies)
        self._real = real
        self.service = make_service(
            self._clock, limits=limits, tenants=tenants, max_context_tokens=max_context_tokens
        )
        self._desk: JournalDesk | None = None
        if journal is not None:  # whose next server's ids are others
            ids = replace(self.service, new_id=lambda prefix: f"{prefix}_{uuid.uuid4().hex}")
            self.service, self._desk = over(journal, ids)
        store = self.service.store
        self.dashboard = make_dashboard(self._clock, store)
        self.hub = Hub(
            engine=self.engine,
            store=store,
            connect=self._connect,  # type: ignore[arg-type]
            long_work=LongWork(
                check_grammar=self._check,
                reading=inline_reading(self.service.read_context),
                ground=self.service.ground,
                journal=self._desk,
            ),
            metrics=self.metrics,
            dashboard=self.dashboard,
            clock=self._clock,
            pause=self._pause,
        )
        self.engine_may_return = asyncio.Event()
        self.engine_may_return.set()
        self.routes = routes(
            hub=self.hub,
            metrics=self.metrics,
            dashboard=self.dashboard,
            api=HttpApi(hub=self.hub, service=self.service),
            service=self.service,
        )
        self.server = Server(
            hub=self.hub,
            metrics=self.metrics,
            routes=self.routes,
            tenants=tenants,
            origins=OriginPolicy(
                allowed_origins=frozenset(allowed_origins), check_host=tenants.open
            ),
            limits=limits,
            clock=self._clock,
            times=times,
        )
        self.port = 0
        self._hub_task: asyncio.Task[None] | None = None

    def _clock(self) -> float:
        return time.monotonic() if self._real_time else self.now

    async def _pause(self, _: float) -> None:
        await self.engine_may_return.wait()

    async def _check(self, _: GrammarSpec, tenant: str) -> None:
        return None

    def _connect(self, connection_id: str, tenant: Tenant) -> EchoConnection | Connection:
        if self._real:
            return Connection(connection_id=connection_id, tenant=tenant, service=self.service)
        self.connections.append(EchoConnection(connection_id, tenant))
        return self.connections[-1]

    async def __aenter__(self) -> Self:
        bound = socket.create_server(("127.0.0.1", 0))
        # Little room in the kernel, so that what a slow reader leaves behind is seen early.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.port = bound.getsockname()[1]
        self.hub.engine_ready(INFO)
        self._hub_task = asyncio.get_running_loop().create_task(self.hub.run())
        await self.server.start(bound)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._hub_task is not None
        await self.server.stop(0.1)
        self._hub_task.cancel()
        await asyncio.gather(self._hub_task, return_exceptions=True)
        if self._desk is not None:
            await self._desk.close()

    def pass_time(self, seconds: float) -> None:
        """Let the server's clock jump and have it look at it."""
        self.now += seconds
        self.server.tick()

    def client(self, path: str = "/v1/responses", **options: Any) -> connect:
        """A stock WebSocket client; use as ``async with``."""
        return connect(f"ws://127.0.0.1:{self.port}{path}", compression=None, **options)

    async def raw(self, data: bytes, *, ends: bool = True) -> bytes:
        """Send bytes over a fresh connection and read until the server ends it. ``ends``: the
        client says that it has nothing more to send."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if ends:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def http(self, path: str, method: str = "GET", **headers: str) -> HttpAnswer:
        """One plain HTTP request; underscores in header names stand for hyphens."""
        given = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"} | headers
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        answer = await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode(), ends=False)
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        pairs = [(name, value) for name, _, value in (field.partition(": ") for field in fields)]
        return HttpAnswer(int(status.split()[1]), dict(pairs), body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the server has got so far."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)


def play(
    scenario: Callable[[RunningServer], Coroutine[Any, Any, None]],
    make: Callable[[], RunningServer] = RunningServer,
    loop: str = "asyncio",
) -> None:
    """Run ``scenario`` against a server of its own, in an event loop of the given kind."""

    async def main() -> None:
        async with make() as server:
            await scenario(server)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


async def texts(client: ClientConnection, count: int) -> list[str]:
    """The next ``count`` frames."""
    return [str(await client.recv()) for _ in range(count)]
