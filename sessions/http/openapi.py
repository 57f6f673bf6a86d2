"""``GET /openapi.json``: the HTTP API as OpenAPI 3.1, from the route table and the wire models.

Which paths there are, who may ask and with which methods says the table; bodies and answers are
the components of ``request_schemas`` and ``answer_schemas``. A route that is not described below
is there with its methods alone. What a WebSocket carries is no part of it.

Always true: every route of the table is in the document, and no other.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sessions.http.exchange import Call
from sessions.http.front_door import Access, Route
from sessions.http.message import REQUEST_ID, HttpResponse, json_response
from tools_api.dialects.answer_schemas import answer_schemas
from tools_api.dialects.request_schemas import ref, request_schemas, text_schema

VERSION = "3.1.0"
API_VERSION = "1"
"""The API's version, as in the paths. Which program it is nobody is told without a key."""
_JSON, _EVENTS, _CSV = "application/json", "text/event-stream", "text/csv; charset=utf-8"
_PLAIN, _HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"
_WITH_BODY = frozenset({"POST"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of a path in the OpenAPI document."""

    summary: str
    body: str | None = None
    """Name of the component that describes the request's body."""
    answer: str | None = None
    """The component's name of a whole answer in JSON."""
    others: tuple[str, ...] = ()
    """Other media types of an answer."""
    status: int = 200
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters with what they are."""


_PAGE = {"limit": "entries of a page", "after": "the id behind which the page begins"}
_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/", "GET"): Operation(
        summary="What there is: a page, or JSON", answer="EndpointList", others=(_HTML,)
    ),
    ("/openapi.json", "GET"): Operation(summary="This document", others=(_JSON,)),
    ("/health", "GET"): Operation(summary="Whether the server lives", others=(_PLAIN,)),
    ("/healthz", "GET"): Operation(summary="Whether the server lives", others=(_PLAIN,)),
    ("/readyz", "GET"): Operation(summary="Whether it serves, and why not", others=(_PLAIN,)),
    ("/metrics", "GET"): Operation(summary="Numbers for Prometheus", others=("text/plain",)),
    ("/v1/responses", "POST"): Operation(
        summary="A turn", body="CreateResponse", answer="Response", others=(_EVENTS,)
    ),
    ("/v1/responses", "GET"): Operation(summary="Open a WebSocket", status=101),
    ("/v1/responses/input_tokens", "POST"): Operation(
        summary="The length of a prompt", body="CreateResponse", answer="InputTokens"
    ),
    ("/v1/responses/compact", "POST"): Operation(
        summary="A history made short", body="CreateResponse", answer="CompactedResponse"
    ),
    ("/v1/responses/{id}", "GET"): Operation(
        summary="A response, or its events",
        answer="Response",
        others=(_EVENTS,),
        query={"stream": "true: its events", "starting_after": "the number of an event"},
    ),
    ("/v1/responses/{id}", "DELETE"): Operation(
        summary="Forget a response", answer="DeletedResponse"
    ),
    ("/v1/responses/{id}/cancel", "POST"): Operation(summary="End a turn", answer="Response"),
    ("/v1/responses/{id}/input_items", "GET"): Operation(
        summary="All that the model read", answer="ItemList", query=_PAGE | {"order": "asc, desc"}
    ),
    ("/v1/responses/{id}/calls", "GET"): Operation(
        summary="The calls of a response, each with its state", answer="CallList"
    ),
    ("/v1/responses/{id}/calls", "POST"): Operation(
        summary="Decide about a call", body="CallDecision", answer="CallState"
    ),
    ("/v1/sessions/{name}", "GET"): Operation(summary="Where a session stands", answer="Session"),
    ("/v1/conversations", "POST"): Operation(
        summary="Make a conversation", body="NewConversation", answer="Conversation"
    ),
    ("/v1/conversations/{id}", "GET"): Operation(summary="Show it", answer="Conversation"),
    ("/v1/conversations/{id}", "POST"): Operation(
        summary="Change its metadata", body="ChangedConversation", answer="Conversation"
    ),
    ("/v1/conversations/{id}", "DELETE"): Operation(
        summary="Delete it", answer="DeletedConversation"
    ),
    ("/v1/conversations/{id}/items", "GET"): Operation(
        summary="Its items", answer="ItemList", query=_PAGE | {"order": "asc, desc"}
    ),
    ("/v1/conversations/{id}/items", "POST"): Operation(
        summary="Add items", body="AddedItems", answer="ItemList"
    ),
    ("/v1/conversations/{id}/items/{id}", "GET"): Operation(summary="One of them", answer="Item"),
    ("/v1/conversations/{id}/items/{id}", "DELETE"): Operation(
        summary="Take one out", answer="Conversation"
    ),
    ("/v1/chat/completions", "POST"): Operation(
        summary="A turn", body="CreateChatCompletion", answer="ChatCompletion", others=(_EVENTS,)
    ),
    ("/v1/messages", "POST"): Operation(
        summary="A turn", body="CreateMessage", answer="Message", others=(_EVENTS,)
    ),
    ("/v1/messages/count_tokens", "POST"): Operation(
        summary="The length of a prompt", body="CountMessageTokens", answer="MessageTokens"
    ),
    ("/v1/models", "GET"): Operation(
        summary="Names that requests may use",
        answer="ModelList",
        query={"limit": "models of a page", "after_id": "a cursor", "before_id": "a cursor"},
    ),
    ("/v1/models/{name}", "GET"): Operation(summary="One of them", answer="Model"),
    ("/v1/usage", "GET"): Operation(
        summary="Who used what, by hour, day or month",
        answer="UsageReport",
        others=(_CSV,),
        query={
            "from": "a UTC time on a full hour, or seconds since the epoch",
            "to": "likewise",
            "bucket": "1h, 1d, 1mo",
            "group_by": "tenant, key, model, tool, label:NAME",
            "tenant": "one tenant",
            "format": "json, csv",
            "limit": "rows of a page",
            "cursor": "next_cursor of the page before",
        },
    ),
}


class OpenApi:
    """The document of a route table, its own route among them."""

    def __init__(self) -> None:
        self._answer = json_response(b"{}")

    def describe(self, routes: Sequence[Route]) -> None:
        """Show this table of routes from now on."""
        self._answer = json_response(document(routes))

    def show(self, call: Call) -> HttpResponse:
        """Handler that answers with the OpenAPI document."""
        return self._answer


def shown_path(path: str) -> str:
    """A route's path with a name of its own for each pair of braces."""
    counts: Counter[str] = Counter()

    def named(found: re.Match[str]) -> str:
        counts[found[1]] += 1
        number = counts[found[1]]
        return found[0] if number == 1 else f"{{{found[1]}_{number}}}"

    return re.sub(r"{(\w+)}", named, path)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole OpenAPI document."""
    paths: dict[str, Any] = {}
    for route in sorted(routes, key=lambda each: each.path):
        paths[shown_path(route.path)] = {
            method.lower(): _operation(route, method) for method in sorted(set(route.methods))
        }
    return {
        "openapi": VERSION,
        "info": {
            "title": "Keepwarm",
            "version": API_VERSION,
            "description": "What fields mean stands in docs/protocol.md of the source.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


@cache
def components() -> dict[str, Any]:
    """All schemas, by their names."""
    return request_schemas() | answer_schemas() | {"TextConfigAndFormat": text_schema()}


def _operation(route: Route, method: str) -> dict[str, Any]:
    known = _OPERATIONS.get((route.path, "GET" if method == "HEAD" else method))
    told: dict[str, Any] = {
        "operationId": _name(route.path, method),
        "summary": "A page, for people" if known is None else known.summary,
        "parameters": [*_path_parameters(route.path), *_query_parameters(known)],
        "responses": _responses(known, method),
        "security": _security(route),
    }
    if known is not None and known.body is not None and method in _WITH_BODY:
        told["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": ref(known.body)}},
        }
    return told


def _name(path: str, method: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [_parameter(name, "path", "") for name in re.findall(r"{(\w+)}", shown_path(path))]


def _query_parameters(known: Operation | None) -> list[dict[str, Any]]:
    return [] if known is None else [_parameter(*each) for each in _in_query(known)]


def _in_query(known: Operation) -> list[tuple[str, str, str]]:
    return [(name, "query", what) for name, what in known.query.items()]


def _parameter(name: str, where: str, what: str) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "in": where, "schema": {"type": "string"}}
    if where == "path":
        told["required"] = True
    return told | {"description": what} if what else told


def _responses(known: Operation | None, method: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if known is None:
        content["*/*"] = {}
    else:
        content |= {other: {} for other in known.others}
        if known.answer is not None:
            content[_JSON] = {"schema": ref(known.answer)}
    status = 200 if known is None else known.status
    good = _response("As asked", content)
    failed = {_JSON: {"schema": {"anyOf": [ref("Error"), ref("MessagesError")]}}}
    if known is not None and _PLAIN in known.others:
        failed[_PLAIN] = {}  # /readyz says in lines why not
    if method == "HEAD":
        good, failed = _response("As asked", {}), {}
    return {str(status): good, "default": _response("Refused, or failed", failed)}


def _response(what: str, content: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": what,
        "headers": {REQUEST_ID: {"required": True, "schema": {"type": "string"}}},
    }
    return told | {"content": content} if content else told


def _security(route: Route) -> list[dict[str, list[str]]]:
    """Any of them; none where the route needs no key. (A server without keys needs none at all.)"""
    if route.access is Access.PUBLIC:
        return []
    ways = ("bearer", "basic" if route.for_browsers else "header")
    return [{way: []} for way in ways]
