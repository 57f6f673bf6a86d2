"""The Responses API over HTTP: the same fields, events and numbers as over the WebSocket.

What differs is the frame. A body is a ``response.create`` without its type; an answer is the
terminal event's response object, or server-sent events whose data are the events as they are.
An error has no event around it, and inside a stream its fields stand on the top level.
"""

from typing import Any

from tools_api import errors, events
from tools_api.dialects.dialect import DialectRequest
from tools_api.errors import ApiError

_TRANSPORT_ONLY = frozenset({"type", "stream", "stream_options", "stream_id"})
"""Fields that say how an answer travels; over HTTP there are no lanes."""


class ResponsesWriter:
    """Passes everything on as it is."""

    def feed(self, event: dict[str, Any]) -> bytes:
        """Send an event as it is."""
        return self.feed_frame(events.encode(event))

    def feed_frame(self, frame: bytes) -> bytes:
        """The same for an event that is encoded already."""
        return b"event: %b\ndata: %b\n\n" % (events.type_of(frame), frame)

    def whole(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response object, also of a response that failed: it says so itself."""
        return response


class Responses:
    """``POST /v1/responses``, and what hangs on it."""

    def read(self, body: Any) -> DialectRequest:
        """Take the fields as they are; what they hold is checked where a frame's is."""
        if not isinstance(body, dict):
            raise errors.invalid_json(f"it is {errors.type_name(body)}", "body")
        streamed = body.get("stream")
        if not isinstance(streamed, bool | None):
            raise errors.invalid_type("stream", "a boolean", streamed)
        return DialectRequest(
            create={key: value for key, value in body.items() if key not in _TRANSPORT_ONLY},
            streamed=bool(streamed),
            writer=ResponsesWriter(),
        )

    def writer(self, **settings: bool) -> ResponsesWriter:
        """The writer of the answer, which has no settings."""
        return ResponsesWriter(**settings)

    def status(self, error: ApiError) -> int:
        """The error's own; see ``Dialect``."""
        return error.status

    def error(self, error: ApiError) -> dict[str, Any]:
        """The four keys that clients read, under ``error``."""
        return {"error": _fields(error)}

    def error_event(self, error: ApiError) -> bytes:
        """An ``error`` event as the published types have it over HTTP: flat."""
        fields = _fields(error)
        del fields["type"]
        flat = {"type": "error", "sequence_number": 0} | fields
        return ResponsesWriter().feed(flat)


RESPONSES = Responses()


def input_tokens_body(tokens: int) -> dict[str, Any]:
    """The answer of ``POST /v1/responses/input_tokens``."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _fields(error: ApiError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
