"""The HTTP APIs: which path is which API, and how its requests become turns.

Each API is a dialect; a turn of any of them is a connection to the hub like a WebSocket's,
with the same sessions, budgets and cache hits. Since every request is a connection of its
own, what a WebSocket keeps to itself (``store: false``) is kept for all of a tenant's
requests here, so that a history that is resent is found.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeVar

from sessions.durable.store import ConnectionStore
from sessions.durable.tenant import Tenant
from sessions.http.exchange import Call, Handler, at_once
from sessions.http.front_door import Access, Route
from sessions.http.message import HttpResponse, json_response
from sessions.journal.journal import Journal
from sessions.turns.connection import Connection
from sessions.turns.reading import Read
from sessions.turns.service import Service
from sessions.wire.http_calls import ResponseCalls
from sessions.wire.http_conversations import HttpConversations
from sessions.wire.http_counts import count_tokens
from sessions.wire.http_dialects import DIALECTS, Body, ReadBody, Served, read_body
from sessions.wire.http_pages import Models
from sessions.wire.http_responses import StoredResponses, asked_again
from sessions.wire.http_turn import EVENT_STREAM, Asked, HttpTurn
from sessions.wire.hub import Connect, Hub
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.read_process import ReaderLost
from tools_api import errors
from tools_api.dialects.responses_http import RESPONSES, ResponsesWriter
from tools_api.errors import ApiError
from tools_api.requests import CreateRequest

Answer = TypeVar("Answer")

SESSION_HEADER = "x-session-id"
REQUEST_HEADER = "idempotency-key"
SPAN_HEADER = "traceparent"


class HttpApi:
    """The handlers of the APIs that make turns, and their routes."""

    def __init__(self, *, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._stored = StoredResponses(hub=hub, store=service.store)
        self._calls = ResponseCalls(
            stored=self._stored,
            store=service.store,
            limits=service.limits,
            wall_clock=service.wall_clock,
            desk=self._desk,
        )
        self._conversations = HttpConversations(hub=hub, service=service, read=self._read_items)
        self._models = Models(service, created=int(service.wall_clock()))

    def routes(self) -> list[Route]:
        """All routes below ``/v1``."""
        routes = [
            self._route("/v1/models", GET=at_once(self._models.show_all)),
            self._route("/v1/models/{name}", GET=at_once(self._models.show)),
            self._route("/v1/responses/{id}", GET=self._show, DELETE=self._stored.delete),
            self._route("/v1/responses/{id}/cancel", POST=self._stored.cancel),
            self._route("/v1/responses/{id}/input_items", GET=self._stored.input_items),
            self._route("/v1/responses/{id}/calls", GET=self._calls.show, POST=self._calls.decide),
            self._route("/v1/sessions/{name}", GET=self._calls.show_session),
            *self._conversations.routes(),
        ]
        for served in DIALECTS:
            routes.append(
                Route(
                    path=served.path,
                    access=Access.TENANT,
                    calls={"POST": partial(self._create, served)},
                    websocket=served.dialect is RESPONSES,
                    dialect=served.dialect,
                )
            )
            if served.count is not None:
                routes.append(
                    Route(
                        path=served.count.path,
                        access=Access.TENANT,
                        calls={"POST": partial(self._count, served)},
                        dialect=served.dialect,
                    )
                )
        return routes

    def _desk(self) -> tuple[JournalDesk, Journal] | None:
        commits = self._service.commits
        if self._hub.journal is None or commits is None:
            return None
        return self._hub.journal, commits.journal

    def _route(self, path: str, **calls: Handler) -> Route:
        return Route(path=path, access=Access.TENANT, calls=calls)

    # A turn

    async def _create(self, served: Served, call: Call) -> HttpResponse | None:
        if not self._hub.ready:
            raise _not_now(self._hub)
        body, turn = _body(served, call), self._turn(call)
        try:
            await self._read(body, call, partial(self._begin_turn, turn, body))
            return await turn.ended()
        finally:
            turn.leave()

    def _begin_turn(self, turn: HttpTurn, body: Body, found: ReadBody) -> None:
        style = found.style
        if style is None:
            assert isinstance(found.read.content, ApiError)
            raise found.read.content
        if not self._hub.ready:  # no longer, after a while of reading
            raise _not_now(self._hub)
        dialect = body.served.dialect
        asked = Asked(
            dialect=dialect,
            read=found.read,
            streamed=style.streamed,
            writer=dialect.writer(**style.settings),
            num_bytes=len(body.data),
        )
        goes_on = not (style.by_header and body.served.whole_histories)
        turn.submit(asked, self._connect(continues_heads=goes_on))

    def _turn(self, call: Call) -> HttpTurn:
        return HttpTurn(
            call,
            hub=self._hub,
            max_unsent_bytes=self._service.limits.max_unsent_bytes,
            clock=self._service.clock,
        )

    async def _read(
        self, body: Body, call: Call, take: Callable[[ReadBody], Answer | None]
    ) -> Answer | None:
        """Have a body read and taken, in its tenant's turn: here, or beside the event loop."""
        reading, tenant = self._hub.reading, call.principal.tenant
        if len(body.data) > reading.max_inline_bytes:
            try:
                found = await reading.beside(tenant, body)
            except ReaderLost:
                raise errors.not_read() from None
            call.exchange.body_read()
            return take(found)
        taken: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def read() -> None:
            if taken.done():
                return  # nobody waits any more
            call.exchange.body_read()
            try:
                taken.set_result(take(read_body(body, self._service.read_context)))
            except Exception as error:
                taken.set_exception(error)

        reading.turns.run(tenant, read)
        try:
            return await taken
        finally:
            taken.cancel()

    def _connect(self, *, continues_heads: bool) -> Connect:
        def connect(connection_id: str, tenant: Tenant) -> Connection:
            return Connection(
                connection_id=connection_id,
                tenant=tenant,
                service=self._service,
                visible=self._visible(connection_id, tenant, continues_heads=continues_heads),
            )

        return connect

    def _visible(
        self, connection_id: str, tenant: Tenant, *, continues_heads: bool
    ) -> ConnectionStore:
        store = self._service.store
        return ConnectionStore(
            store,
            tenant=tenant,
            connection_id=connection_id,
            private=tenant.unlisted,
            continues_heads=continues_heads,
        )

    async def _read_items(self, served: Served, call: Call) -> ReadBody:
        found = await self._read(_body(served, call, counted=False), call, lambda found: found)
        assert found is not None
        return found

    async def _show(self, call: Call) -> HttpResponse | None:
        """A response, or its events."""
        asked = asked_again(call)
        if asked is None:
            return await self._stored.show_stored(call)
        if call.request.method == "HEAD":  # has no body, and takes nobody's events
            await self._stored.show_stored(call)
            return HttpResponse(status=HTTPStatus.OK, content_type=EVENT_STREAM, body=b"")
        self._stored.deny_taking(call)
        turn = self._turn(call)
        again = Asked(
            dialect=RESPONSES,
            read=Read(content=asked),
            streamed=True,
            writer=ResponsesWriter(),
            num_bytes=0,
        )
        turn.submit(again, self._connect(continues_heads=True))
        return await turn.ended()

    # A prompt's length

    async def _count(self, served: Served, call: Call) -> HttpResponse:
        body = _body(served, call, counted=True)
        tenant = self._service.store.tenant(call.principal.tenant)
        found = await self._read(body, call, lambda found: found)
        assert found is not None
        request, style = found.read.content, found.style
        if isinstance(request, ApiError):
            raise request
        assert isinstance(request, CreateRequest)
        assert style is not None
        assert served.count is not None
        goes_on = not (style.by_header and served.whole_histories)
        count = await count_tokens(
            request,
            hub=self._hub,
            service=self._service,
            visible=self._visible("", tenant, continues_heads=goes_on),
            num_bytes=len(body.data),
            digests=None if found.read.prepared is None else found.read.prepared.digests,
        )
        return json_response(served.count.body(count))


def _body(served: Served, call: Call, *, counted: bool = False) -> Body:
    """Raises ApiError where headers name more than one session or id."""
    request = call.request
    return Body(
        served=served,
        data=call.body,
        session=request.one_value(SESSION_HEADER),
        request_id=None if counted else request.one_value(REQUEST_HEADER),
        span=None if counted else request.header(SPAN_HEADER),
        counted=counted,
    )


def _not_now(hub: Hub) -> ApiError:
    return errors.overloaded("it is shutting down" if hub.draining else "its engine is starting")
