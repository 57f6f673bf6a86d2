"""Turns for the tests of dialects: their events come from the project's own builders."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from sessions.turns.response_events import Piece, ResponseEvents
from tests.support.sessions_rig import Rig
from tools_api.dialects.dialect import Dialect, DialectWriter
from tools_api.errors import ApiError
from tools_api.limits import Limits
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject, logprob, usage

Event = dict[str, Any]
Path = tuple[str | int, ...]
USAGE = usage(
    input_tokens=100,
    cached_tokens=64,
    cache_write_tokens=36,
    output_tokens=20,
    reasoning_tokens=5,
)
KEEPWARM = {"session": "s", "turn": 2}

REASONING = [ParsedReasoning("let me"), ParsedReasoning(" think"), ReasoningDone()]
TEXT = [ParsedText("It "), ParsedText("is"), ParsedText(" 21."), TextDone()]
CALL = [
    ParsedCallStart("get_weather"),
    CallArgumentsDelta('{"city"'),
    CallArgumentsDelta(': "Oslo"}'),
    CallDone("get_weather", '{"city": "Oslo"}'),
]
EMPTY_CALL = [ParsedCallStart("now"), CallDone("now", "{}")]
CUT_CALL = [
    ParsedCallStart("get_weather"),
    CallArgumentsDelta('{"city": "Oslo", "day": "Mo'),
    CallDone("get_weather", '{"city": "Oslo", "day": "Mo', complete=False),
]


def turn(
    *parsed: ParsedEvent,
    status: str = "completed",
    steps: Sequence[int] = (),
    logprobs: bool = False,
    keepwarm: Event | None = KEEPWARM,
    **terminal: Any,
) -> list[Event]:
    """All events of one response.

    Args:
        steps: how many parsed events each engine step brings; one each after these.
    """
    ids = itertools.count(1)
    response = ResponseObject(
        id="resp_1",
        request=CreateRequest(),
        model="default",
        created_at=1_800_000_000,
        previous_response_id=None,
    )
    writer = ResponseEvents(response, stream_id=None, new_id=lambda prefix: f"{prefix}_{next(ids)}")
    out = [writer.created(keepwarm), writer.queued(keepwarm), writer.in_progress(keepwarm)]
    todo = [Piece(event, _logprobs(event) if logprobs else ()) for event in parsed]
    for count in itertools.chain(steps, itertools.repeat(1)):
        if not todo:
            break
        out += writer.write(todo[:count])
        del todo[:count]
    writer.close("completed" if status == "completed" else "incomplete", out)
    out.append(writer.terminal(status, **({"usage": USAGE, "keepwarm": keepwarm} | terminal)))
    return out


def _logprobs(event: ParsedEvent) -> tuple[Event, ...]:
    if not isinstance(event, ParsedText):
        return ()
    return (logprob(event.text.encode(), -0.5, [(b"x", -1.5)]),)


def cut_short(
    *parsed: ParsedEvent, reason: str = "max_output_tokens", logprobs: bool = False
) -> list[Event]:
    """All events of a response that a limit ended."""
    return turn(*parsed, status="incomplete", incomplete_reason=reason, logprobs=logprobs)


def failed(code: str, message: str = "It broke.") -> list[Event]:
    """All events of a response that failed in its text."""
    return turn(ParsedText("It"), status="failed", error=(code, message))


def response_of(events: list[Event]) -> Event:
    return events[-1]["response"]


def server_sent(raw: bytes) -> list[tuple[str | None, Any]]:
    """Names and data of server-sent events; ``[DONE]`` stays text."""
    events = []
    assert raw == b"" or raw.endswith(b"\n\n")
    for block in raw.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        assert fields.keys() <= {"event", "data"}
        data = fields["data"]
        events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def stream(writer: DialectWriter, events: list[Event]) -> list[tuple[str | None, Any]]:
    """What a client reads; every event is whole in what one ``feed`` returns."""
    return [sent for event in events for sent in server_sent(writer.feed(event))]


def accepted(dialect: Dialect, body: Any) -> CreateRequest:
    """The request that a body becomes, checked as the server checks it."""
    return parse_create(dialect.read(body).create, None, Limits())


def refused(dialect: Dialect, body: Any) -> Event:
    """The ``error`` object with which a body is refused, by the dialect or behind it."""
    error = refusal(dialect, body)
    assert error is not None, "it was accepted"
    assert error.status == 400
    return dialect.error(error)["error"]


def refusal(dialect: Dialect, body: Any) -> ApiError | None:
    """The error with which a body is refused, by the dialect or behind it."""
    try:
        accepted(dialect, body)
    except ApiError as error:
        return error
    return None


@st.composite
def outputs(draw: st.DrawFn) -> list[ParsedEvent]:
    """What a model may write, in deltas of any size."""
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    texts = st.lists(text, min_size=1, max_size=4)
    kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "call"]), max_size=5))
    parsed: list[ParsedEvent] = []
    for kind in kinds:
        match kind:
            case "reasoning":
                parsed += [*map(ParsedReasoning, draw(texts)), ReasoningDone()]
            case "text":
                parsed += [*map(ParsedText, draw(texts)), TextDone()]
            case _:
                parsed += _call(draw(st.dictionaries(text, text, max_size=3)), draw(texts))
    return parsed


def _call(arguments: dict[str, str], cuts: list[str]) -> list[ParsedEvent]:
    """``cuts`` only say how long the deltas are."""
    written = json.dumps(arguments, ensure_ascii=False)
    parsed: list[ParsedEvent] = [ParsedCallStart("f")]
    rest = written
    for cut in cuts:
        parsed.append(CallArgumentsDelta(rest[: len(cut)]))
        rest = rest[len(cut) :]
    return [*parsed, CallArgumentsDelta(rest), CallDone("f", written)]


STEPS = st.lists(st.integers(1, 6), max_size=8)


def over_http(rig: Rig, dialect: Dialect, body: Event, reply: str) -> tuple[Event, Event]:
    """One request on a connection of its own: the response object and the body of the answer.
    The stream is checked to be one that ends."""
    request = dialect.read(body)
    client = rig.connect()
    client.create(**request.create)
    rig.reply(reply)
    assert stream(request.writer, client.events)
    return client.response, dialect.read(body).writer.whole(client.response)


def cached_of(response: Event) -> int:
    """Prompt tokens of a response that were found in the cache."""
    found: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return found


_WORDS = st.sampled_from(
    ["text", "function", "tool_use", "tool_result", "thinking", "user", "assistant", "tool",
     "system", "auto", "any", "json_schema", "custom", "enabled", "a"]
)  # fmt: skip
_KEYS = st.sampled_from(
    ["type", "role", "content", "text", "name", "id", "function", "arguments", "tool_calls",
     "tool_call_id", "tool_use_id", "input", "thinking", "is_error", "parameters", "schema",
     "input_schema", "json_schema", "sampling", "session", "edits", "effort", "format", "mode",
     "tools", "user_id", "include_usage", "keepwarm.session"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats(0, 2) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=12,
)
"""JSON that is made of the words of both dialects, right or wrong."""


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The way to everything inside a JSON value, itself included."""
    yield path
    inside = dict(enumerate(value)) if isinstance(value, list) else value
    for key, child in inside.items() if isinstance(inside, dict) else ():
        yield from places(child, (*path, key))


def replaced(value: Any, path: Path, new: Any) -> Any:
    """A copy of a JSON value with ``new`` in one place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy
