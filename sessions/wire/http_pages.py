"""Pages about the server itself: what there is, which models are served.

Says nothing of any tenant; no page loads anything from elsewhere.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from sessions.http.exchange import Call
from sessions.http.front_door import ANTHROPIC_HEADER
from sessions.http.message import HttpResponse, json_response
from sessions.turns.service import ServedModel, Service
from tools_api import errors

LISTED, MAX_LISTED = 20, 1000
"""Models of a page of Anthropic's API: if its client does not say how many, and at most."""

DESCRIPTIONS = {
    "/": "this page; as JSON with Accept: application/json",
    "/cluster.json": "the servers of the cluster, for operators",
    "/dashboard": "sessions, cache and money, for people",
    "/health": "whether the server lives",
    "/healthz": "the same",
    "/metrics": "numbers for Prometheus",
    "/openapi.json": "the HTTP API in OpenAPI's words",
    "/readyz": "whether the engine answers",
    "/sessions.json": "what the dashboard shows",
    "/v1/models": "the models that are served",
    "/v1/usage": "who used what, by hour, day or month",
    "/v1/responses": "Responses: a WebSocket with GET, a turn with POST",
}
"""Descriptions of some endpoints; the others say it by their name."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Keepwarm</title>
<h1>Keepwarm</h1>
<p>An inference runtime that keeps agents' sessions warm. People start at the
<a href="/dashboard">dashboard</a>; clients are pointed at <code>/v1</code>. What they may
send is in <code>docs/protocol.md</code> of the source.</p>
<ul>
{rows}
</ul>
</html>
"""


class Index:
    """The handler of ``GET /``."""

    def __init__(self, endpoints: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """``endpoints``: each path with its methods."""
        listed = [
            {"path": path, "methods": list(methods), "description": DESCRIPTIONS.get(path)}
            for path, methods in endpoints
        ]
        self._json = json_response({"name": "keepwarm", "endpoints": listed})
        page = _PAGE.format(rows="\n".join(map(_row, listed)))
        self._html = HttpResponse(
            status=HTTPStatus.OK,
            content_type="text/html; charset=utf-8",
            body=page.encode(),
            headers=(("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),),
        )

    def show(self, call: Call) -> HttpResponse:
        """A page for people, or JSON for who asks for it."""
        accepted = (call.request.header("Accept") or "").lower()
        return self._json if "application/json" in accepted else self._html


class Models:
    """``/v1/models``: every name that a request of the tenant may use. An adapter's ``parent`` is
    the model that it is of."""

    def __init__(self, service: Service, *, created: int) -> None:
        """``created``: seconds since the epoch."""
        self._service = service
        model = service.model
        names = [model.name, *sorted(model.aliases - {model.name})]
        self._models = {name: _model(name, model, created) for name in names}
        self._models |= {
            name: _model(name, model, created) | {"parent": model.name}
            for name in sorted(model.adapters)
        }

    def show_all(self, call: Call) -> HttpResponse:
        """Handler of ``/v1/models``: the server's own name first, adapters last; in pages for who
        speaks Anthropic's API."""
        models = self._of(call)
        if _is_for_anthropic(call):
            return json_response(_page(models, call))
        return json_response({"object": "list", "data": list(models.values())})

    def show(self, call: Call) -> HttpResponse:
        """Handler of ``/v1/models/{id}``: one model."""
        name = unquote(call.argument)
        found = self._of(call).get(name)
        if found is None:
            raise errors.model_not_found(name)
        return json_response(found)

    def _of(self, call: Call) -> dict[str, dict[str, Any]]:
        service = self._service
        tenant = service.store.tenant(call.principal.tenant)
        found = {
            name: model
            for name, model in self._models.items()
            if service.fault_of_model(tenant, name) is None
        }
        if _is_for_anthropic(call):
            return {name: _anthropic_model(model) for name, model in found.items()}
        return found


def _model(name: str, model: ServedModel, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "keepwarm",
        "max_model_len": model.max_context_tokens,
    }


def _is_for_anthropic(call: Call) -> bool:
    return ANTHROPIC_HEADER in call.request.headers


def _anthropic_model(model: dict[str, Any]) -> dict[str, Any]:
    """A model as the Models API of Anthropic tells it, beside OpenAI's fields: some clients read
    those and send its header."""
    created = datetime.fromtimestamp(model["created"], UTC)
    return model | {
        "type": "model",
        "display_name": model["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model["max_model_len"],
        "max_tokens": model["max_model_len"],
    }


def _page(models: dict[str, dict[str, Any]], call: Call) -> dict[str, Any]:
    """Those behind ``after_id``, or the last ones before ``before_id``.

    Raises:
        ApiError: a parameter is none.
    """
    names = list(models)
    most = _most(call)
    first, end = 0, len(names)
    for name in ("after_id", "before_id"):
        cursor = call.request.query(name)
        if cursor is not None and cursor not in models:
            raise errors.invalid_value(name, f"no model has the id {errors.quoted(cursor)}")
        if cursor is not None and name == "after_id":
            first = names.index(cursor) + 1
        elif cursor is not None:
            end = names.index(cursor)
            first = max(first, end - most)
    shown = names[first:end][:most]
    more = first > 0 if call.request.query("before_id") is not None else first + most < end
    return {
        "data": [models[name] for name in shown],
        "has_more": more,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _most(call: Call) -> int:
    text = call.request.query("limit")
    if text is None:
        return LISTED
    if len(text) > 4 or not text.isdecimal() or not 1 <= int(text) <= MAX_LISTED:
        raise errors.invalid_value("limit", f"not a number from 1 to {MAX_LISTED}")
    return int(text)


def _row(listed: dict[str, Any]) -> str:
    path, methods = listed["path"], ", ".join(listed["methods"])
    shown = f"<code>{escape(path)}</code>"
    if "HEAD" in listed["methods"] and "{" not in path:
        shown = f'<a href="{escape(path)}">{shown}</a>'
    told = listed["description"]
    return f"<li>{escape(methods)} {shown}{': ' + escape(told) if told else ''}</li>"
