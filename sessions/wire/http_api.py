"""The HTTP APIs: which path is which API, and how its requests become turns.

Each API is a dialect; a turn of any of them is a connection to the hub like a WebSocket's,
with the same sessions, budgets and cache hits. Since every request is a connection of its
own, what a WebSocket keeps to itself (``store: false``) is kept for all of a tenant's
requests here, so that a history that is resent is found.
"""

import logging
from functools import partial

from sessions.durable.store import ConnectionStore
from sessions.http.exchange import Call, Exchange, Handler, Pending, at_once
from sessions.http.front_door import Access, Route
from sessions.turns.connection import Connection
from sessions.turns.reading import Read
from sessions.turns.service import Service
from sessions.wire.http_asking import Answer, Asking
from sessions.wire.http_counts import Counting
from sessions.wire.http_dialects import DIALECTS, Body, ReadBody, Served
from sessions.wire.http_pages import Models
from sessions.wire.http_responses import StoredResponses, asked_again
from sessions.wire.http_turn import Asked, HttpTurn
from sessions.wire.hub import Connect, Hub
from tools_api import errors
from tools_api.dialects.responses_http import RESPONSES, ResponsesWriter
from tools_api.errors import ApiError
from tools_api.requests import CreateRequest

log = logging.getLogger(__name__)

SESSION_HEADER = "x-session-id"
REQUEST_HEADER = "idempotency-key"
SPAN_HEADER = "traceparent"


class HttpApi:
    """Handlers and their routes."""

    def __init__(self, *, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._stored = StoredResponses(hub=hub, store=service.store)
        self._models = Models(service, created=int(service.wall_clock()))

    def routes(self) -> list[Route]:
        """All that is below ``/v1``."""
        routes = [
            self._route("/v1/models", GET=at_once(self._models.show_all)),
            self._route("/v1/models/{name}", GET=at_once(self._models.show)),
            self._route(
                "/v1/responses/{id}",
                GET=self._show,
                DELETE=self._stored.when_deleted,
            ),
            self._route("/v1/responses/{id}/cancel", POST=self._stored.when_cancelled),
            self._route(
                "/v1/responses/{id}/input_items",
                GET=self._stored.when_found(self._stored.input_items),
            ),
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

    def _route(self, path: str, **calls: Handler) -> Route:
        return Route(path=path, access=Access.TENANT, calls=calls)

    # A turn

    def _create(self, served: Served, call: Call, exchange: Exchange) -> Pending | None:
        if not self._hub.ready:
            raise _not_now(self._hub)
        body = _body(served, call)
        return self._asking(body, call, exchange, self._begin_turn)

    def _begin_turn(self, body: Body, found: ReadBody, asking: Asking) -> Pending | None:
        style = found.style
        if style is None:
            assert isinstance(found.read.content, ApiError)
            raise found.read.content
        if not self._hub.ready:  # no longer, after a while of reading
            raise _not_now(self._hub)
        dialect = body.served.dialect
        turn = HttpTurn(
            Asked(
                tenant=asking.tenant,
                dialect=dialect,
                read=found.read,
                streamed=style.streamed,
                writer=dialect.writer(**style.settings),
                num_bytes=len(body.data),
            ),
            hub=self._hub,
            connect=self._connect(
                continues_heads=not (style.by_header and body.served.whole_histories)
            ),
            exchange=asking.exchange,
            max_unsent_bytes=self._service.limits.max_unsent_bytes,
            clock=self._service.clock,
        )
        turn.start()
        return None if turn.over else turn

    def _asking(self, body: Body, call: Call, exchange: Exchange, answer: Answer) -> Pending | None:
        asking = Asking(
            tenant=call.principal.tenant,
            body=body,
            exchange=exchange,
            reading=self._hub.reading,
            context=self._service.read_context,
            answer=answer,
        )
        asking.start()
        return asking.pending

    def _connect(self, *, continues_heads: bool) -> Connect:
        def connect(connection_id: str, tenant: str) -> Connection:
            return Connection(
                connection_id=connection_id,
                tenant=tenant,
                service=self._service,
                visible=self._visible(connection_id, tenant, continues_heads=continues_heads),
            )

        return connect

    def _visible(
        self, connection_id: str, tenant: str, *, continues_heads: bool
    ) -> ConnectionStore:
        store = self._service.store
        return ConnectionStore(
            store,
            tenant=tenant,
            connection_id=connection_id,
            private=store.unlisted(tenant),
            continues_heads=continues_heads,
        )

    def _show(self, call: Call, exchange: Exchange) -> Pending | None:
        """A response, or its events."""
        asked = asked_again(call)
        if asked is None:
            return self._stored.when_found(self._stored.show)(call, exchange)
        turn = HttpTurn(
            Asked(
                tenant=call.principal.tenant,
                dialect=RESPONSES,
                read=Read(content=asked),
                streamed=True,
                writer=ResponsesWriter(),
                num_bytes=0,
            ),
            hub=self._hub,
            connect=self._connect(continues_heads=True),
            exchange=exchange,
            max_unsent_bytes=self._service.limits.max_unsent_bytes,
            clock=self._service.clock,
        )
        turn.start()
        return None if turn.over else turn

    # A prompt's length

    def _count(self, served: Served, call: Call, exchange: Exchange) -> Pending | None:
        return self._asking(_body(served, call, counted=True), call, exchange, self._begin_count)

    def _begin_count(self, body: Body, found: ReadBody, asking: Asking) -> Pending | None:
        request, style, tenant = found.read.content, found.style, asking.tenant
        if isinstance(request, ApiError):
            raise request
        assert isinstance(request, CreateRequest)
        assert style is not None
        continues_heads = not (style.by_header and body.served.whole_histories)
        counting = Counting(
            hub=self._hub,
            service=self._service,
            served=body.served,
            tenant=tenant,
            request=request,
            num_bytes=len(body.data),
            digests=None if found.read.prepared is None else found.read.prepared.digests,
            visible=self._visible("", tenant, continues_heads=continues_heads),
        )
        return counting.begin(asking.exchange)


def _body(served: Served, call: Call, *, counted: bool = False) -> Body:
    header = call.request.header
    return Body(
        served=served,
        data=call.body,
        session=header(SESSION_HEADER),
        request_id=None if counted else header(REQUEST_HEADER),
        span=None if counted else header(SPAN_HEADER),
        counted=counted,
    )


def _not_now(hub: Hub) -> ApiError:
    return errors.overloaded("it is shutting down" if hub.draining else "its engine is starting")
