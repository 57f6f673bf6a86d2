"""The HTTP APIs over a hub that runs, asked by path: what a front door would let through."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from sessions.durable.tenant import Tenant
from sessions.http.front_door import FrontDoor, OriginPolicy
from sessions.journal.sqlite import SqliteJournal
from sessions.tenants import Principal, Tenants
from sessions.turns.connection import Connection
from sessions.wire.errands import LongWork
from sessions.wire.http_api import HttpApi
from sessions.wire.hub import Hub
from sessions.wire.journal_desk import JournalDesk
from tests.support.dashboards import make_dashboard
from tests.support.exchange import KeptExchange, make_call
from tests.support.fake_engine import INFO
from tests.support.hub_bench import HubBench
from tests.support.journals import over
from tests.support.openapi import Contract
from tests.support.reading import inline_reading
from tests.support.speaking_engine import SpeakingEngine


class HttpBench(HubBench):
    """``HubBench`` with the APIs before it, and a journal if it has a ``path``. Made in an event
    loop; with a journal it is to be closed."""

    def __init__(
        self,
        engine: SpeakingEngine | None = None,
        *,
        path: Path | None = None,
        first_id: int = 1,
        **options: Any,
    ) -> None:
        """``first_id``: where ids go on, after a restart on the same journal."""
        super().__init__(engine, **options)
        self.desk: JournalDesk | None = None
        self.journal: SqliteJournal | None = None
        if path is not None:
            self.task.cancel()
            self._with_journal(path, first_id)
        api = HttpApi(hub=self.hub, service=self.service)
        origins = OriginPolicy(allowed_origins=frozenset(), check_host=False)
        self.door = FrontDoor(routes=api.routes(), tenants=Tenants([]), origins=origins)
        self.contract = Contract.of(api.routes())

    def _with_journal(self, path: Path, first_id: int) -> None:
        self.journal = journal = SqliteJournal(path, fingerprint=b"f")
        journal.settle_left()
        numbers = iter(range(first_id, 10**9))
        service = replace(self.service, new_id=lambda prefix: f"{prefix}_{next(numbers)}")
        self.service, self.desk = over(journal, service)
        self.hub = Hub(
            engine=self.engine,
            store=self.service.store,
            connect=self.connect,
            long_work=LongWork(
                check_grammar=self.check_grammar,
                reading=inline_reading(self.service.read_context),
                journal=self.desk,
            ),
            metrics=self.metrics,
            dashboard=make_dashboard(self.clock),
            clock=self.clock,
        )
        self.hub.engine_ready(INFO)
        self.task = asyncio.get_running_loop().create_task(self.hub.run())

    def connect(self, connection_id: str, tenant: Tenant) -> Connection:
        return Connection(connection_id=connection_id, tenant=tenant, service=self.service)

    def begin(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        tenant: str = "acme",
        principal: Principal | None = None,
        **headers: str,
    ) -> KeptExchange:
        """A request that has been let in, and is answered when it is. ``principal``: who asks, if
        it is not a key of the tenant's that may do all."""
        route, argument = self.door.find(target.partition("?")[0])
        assert route is not None, target
        exchange = KeptExchange()
        data = b"" if body is None else json.dumps(body).encode()
        call = make_call(
            argument,
            target=target,
            method=method,
            body=data,
            tenant=tenant,
            exchange=exchange,
            **headers,
        )
        if principal is not None:
            call = replace(call, principal=principal)
        return exchange.play(route.calls["GET" if method == "HEAD" else method](call))

    async def ask(
        self, method: str, target: str, body: Any = None, *, tenant: str = "acme", **headers: str
    ) -> tuple[int, Any]:
        """Status and body of the answer, which both are as ``/openapi.json`` says."""
        exchange = self.begin(method, target, body, tenant=tenant, **headers)
        await self.until(lambda: exchange.over)
        if (answer := exchange.answered) is not None:
            sent = b"" if body is None else json.dumps(body).encode()
            kind = {"content-type": answer.content_type}
            self.contract.check(method, target, sent, int(answer.status), kind, answer.body)
        return exchange.status, exchange.body

    async def until(self, holds: Any) -> None:
        """Let things happen until that holds; a journal's threads are waited for."""
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0)

    async def close(self) -> None:
        """A server that dies: what was written stays."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self.desk is not None:
            await self.desk.close()


def streamed(exchange: KeptExchange) -> list[dict[str, Any]]:
    """The events of a stream so far, heartbeats left out."""
    lines = b"".join(exchange.writes).decode().split("\n")
    return [orjson.loads(line[6:]) for line in lines if line.startswith("data: ")]
