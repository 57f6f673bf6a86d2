"""Wire events: client frames in, server events out.

``decode`` is the only way in and raises nothing but ``ApiError``. Each server event has one
builder, named for it, that returns a plain dict; ``encode`` makes it bytes. The order is that
of docs/protocol.md, Events; to keep it, and to count, is the turn's business
(``sessions.turns.turn``).

Always true: an event of a named lane carries ``stream_id``, one of the default lane does
not; what a builder returns validates against the published event types.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from tools_api import errors
from tools_api.errors import ApiError
from tools_api.exact_json import dumps
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest
from tools_api.wire import parse_json, refuse_unprintable

Event = dict[str, Any]
_HEAD = re.compile(rb'(\{"type":"[^"]*","sequence_number":\d+)(?:,"stream_id":"[^"]*")?')
STREAM_ID = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
TERMINAL = frozenset({b"response.completed", b"response.incomplete", b"response.failed"})
"""Types of the events that end a response, as ``type_of`` gives them."""
BEGINNING = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
"""Types of those before, that have the response as it stands."""
_NOT_HERE = (
    "turns of a WebSocket run while it is open, or go on with keepwarm.on_disconnect 'continue'; "
    "ask for one in the background by POST /v1/responses"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerRequest:
    """``response.steer``; ``input`` stays as sent, since a refusal returns it."""

    previous_response_id: str
    input: str | list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedAck:
    """``response.processed``: some clients acknowledge; nothing is to be done."""

    response_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    """``response.cancel``: end a turn now; without an id the one that runs in the lane."""

    response_id: str | None
    stream_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTurn:
    """``keepwarm:response.resume``: what was missed of a turn, by one of its two ids."""

    response_id: str | None
    request_id: str | None
    after_sequence: int
    """The last event that the client has; -1: none."""
    stream_id: str | None


ClientEvent = CreateRequest | ResumeTurn | CancelTurn | SteerRequest | ProcessedAck


def decode(
    frame: str | bytes,
    limits: Limits = DEFAULT_LIMITS,
    models: Container[str] | None = None,
) -> ClientEvent:
    """Read one frame from a client. ``models``: names that a request may use; None: any.

    Raises:
        ApiError: the frame is refused; its ``stream_id`` is set if the frame had a valid one.
    """
    raw = parse_json(frame, limits)
    stream_id = raw.get("stream_id")
    if stream_id is not None and not (
        isinstance(stream_id, str) and STREAM_ID.fullmatch(stream_id)
    ):
        raise errors.invalid_stream_id()
    try:
        return _decode(raw, stream_id, limits, models)
    except ApiError as error:
        error.stream_id = stream_id
        raise


def _decode(
    raw: dict[str, Any], stream_id: str | None, limits: Limits, models: Container[str] | None
) -> ClientEvent:
    match raw.get("type"):
        case None:
            raise errors.missing_parameter("type")
        case "response.create":
            if raw.get("background") is True:
                raise errors.unsupported_parameter("background", _NOT_HERE)
            return parse_create(raw, stream_id, limits, models)
        case "response.cancel" | "keepwarm:response.cancel":
            response_id = raw.get("response_id")
            if response_id is not None and not isinstance(response_id, str):
                raise errors.invalid_type("response_id", "a string", response_id)
            return CancelTurn(response_id=response_id, stream_id=stream_id)
        case "keepwarm:response.resume":
            return parse_resume(raw, stream_id)
        case "response.steer":
            return _parse_steer(raw)
        case "response.processed":
            response_id = raw.get("response_id")
            return ProcessedAck(response_id=response_id if isinstance(response_id, str) else None)
        case str() as kind:
            raise errors.unknown_event_type(kind)
        case kind:
            raise errors.invalid_type("type", "a string", kind)


def parse_resume(raw: dict[str, Any], stream_id: str | None) -> ResumeTurn:
    """Read the fields of a ``keepwarm:response.resume``.

    Raises:
        ApiError: the first fault, by its path.
    """
    ids = {name: raw[name] for name in ("response_id", "request_id") if raw.get(name) is not None}
    for name, value in ids.items():
        if not isinstance(value, str):
            raise errors.invalid_type(name, "a string", value)
        refuse_unprintable(value, name)
    if not ids:
        raise errors.missing_parameter("response_id")
    if len(ids) > 1:
        raise errors.invalid_value("request_id", "the turn is named by 'response_id' already")
    after = raw.get("after_sequence")
    after = -1 if after is None else after
    if not isinstance(after, int) or isinstance(after, bool):
        raise errors.invalid_type("after_sequence", "an integer", after)
    if after < -1:
        raise errors.invalid_value("after_sequence", f"less than -1, got {after}")
    return ResumeTurn(
        response_id=ids.get("response_id"),
        request_id=ids.get("request_id"),
        after_sequence=after,
        stream_id=stream_id,
    )


def _parse_steer(raw: dict[str, Any]) -> SteerRequest:
    target, steered = raw.get("previous_response_id"), raw.get("input")
    for path, value in (("previous_response_id", target), ("input", steered)):
        if value is None:
            raise errors.missing_parameter(path)
    if not isinstance(target, str):
        raise errors.invalid_type("previous_response_id", "a string", target)
    if not isinstance(steered, str | list):
        raise errors.invalid_type("input", "a string or an array", steered)
    return SteerRequest(previous_response_id=target, input=steered)


def encode(event: Event) -> bytes:
    """The event as a text frame: UTF-8 JSON, its type first."""
    return dumps(event)


def type_of(frame: bytes) -> bytes:
    """The type of an event that ``encode`` wrote, without parsing it."""
    start = len(b'{"type":"')
    return frame[start : frame.index(b'"', start)]


def number_of(frame: bytes) -> int:
    """The sequence number of an event that ``encode`` wrote."""
    head = _HEAD.match(frame)
    assert head is not None
    return int(head[1].rpartition(b":")[2])


def relaned(frame: bytes, stream_id: str | None) -> bytes:
    """The same event for another lane; ``frame`` is one that ``encode`` wrote."""
    head = _HEAD.match(frame)
    assert head is not None
    lane = b"" if stream_id is None else b',"stream_id":' + orjson.dumps(stream_id)
    return frame[: head.end(1)] + lane + frame[head.end() :]


def response_of(frame: bytes) -> bytes:
    """The response object, as JSON, of a lifecycle event that ``encode`` wrote: its last field."""
    return frame[frame.index(b'"response":') + len(b'"response":') : -1]


def _event(type_: str, seq: int, stream_id: str | None, **fields: Any) -> Event:
    if stream_id is None:
        return {"type": type_, "sequence_number": seq, **fields}
    return {"type": type_, "sequence_number": seq, "stream_id": stream_id, **fields}


# Lifecycle. ``response`` comes from ``tools_api.responses.ResponseObject.wire``.


def created(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """The first event of a response; from here on it ends ``failed``, not with an ``error``."""
    return _event("response.created", seq, stream_id, response=response)


def queued(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """The turn waits in the engine's queue; one that starts at once has no such event."""
    return _event("response.queued", seq, stream_id, response=response)


