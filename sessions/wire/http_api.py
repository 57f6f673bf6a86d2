"""The HTTP APIs: which path is which API, and how its requests become turns.

Each API is a dialect; a turn of any of them is a connection to the hub like a WebSocket's,
with the same sessions, budgets and cache hits. Since every request is a connection of its
own, what a WebSocket keeps to itself (``store: false``) is kept for all of a tenant's
requests here, so that a history that is resent is found.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sessions.durable.store import ConnectionStore
from sessions.http.exchange import Call, Exchange, Handler, Pending, at_once
from sessions.http.front_door import Access, Route
from sessions.http.message import json_response, refusal
from sessions.turns.connection import Connection
from sessions.turns.long_plans import takes_long
from sessions.turns.planning import count_prompt, find_lineage
from sessions.turns.service import Service
from sessions.wire.http_pages import Models
from sessions.wire.http_responses import StoredResponses, asked_again
from sessions.wire.http_turn import Asked, HttpTurn
from sessions.wire.hub import Connect, Hub
from tools_api import errors
from tools_api.dialects.anthropic_messages import MESSAGES, count_tokens, token_count
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.dialect import Dialect, DialectRequest
from tools_api.dialects.responses_http import RESPONSES, ResponsesWriter, input_tokens_body
from tools_api.errors import ApiError
from tools_api.requests import TRACEPARENT, parse_create
from tools_api.wire import parse_json

log = logging.getLogger(__name__)

SESSION_HEADER = "x-session-id"
REQUEST_HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """How an API lets its clients count a prompt's tokens."""

    path: str
    read: Callable[[Any], dict[str, Any]]
    """From a body to the fields of the ``response.create`` that is counted."""
    body: Callable[[int], dict[str, Any]]
    """The answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One API."""

    path: str
    dialect: Dialect
    whole_histories: bool = False
    """Its clients send all that was said, so that a session that only a header names is never
    continued where it stands."""
    count: TokenCount | None = None


DIALECTS: tuple[Served, ...] = (
    Served(
        path="/v1/responses",
        dialect=RESPONSES,
        count=TokenCount(
            path="/v1/responses/input_tokens",
            read=lambda body: RESPONSES.read(body).create,
            body=input_tokens_body,
        ),
    ),
    Served(path="/v1/chat/completions", dialect=CHAT_COMPLETIONS, whole_histories=True),
    Served(
        path="/v1/messages",
        dialect=MESSAGES,
        whole_histories=True,
        count=TokenCount(path="/v1/messages/count_tokens", read=count_tokens, body=token_count),
    ),
)
"""Every API that makes turns."""


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
                DELETE=at_once(self._stored.delete),
            ),
            self._route("/v1/responses/{id}/cancel", POST=at_once(self._stored.cancel)),
            self._route("/v1/responses/{id}/input_items", GET=at_once(self._stored.input_items)),
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
                        calls={"POST": partial(self._count, served, served.count)},
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
        asked = served.dialect.read(parse_json(call.body, self._service.limits, "body"))
        by_header = _name_session(asked.create, call)
        _name_request(asked.create, call)
        _name_span(asked.create, call)
        turn = HttpTurn(
            Asked(
                tenant=call.principal.tenant,
                dialect=served.dialect,
                request=asked,
                num_bytes=len(call.body),
            ),
            hub=self._hub,
            connect=self._connect(continues_heads=not (by_header and served.whole_histories)),
            exchange=exchange,
            max_unsent_bytes=self._service.limits.max_unsent_bytes,
            clock=self._service.clock,
        )
        turn.start()
        return None if turn.over else turn

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
            exchange.answer(self._stored.show(call))
            return None
        turn = HttpTurn(
            Asked(
                tenant=call.principal.tenant,
                dialect=RESPONSES,
                request=DialectRequest(create={}, streamed=True, writer=ResponsesWriter()),
                num_bytes=0,
                resume=asked,
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

    def _count(
        self, served: Served, count: TokenCount, call: Call, exchange: Exchange
    ) -> Pending | None:
        service, tenant = self._service, call.principal.tenant
        fields = count.read(parse_json(call.body, service.limits, "body"))
        by_header = _name_session(fields, call)
        request = parse_create(fields, None, service.limits)
        service.check_model(tenant, request.model)
        visible = self._visible(
            "", tenant, continues_heads=not (by_header and served.whole_histories)
        )
        name = request.keepwarm.session
        session = None if name is None else visible.known_session(name)
        lineage = find_lineage(request, visible, session, "")
        work = partial(count_prompt, request, lineage, service.model)
        if not takes_long(service, request, lineage, len(call.body)):
            exchange.answer(json_response(count.body(work())))
            return None
        return _Counting(served, count, exchange, lambda: self._hub.beside(tenant, work))


class _Counting:
    """A long prompt is counted beside the event loop."""

    def __init__(
        self,
        served: Served,
        count: TokenCount,
        exchange: Exchange,
        start: Callable[[], Any],
    ) -> None:
        self._served = served
        self._count = count
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._run(start))

    def client_gone(self) -> None:
        """Nobody wants to know any more."""
        self._task.cancel()

    def tick(self, now: float) -> None:
        """Nothing: an answer that is not streamed has no heartbeat."""

    async def _run(self, start: Callable[[], Any]) -> None:
        try:
            answer = json_response(self._count.body(await start()))
        except ApiError as error:
            answer = refusal(error, self._served.dialect)
        except Exception:
            log.exception("count failed")
            answer = refusal(errors.internal_error(), self._served.dialect)
        self._exchange.answer(answer)


def _name_session(create: dict[str, Any], call: Call) -> bool:
    """Let the header name the session where the body names none; whether it does."""
    name = call.request.header(SESSION_HEADER)
    options, metadata = create.get("keepwarm") or {}, create.get("metadata") or {}
    if name is None or not isinstance(options, dict) or not isinstance(metadata, dict):
        return False
    if options.get("session") is not None or "keepwarm.session" in metadata:
        return False
    create["keepwarm"] = options | {"session": name}
    return True


def _name_request(create: dict[str, Any], call: Call) -> None:
    """Take the request's id from the header.

    Raises:
        ApiError: the body has another one.
    """
    key, options = call.request.header(REQUEST_HEADER), create.get("keepwarm") or {}
    if key is None or not isinstance(options, dict):
        return
    if options.get("request_id") not in (None, key):
        raise errors.invalid_value("keepwarm.request_id", "the header Idempotency-Key has another")
    create["keepwarm"] = options | {"request_id": key}


def _name_span(create: dict[str, Any], call: Call) -> None:
    """Let the header name the span above the turn where the body names none. One that is none is
    as good as absent, as W3C Trace Context has it."""
    parent = call.request.header("traceparent")
    options = create.get("keepwarm") or {}
    if parent is None or not isinstance(options, dict) or options.get("traceparent") is not None:
        return
    if re.fullmatch(TRACEPARENT, parent):
        create["keepwarm"] = options | {"traceparent": parent}


def _not_now(hub: Hub) -> ApiError:
    return errors.overloaded("it is shutting down" if hub.draining else "its engine is starting")
