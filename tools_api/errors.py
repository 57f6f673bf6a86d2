"""Refusals as the wire shows them: status, type, code, the parameter at fault, a sentence.

An ``ApiError`` means that the request never started; the connection lives on unless the
code says otherwise. What fails after ``response.created`` is reported by
``response.failed`` instead (``tools_api.events.failed``). The functions below are the rows
of the table in docs/protocol.md, Errors, so that a code is spelt in one place.

Always true: ``event()`` carries all four keys of ``error`` and a numeric ``status``, since
some clients ignore an error without them.
"""

import math
import re
from typing import Any

MAX_QUOTED = 80


def quoted(text: str) -> str:
    """Client text as it may appear in a message: in quotes, cut to 80 characters."""
    return f"'{text}'" if len(text) <= MAX_QUOTED else f"'{text[:MAX_QUOTED]}...'"


class ApiError(Exception):
    """A request that is refused before it starts."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None,
        param: str | None = None,
        status: int = 400,
        type: str = "invalid_request_error",
        stream_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = status
        self.type = type
        self.stream_id = stream_id
        """Lane of the request, set by the decoder as soon as it is known."""
        self.retry_after_s = retry_after_s
        """When the same request may be answered, if that is known."""

    def event(
        self, stream_id: str | None = None, sequence_number: int | None = None
    ) -> dict[str, Any]:
        """The ``error`` event.

        Args:
            stream_id: lane to name; without it the lane that the decoder attached.
            sequence_number: left out when None.
        """
        event: dict[str, Any] = {"type": "error", "status": self.status}
        if sequence_number is not None:
            event["sequence_number"] = sequence_number
        lane = stream_id if stream_id is not None else self.stream_id
        if lane is not None:
            event["stream_id"] = lane
        event["error"] = {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
        }
        if self.retry_after_s is not None:
            event["error"]["keepwarm"] = {"retry_after_ms": math.ceil(self.retry_after_s * 1000)}
        return event


def invalid_json(reason: str, what: str = "frame") -> ApiError:
    """No request could be read, so the error names neither parameter nor lane.

    Args:
        what: it should have been read from, "frame" or "body".
    """
    return ApiError(f"The {what} is not a JSON object: {reason}.", code="invalid_json")


def unknown_event_type(type_: str) -> ApiError:
    """``type`` is a string that no client event has; one that is no string is ``invalid_type``."""
    return ApiError(
        f"Unknown event type {quoted(type_)}; known: response.create, response.cancel, "
        "response.steer, keepwarm:response.resume.",
        code="unknown_event_type",
        param="type",
    )


def invalid_type(path: str, expected: str, found: object) -> ApiError:
    """``expected`` has its article, "a string"; null does not come here, it equals absent."""
    return ApiError(
        f"Invalid type for '{path}': expected {expected}, got {type_name(found)}.",
        code="invalid_type",
        param=path,
    )


def invalid_value(path: str, reason: str) -> ApiError:
    """The type is right; ``reason`` says after the path what is wrong, without a full stop."""
    return ApiError(f"Invalid value for '{path}': {reason}.", code="invalid_value", param=path)


def missing_parameter(path: str) -> ApiError:
    """``path`` is absent or null, which are the same in every request."""
    return ApiError(
        f"Missing required parameter: '{path}'.", code="missing_required_parameter", param=path
    )


def unsupported_parameter(path: str, reason: str) -> ApiError:
    """The published types allow it, this server does not do it; refused by name, never ignored."""
    return ApiError(f"'{path}': {reason}.", code="unsupported_parameter", param=path)


def invalid_json_schema(path: str, reason: str) -> ApiError:
    """The schema is too large, too deep, or cannot be enforced.

    ``path`` goes down to the keyword at fault where that is known, as
    ``tools[0].parameters.properties.x.not``.
    """
    return ApiError(
        f"Invalid JSON schema at '{path}': {reason}.", code="invalid_json_schema", param=path
    )


def invalid_stream_id() -> ApiError:
    """The lane's name is malformed, so the error event carries none."""
    return ApiError(
        "'stream_id' must be a string of 1 to 256 characters out of A-Z a-z 0-9 _ . -.",
        code="invalid_stream_id",
        param="stream_id",
    )


def stream_limit_reached(stream_id: str, limit: int) -> ApiError:
    """One lane name too many: a connection's names are never released."""
    return ApiError(
        f"This connection has named {limit} streams already; reuse one of them.",
        code="websocket_stream_limit_reached",
        param="stream_id",
        stream_id=stream_id,
    )


def connection_limit_reached(age_s: float) -> ApiError:
    """The error for a connection on which nothing more starts; turns that run go on. ``age_s`` is
    the limit."""
    return ApiError(
        f"This connection is older than {age_s:g} seconds; open a new one.",
        code="websocket_connection_limit_reached",
    )