def in_progress(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """Sent once the parent state is bound: clients take it as the barrier of a fork."""
    return _event("response.in_progress", seq, stream_id, response=response)


def completed(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """The last event of a turn that the model ended; ``response`` has output and usage."""
    return _event("response.completed", seq, stream_id, response=response)


def incomplete(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """The last event of a turn that its limit or its session's budget stopped."""
    return _event("response.incomplete", seq, stream_id, response=response)


def failed(seq: int, response: Event, stream_id: str | None = None) -> Event:
    """The last event of a turn that broke off, or that the budget cannot hold at all."""
    return _event("response.failed", seq, stream_id, response=response)


# Output items. ``item`` comes from ``tools_api.items``: ``Item.to_wire()``.


def output_item_added(
    seq: int, output_index: int, item: Event, stream_id: str | None = None
) -> Event:
    """Opens an item, still without content; ``output_index`` counts the response's from 0."""
    return _event(
        "response.output_item.added", seq, stream_id, output_index=output_index, item=item
    )


def output_item_done(
    seq: int, output_index: int, item: Event, stream_id: str | None = None
) -> Event:
    """Closes an item: it stands just so in the terminal ``response.output``."""
    return _event("response.output_item.done", seq, stream_id, output_index=output_index, item=item)


def compacting(seq: int, item_id: str, output_index: int, stream_id: str | None = None) -> Event:
    """A summary of what was said begins; the item ``item_id`` will stand for it."""
    kind = "response.compaction.compacting"
    return _event(kind, seq, stream_id, item_id=item_id, output_index=output_index)


def content_part_added(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    part: Event,
    stream_id: str | None = None,
) -> Event:
    """Opens a part, still empty; ``content_index`` counts the item's parts from 0."""
    at = _at(item_id, output_index, content_index)
    return _event("response.content_part.added", seq, stream_id, **at, part=part)


def content_part_done(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    part: Event,
    stream_id: str | None = None,
) -> Event:
    """Closes a part, now with its whole text."""
    at = _at(item_id, output_index, content_index)
    return _event("response.content_part.done", seq, stream_id, **at, part=part)


def output_text_delta(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    delta: str,
    logprobs: Sequence[Event] = (),
    stream_id: str | None = None,
) -> Event:
    """More of a message; ``logprobs``, if asked for, has an entry per token behind ``delta``."""
    at = _at(item_id, output_index, content_index)
    return _event(
        "response.output_text.delta", seq, stream_id, **at, delta=delta, logprobs=list(logprobs)
    )


def output_text_done(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    text: str,
    logprobs: Sequence[Event] = (),
    stream_id: str | None = None,
) -> Event:
    """The whole text of a part: its deltas, added up, and their log-probabilities."""
    at = _at(item_id, output_index, content_index)
    return _event(
        "response.output_text.done", seq, stream_id, **at, text=text, logprobs=list(logprobs)
    )


def reasoning_text_delta(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    delta: str,
    stream_id: str | None = None,
) -> Event:
    """More of the reasoning: raw text, no summary."""
    at = _at(item_id, output_index, content_index)
    return _event("response.reasoning_text.delta", seq, stream_id, **at, delta=delta)


def reasoning_text_done(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    content_index: int,
    text: str,
    stream_id: str | None = None,
) -> Event:
    """The whole text of a part: its deltas, added up."""
    at = _at(item_id, output_index, content_index)
    return _event("response.reasoning_text.done", seq, stream_id, **at, text=text)


def function_call_arguments_delta(
    seq: int, *, item_id: str, output_index: int, delta: str, stream_id: str | None = None
) -> Event:
    """More of a call's arguments: JSON text cut anywhere."""
    return _event(
        "response.function_call_arguments.delta",
        seq,
        stream_id,
        item_id=item_id,
        output_index=output_index,
        delta=delta,
    )


def function_call_arguments_done(
    seq: int,
    *,
    item_id: str,
    output_index: int,
    name: str,
    arguments: str,
    stream_id: str | None = None,
) -> Event:
    """``name`` is required by older clients and by the published schema."""
    return _event(
        "response.function_call_arguments.done",
        seq,
        stream_id,
        item_id=item_id,
        output_index=output_index,
        name=name,
        arguments=arguments,
    )


def custom_tool_call_input_delta(
    seq: int, *, item_id: str, output_index: int, delta: str, stream_id: str | None = None
) -> Event:
    """More of a custom tool's input: its text, not JSON."""
    at = {"item_id": item_id, "output_index": output_index}
    return _event("response.custom_tool_call_input.delta", seq, stream_id, **at, delta=delta)


def custom_tool_call_input_done(
    seq: int, *, item_id: str, output_index: int, input: str, stream_id: str | None = None
) -> Event:
    """The whole input of a custom tool: its deltas, added up."""
    at = {"item_id": item_id, "output_index": output_index}
    return _event("response.custom_tool_call_input.done", seq, stream_id, **at, input=input)


def shell_command(
    seq: int,
    what: Literal["added", "delta", "done"],
    *,
    output_index: int,
    command_index: int,
    text: str,
    stream_id: str | None = None,
) -> Event:
    """A command of a shell call begins, goes on or ends; they are counted from 0.

    Args:
        text: nothing yet, more of it, or the whole: its deltas, added up.
    """
    at = {"output_index": output_index, "command_index": command_index}
    told = {"delta" if what == "delta" else "command": text}
    return _event(f"response.shell_call_command.{what}", seq, stream_id, **at, **told)


def steer_accepted(seq: int, id_: str, response_id: str, stream_id: str | None = None) -> Event:
    """The input is the server's, and not heard yet; ``id_`` is its own from now on."""
    steer = {"id": id_, "previous_response_id": response_id}
    return _event("response.steer.accepted", seq, stream_id, steer=steer)


def steer_pending(
    seq: int,
    id_: str,
    response_id: str,
    required_input: Sequence[Event],
    stream_id: str | None = None,
) -> Event:
    """The response ended with calls: the input waits for the request that brings their outputs,
    of which ``required_input`` has the stubs."""
    return _event(
        "response.steer.pending",
        seq,
        stream_id,
        steer={"id": id_, "previous_response_id": response_id},
        reason="waiting_for_required_input",
        required_input=list(required_input),
    )


def steer_failed(
    seq: int,
    request: SteerRequest,
    code: str,
    message: str,
    stream_id: str | None = None,
    *,
    id_: str | None = None,
) -> Event:
    """Hands the input back: the client may put it into its next ``response.create``.

    Args:
        seq: next number of the target response, 0 when there is none.
        code: ``steering_not_supported``, ``response_not_found`` and so on.
        id_: of one that had been accepted.
    """
    steer = {"input": request.input, "previous_response_id": request.previous_response_id}
    return _event(
        "response.steer.failed",
        seq,
        stream_id,
        error={"type": "invalid_request_error", "code": code, "message": message},
        steer=steer if id_ is None else {"id": id_} | steer,
    )


def _at(item_id: str, output_index: int, content_index: int) -> dict[str, Any]:
    return {"item_id": item_id, "output_index": output_index, "content_index": content_index}
