"""A hub that runs, with real connections on it and an engine that says what it is told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from runtime.grammar.refusal import GrammarRefused
from sessions.durable.tenant import Tenant
from sessions.pages.metrics import Metrics
from sessions.turns.connection import Connection
from sessions.wire.errands import LongWork
from sessions.wire.hub import Hub
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import INFO
from tests.support.reading import inline_reading
from tests.support.sessions_rig import make_service
from tests.support.speaking_engine import SpeakingEngine
from tools_api.grammar import GrammarSpec
from tools_api.limits import Limits


class HubBench:
    """Made in an event loop; for ``fake_engine.play``."""

    def __init__(
        self,
        engine: SpeakingEngine | None = None,
        *,
        limits: Limits | None = None,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.clock = FakeClock(1000.0)
        self.engine = engine or SpeakingEngine()
        self.service = make_service(self.clock, limits=limits)
        self.metrics = Metrics()
        self.hub = Hub(
            engine=self.engine,
            store=self.service.store,
            connect=self.connect,
            long_work=LongWork(
                check_grammar=self.check_grammar,
                reading=inline_reading(self.service.read_context),
                in_thread=in_thread,
            ),
            metrics=self.metrics,
            dashboard=make_dashboard(self.clock),
            clock=self.clock,
            pause=pause,
        )
        self.hub.engine_ready(INFO)
        self.task = asyncio.get_running_loop().create_task(self.hub.run())

    def connect(self, connection_id: str, tenant: Tenant) -> Connection:
        return Connection(connection_id=connection_id, tenant=tenant, service=self.service)

    async def check_grammar(self, _: GrammarSpec, tenant: str) -> GrammarRefused | None:
        return None

    async def settle(self) -> None:
        """Let everything happen that needs no more input."""
        for _ in range(50):
            await asyncio.sleep(0)