def previous_response_not_found(response_id: str) -> ApiError:
    """Unknown, forgotten or another tenant's: a client cannot tell which.

    It may send the whole history instead.
    """
    return ApiError(
        f"Previous response with id {quoted(response_id)} not found.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


def item_not_found(path: str, item_id: str) -> ApiError:
    """An ``item_reference`` names what is unknown, forgotten, deleted, private to another
    connection or another tenant's: a client cannot tell which. It may send the item itself."""
    return ApiError(
        f"'{path}': item with id {quoted(item_id)} not found; send the item itself.",
        code="item_not_found",
        param=path,
        status=404,
    )


def response_not_found(response_id: str | None) -> ApiError:
    """A turn that was to be cancelled does not run: unknown, ended, or another tenant's."""
    what = (
        "No turn runs in this lane"
        if response_id is None
        else (f"No running response with id {quoted(response_id)}")
    )
    return ApiError(f"{what}.", code="response_not_found", param="response_id", status=404)


def no_such_response(response_id: str) -> ApiError:
    """No response of that id is stored: unknown, forgotten, private, or another tenant's."""
    return ApiError(
        f"Response with id {quoted(response_id)} not found.",
        code="response_not_found",
        param="response_id",
        status=404,
    )


def no_such_conversation(id_: str) -> ApiError:
    """Unknown, deleted, forgotten or another tenant's: a client cannot tell which."""
    return ApiError(
        f"Conversation with id {quoted(id_)} not found.",
        code="conversation_not_found",
        param="conversation",
        status=404,
    )


def no_such_conversation_item(id_: str) -> ApiError:
    """The conversation is there, and has no item of that id."""
    return ApiError(
        f"Item with id {quoted(id_)} not found in this conversation.",
        code="item_not_found",
        param="item_id",
        status=404,
    )


def conversation_locked() -> ApiError:
    """Others change the conversation again and again; nothing was changed here."""
    return ApiError(
        "Others are changing this conversation; ask again.",
        code="conversation_locked",
        param="conversation",
        status=409,
        retry_after_s=1.0,
    )


def request_id_reused() -> ApiError:
    """The id of a request came again with another body; the first one's turn is untouched."""
    return ApiError(
        "This request id was used for a request with another body.",
        code="request_id_reused",
        param="keepwarm.request_id",
        status=409,
    )


def response_deleted() -> ApiError:
    """A request id came again whose turn's response was deleted meanwhile; nothing was started."""
    return ApiError(
        "The response that this request id started was deleted; use another id to start anew.",
        code="response_deleted",
        param="keepwarm.request_id",
        status=410,
    )


def followed_elsewhere() -> ApiError:
    """The client came back for the turn on another socket or lane, where its events go now."""
    return ApiError(
        "The events of this turn go to a newer request for them.",
        code="response_followed_elsewhere",
        status=409,
    )


def runs_elsewhere() -> ApiError:
    """The turn runs, or is about to, on another server of the same journal, and had not ended
    when this one gave up waiting. Nothing was started."""
    return ApiError(
        "This turn runs on another server, which alone has its events; ask there, or here again "
        "once it has ended.",
        code="response_runs_elsewhere",
        status=409,
        retry_after_s=1.0,
    )


def no_such_turn(param: str, value: str) -> ApiError:
    """The error for an id under which nothing can be resumed: never started, forgotten, deleted, or
    another tenant's."""
    return ApiError(
        f"No turn with the {param} {quoted(value)} can be resumed.",
        code="response_not_found",
        param=param,
        status=404,
    )


def request_cancelled() -> ApiError:
    """The client cancelled a request that had not started; nothing was changed."""
    return ApiError("The request was cancelled before it started.", code="request_cancelled")


def unknown_call(call_id: str) -> ApiError:
    """An output answers a call that no item before it made."""
    return ApiError(
        f"No tool call found for function call output with call_id {quoted(call_id)}.",
        code="invalid_value",
        param="input",
    )


MISSING_OUTPUT = "No tool output found for function call"


def missing_call_output(call_id: str) -> ApiError:
    """The model cannot go on while a call has no output; ``call_id`` is the first of those."""
    return ApiError(
        f"{MISSING_OUTPUT} with call_id {quoted(call_id)}.",
        code="invalid_value",
        param="input",
    )


def second_output(path: str, call_id: str) -> ApiError:
    """A call has an output already, and another one here could be taken for some other call's."""
    return invalid_value(
        path,
        f"the call {quoted(call_id)} has another output already; send one output for each call, "
        "and what came later as a message",
    )


def call_id_taken(path: str, call_id: str) -> ApiError:
    """Outputs go by the call's id, so that no two calls may wait under one."""
    return invalid_value(
        path,
        f"a call with the id {quoted(call_id)} waits for its output and has another name or other "
        "arguments; send it as it was, or give each call an id of its own",
    )


def call_not_found(call_id: str) -> ApiError:
    """The response made no whole call of that id, or there is no such response for this tenant."""
    return ApiError(
        f"No call with id {quoted(call_id)} was made by this response.",
        code="call_not_found",
        param="call_id",
        status=404,
    )


def session_not_found(name: str) -> ApiError:
    """Unknown, forgotten, or another tenant's: a client cannot tell which."""
    return ApiError(
        f"Session {quoted(name)} not found.", code="session_not_found", param="session", status=404
    )


def call_not_open(session: str, response_id: str) -> ApiError:
    """The session has gone on, or was taken back, and stands at another response."""
    return ApiError(
        f"The session {quoted(session)} does not stand at the response {quoted(response_id)} any "
        "more; list its calls anew.",
        code="call_not_open",
        param="session",
        status=409,
    )


def call_decided(call_id: str, state: str, by: str) -> ApiError:
    """Somebody else was first: a decision stands, a call is begun once."""
    who = f" by {quoted(by)}" if by else ""
    return ApiError(
        f"The call {quoted(call_id)} is {state} already{who}.",
        code="call_decided",
        param="decision",
        status=409,
    )


def call_not_approved(call_id: str) -> ApiError:
    """Nobody has approved it yet."""
    return ApiError(
        f"The call {quoted(call_id)} waits for approval.",
        code="call_not_approved",
        param="decision",
        status=409,
    )


def model_not_found(model: str) -> ApiError:
    """``model`` is neither the served model's name nor one of its aliases."""
    return ApiError(
        f"The model {quoted(model)} does not exist here; GET /v1/models lists those that do.",
        code="model_not_found",
        param="model",
        status=404,
    )


def context_length_exceeded(
    input_tokens: int,
    max_tokens: int,
    advice: str = "shorten it or set truncation to 'auto'",
) -> ApiError:
    """``input_tokens`` is the whole rendered context, or at least as many as it has.

    Begins in published words: some clients know it by these alone, and shorten the history.
    """
    return ApiError(
        "Input tokens exceed the configured limit: this model's maximum context length is "
        f"{max_tokens} tokens, with at least one to generate, and the input has {input_tokens}; "
        f"{advice}.",
        code="context_length_exceeded",
        param="input",
    )


def told_lengths(error: ApiError) -> tuple[int, int] | None:
    """Tokens of the prompt and the most that one may have, of a ``context_length_exceeded`` as it
    crossed the wire; None of any other."""
    told = _LENGTHS.match(error.message) if error.code == "context_length_exceeded" else None
    if told is None:
        return None
    holds, input_tokens = int(told[1]), int(told[2])
    return input_tokens, min(holds, input_tokens - 1)


_LENGTHS = re.compile(
    r"Input tokens exceed [a-z ]+: this model's maximum context length is (\d+) tokens, "
    r"with at least one to generate, and the input has (\d+);"
)
"""How ``context_length_exceeded`` begins."""


def unsplittable_input() -> ApiError:
    """A text that fits the context, perhaps: nobody can tokenise it. Rather than its size it says
    what is wrong, by the code that agents shorten their context for."""
    return ApiError(
        "Input tokens exceed the configured limit: the input has a run of characters of one kind "
        "that is too long for the model's tokenizer; shorten it or set truncation to 'auto'.",
        code="context_length_exceeded",
        param="input",
    )


def overloaded(reason: str, *, retry_after_s: float | None = None) -> ApiError:
    """The request did not start and may be sent again; when, if that is known."""
    return ApiError(
        f"The server is overloaded: {reason}.",
        code="server_is_overloaded",
        status=503,
        type="server_error",
        retry_after_s=retry_after_s,
    )


def rate_limited(reason: str, *, retry_after_s: float) -> ApiError:
    """The tenant asks faster than it may; ``reason`` says how much that is. Nothing was
    started."""
    return ApiError(
        f"Rate limit reached: {reason}; try again in {math.ceil(retry_after_s)} s.",
        code="rate_limit_exceeded",
        status=429,
        type="rate_limit_error",
        retry_after_s=retry_after_s,
    )


def not_read() -> ApiError:
    """The process that reads large requests died or hung over this one."""
    return ApiError(
        "The request could not be read: its reader stopped. It may be sent again.",
        code="request_not_read",
        status=500,
        type="server_error",
    )


def internal_error() -> ApiError:
    """Says nothing of the cause: that belongs in the log, not on the wire."""
    return ApiError(
        "The server had an internal error before the response started.",
        code=None,
        status=500,
        type="server_error",
    )


JSON_TYPES: dict[type, str] = {
    dict: "an object",
    list: "an array",
    tuple: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def type_name(value: object) -> str:
    """JSON's name for the type of a parsed value, with its article."""
    return JSON_TYPES.get(type(value), type(value).__name__)
