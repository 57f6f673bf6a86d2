"""Which path is which API, and its bodies as requests.

A body is read where a frame is: in the event loop if it is small, else in a process of its own.
Knows neither sockets nor sessions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sessions.turns.reading import Read, ReadContext
from tools_api import errors
from tools_api.dialects import conversations
from tools_api.dialects.anthropic_messages import MESSAGES, count_tokens, token_count
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.dialect import Dialect
from tools_api.dialects.responses_compact import COMPACT
from tools_api.dialects.responses_http import RESPONSES, input_tokens_body
from tools_api.errors import ApiError
from tools_api.request_reading import parse_create
from tools_api.requests import TRACEPARENT
from tools_api.wire import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """How an API lets its clients count a prompt's tokens."""

    path: str
    read: Callable[[Any], dict[str, Any]]
    """Makes the fields of the ``response.create`` that is counted, of a body."""
    body: Callable[[int], dict[str, Any]]
    """The answer with a count of tokens, in the API's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One API that is served over HTTP: its path, and how its bodies are read."""

    path: str
    dialect: Dialect
    whole_histories: bool = False
    """Whether its clients send all that was said, so that a session that only a header names is
    never continued where it stands."""
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
    Served(path="/v1/responses/compact", dialect=COMPACT),
    Served(path="/v1/chat/completions", dialect=CHAT_COMPLETIONS, whole_histories=True),
    Served(
        path="/v1/messages",
        dialect=MESSAGES,
        whole_histories=True,
        count=TokenCount(path="/v1/messages/count_tokens", read=count_tokens, body=token_count),
    ),
)
"""Every API that makes turns."""

NEW_CONVERSATION = Served(path="/v1/conversations", dialect=conversations.NEW)
CHANGED_CONVERSATION = Served(path="/v1/conversations/{id}", dialect=conversations.UPDATE)
ADDED_ITEMS = Served(path="/v1/conversations/{id}/items", dialect=conversations.ITEMS)
BODIES = (*DIALECTS, NEW_CONVERSATION, CHANGED_CONVERSATION, ADDED_ITEMS)
"""Everything with a body to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of one request, as it came."""

    served: Served
    data: bytes
    session: str | None = None
    """Named by a header; so are the two below."""
    request_id: str | None = None
    span: str | None = None
    counted: bool = False
    """Whether it asks for a prompt's length alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a body's answer is to be written, beside what its request says."""

    streamed: bool
    settings: dict[str, bool]
    """Arguments for ``Dialect.writer``."""
    by_header: bool
    """The session was named by the header alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBody:
    """A body that has been read."""

    read: Read
    style: Style | None
    """The style of the answer; None: the body was not understood so far."""


def read_body(body: Body, context: ReadContext) -> ReadBody:
    """Read one body; a faulty one gives its error."""
    style = None
    try:
        create, style = _understood(body, parse_json(body.data, context.limits, "body"))
        request = parse_create(create, None, context.limits, context.models)
    except ApiError as error:
        return ReadBody(read=Read(content=error), style=style)
    return ReadBody(read=Read(content=request), style=style)


def _understood(body: Body, raw: dict[str, Any]) -> tuple[dict[str, Any], Style]:
    streamed, settings = False, {}
    if body.counted:
        assert body.served.count is not None
        create = body.served.count.read(raw)
    else:
        asked = body.served.dialect.read(raw)
        create, streamed, settings = asked.create, asked.streamed, dict(asked.settings)
    by_header = _name_session(create, body.session)
    _name_request(create, body.request_id)
    _name_span(create, body.span)
    return create, Style(streamed=streamed, settings=settings, by_header=by_header)


def _name_session(create: dict[str, Any], name: str | None) -> bool:
    """Let the header name the session where the body names none; whether it does."""
    options, metadata = create.get("keepwarm") or {}, create.get("metadata") or {}
    if name is None or not isinstance(options, dict) or not isinstance(metadata, dict):
        return False
    if create.get("conversation") is not None:  # which is in a session of its own
        return False
    if options.get("session") is not None or "keepwarm.session" in metadata:
        return False
    create["keepwarm"] = options | {"session": name}
    return True


def _name_request(create: dict[str, Any], key: str | None) -> None:
    """Take the request's id from the header.

    Raises:
        ApiError: the body has another one.
    """
    options = create.get("keepwarm") or {}
    if key is None or not isinstance(options, dict):
        return
    if options.get("request_id") not in (None, key):
        raise errors.invalid_value("keepwarm.request_id", "the header Idempotency-Key has another")
    create["keepwarm"] = options | {"request_id": key}


def _name_span(create: dict[str, Any], parent: str | None) -> None:
    """Let the header name the span above the turn where the body names none. One that is none is
    as good as absent, as W3C Trace Context has it."""
    options = create.get("keepwarm") or {}
    if parent is None or not isinstance(options, dict) or options.get("traceparent") is not None:
        return
    if re.fullmatch(TRACEPARENT, parent):
        create["keepwarm"] = options | {"traceparent": parent}
