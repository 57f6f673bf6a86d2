import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tools_api import events
from tools_api.errors import ApiError
from tools_api.events import (
    CancelTurn,
    ProcessedAck,
    ResumeTurn,
    SteerRequest,
    decode,
    encode,
    number_of,
    parse_resume,
    relaned,
    response_of,
    type_of,
)
from tools_api.items import FunctionCall, Message, Reasoning, TextPart
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject, logprob, usage

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
CREATE = '{"type": "response.create", "input": "Hi"}'


def response(**state: Any) -> dict[str, Any]:
    request = decode(CREATE)
    assert isinstance(request, CreateRequest)
    made = ResponseObject(
        id="resp_1", request=request, model="m", created_at=1, previous_response_id=None
    )
    return made.wire(**state)


TEXT = TextPart(type="output_text", text="Hi").to_wire()
MESSAGE = Message(
    role="assistant",
    content=(TextPart(type="output_text", text="Hi"),),
    id="msg_1",
    status="completed",
).to_wire()
CALL = FunctionCall(
    call_id="call_1", name="f", arguments="{}", id="fc_1", status="completed"
).to_wire()
REASONING = Reasoning(content=("Hm",), id="rs_1", status="completed").to_wire()
USAGE = usage(input_tokens=2, cached_tokens=1, cache_write_tokens=1, output_tokens=1)
LOGPROBS = [logprob(b"Hi", -0.1)]
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
STEER = SteerRequest(previous_response_id="resp_1", input="Stop")

# Every builder with what it is given after the sequence number.
BUILT: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (events.created, (response(status="in_progress"),), {}),
    (events.queued, (response(status="queued", keepwarm={"queue": {"position": 0}}),), {}),
    (events.in_progress, (response(status="in_progress"),), {}),
    (events.completed, (response(status="completed", output=[MESSAGE, CALL], usage=USAGE),), {}),
    (
        events.incomplete,
        (response(status="incomplete", incomplete_reason="max_output_tokens", usage=USAGE),),
        {},
    ),
    (events.failed, (response(status="failed", error=("server_error", "x")),), {}),
    (events.output_item_added, (0, MESSAGE | {"content": [], "status": "in_progress"}), {}),
    (events.output_item_added, (0, CALL | {"arguments": "", "status": "in_progress"}), {}),
    (events.output_item_done, (0, CALL), {}),
    (events.output_item_done, (0, REASONING), {}),
    (events.content_part_added, (), AT | {"part": TEXT | {"text": ""}}),
    (events.content_part_done, (), AT | {"part": TEXT}),
    (events.output_text_delta, (), AT | {"delta": "Hi", "logprobs": LOGPROBS}),
    (events.output_text_done, (), AT | {"text": "Hi", "logprobs": LOGPROBS}),
    (events.reasoning_text_delta, (), AT | {"delta": "Hm"}),
    (events.reasoning_text_done, (), AT | {"text": "Hm"}),
    (
        events.function_call_arguments_delta,
        (),
        {"item_id": "fc_1", "output_index": 0, "delta": "{}"},
    ),
    (
        events.function_call_arguments_done,
        (),
        {"item_id": "fc_1", "output_index": 0, "name": "f", "arguments": "{}"},
    ),
    (
        events.custom_tool_call_input_delta,
        (),
        {"item_id": "ctc_1", "output_index": 0, "delta": "*** Begin"},
    ),
    (
        events.custom_tool_call_input_done,
        (),
        {"item_id": "ctc_1", "output_index": 0, "input": "*** Begin"},
    ),
    (events.shell_command, ("added",), {"output_index": 0, "command_index": 1, "text": ""}),
    (events.shell_command, ("delta",), {"output_index": 0, "command_index": 1, "text": "l"}),
    (events.shell_command, ("done",), {"output_index": 0, "command_index": 1, "text": "ls"}),
    (events.compacting, (), {"item_id": "cmp_1", "output_index": 0}),
    (events.steer_accepted, ("steer_1", "resp_1"), {}),
    (
        events.steer_pending,
        (
            "steer_1",
            "resp_1",
            [{"type": "function_call_output", "call_id": "call_1", "name": "f"}],
        ),
        {},
    ),
    (events.steer_failed, (STEER, "steering_not_supported", "No."), {}),
    (events.steer_failed, (STEER, "response_not_active", "No."), {"id_": "steer_1"}),
]


@pytest.mark.parametrize(
    ("build", "given", "named"), BUILT, ids=lambda v: getattr(v, "__name__", "")
)
@pytest.mark.parametrize("stream_id", [None, "main"])
def test_each_event_validates_as_the_published_type(
    build: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], stream_id: str | None
) -> None:
    event = build(7, *given, **named, stream_id=stream_id)
    assert event["sequence_number"] == 7
    assert event.get("stream_id") == stream_id
    assert ("stream_id" in event) is (stream_id is not None)
    parsed = PUBLISHED.validate_python(event)
    assert parsed.type == event["type"]
    sent = json.loads(encode(event))
    assert parsed.model_dump(exclude_unset=True, by_alias=True, mode="json") == sent == event


def test_every_builder_is_in_the_table() -> None:
    public = {
        function
        for name, function in inspect.getmembers(events, inspect.isfunction)
        if function.__module__ == events.__name__ and not name.startswith("_")
    }
    assert public - {decode, encode, number_of, parse_resume, relaned, response_of, type_of} == {
        build for build, _, _ in BUILT
    }


def test_an_event_is_encoded_as_utf8_json() -> None:
    assert encode({"a": "é\u2028"}) == '{"a":"é\u2028"}'.encode()


@pytest.mark.parametrize("frame", [CREATE, CREATE.encode()])
def test_a_frame_is_text_or_bytes(frame: str | bytes) -> None:
    assert isinstance(decode(frame), CreateRequest)


@pytest.mark.parametrize("stream_id", ["a", "A-z_0.9", "x" * 256])
def test_a_lane_is_named_by_its_stream_id(stream_id: str) -> None:
    request = decode(json.dumps({"type": "response.create", "input": "", "stream_id": stream_id}))
    assert isinstance(request, CreateRequest)
    assert request.stream_id == stream_id


@pytest.mark.parametrize(
    ("fields", "resumed"),
    [
        ({"response_id": "a"}, ("a", None, -1, None)),
        ({"request_id": "a", "after_sequence": 0, "stream_id": "b"}, (None, "a", 0, "b")),
        ({"request_id": "a", "response_id": None, "after_sequence": None}, (None, "a", -1, None)),
    ],
)
def test_a_resume_names_a_turn_and_its_last_event(
    fields: dict[str, Any], resumed: tuple[str | None, str | None, int, str | None]
) -> None:
    found = decode(json.dumps({"type": "keepwarm:response.resume"} | fields))
    assert isinstance(found, ResumeTurn)
    named = (found.response_id, found.request_id, found.after_sequence, found.stream_id)
    assert named == resumed


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "response_id"),
        ({"response_id": 5}, "invalid_type", "response_id"),
        ({"request_id": []}, "invalid_type", "request_id"),
        ({"request_id": "a\0"}, "invalid_value", "request_id"),
        ({"response_id": "\0"}, "invalid_value", "response_id"),
        ({"request_id": "a", "response_id": "b"}, "invalid_value", "request_id"),
        ({"request_id": "a", "after_sequence": -2}, "invalid_value", "after_sequence"),
        ({"request_id": "a", "after_sequence": "1"}, "invalid_type", "after_sequence"),
        ({"request_id": "a", "after_sequence": True}, "invalid_type", "after_sequence"),
    ],
)
def test_a_resume_of_nothing_is_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(json.dumps({"type": "keepwarm:response.resume"} | fields))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("kind", ["response.cancel", "keepwarm:response.cancel"])
def test_a_cancel_names_a_response_or_a_lane(kind: str) -> None:
    frame = {"type": kind, "response_id": "resp_1", "stream_id": "main"}
    assert decode(json.dumps(frame)) == CancelTurn(response_id="resp_1", stream_id="main")
    assert decode(json.dumps({"type": kind})) == CancelTurn(response_id=None, stream_id=None)


@pytest.mark.parametrize("stream_id", ["", "a b", "ä", "x" * 257, "a\n", 1, ["a"], True])
def test_a_bad_stream_id_is_refused_and_not_echoed(stream_id: Any) -> None:
    with pytest.raises(ApiError) as refused:
        decode(json.dumps({"type": "response.create", "input": "", "stream_id": stream_id}))
    assert refused.value.code == "invalid_stream_id"
    assert "stream_id" not in refused.value.event()


def test_a_refused_request_names_its_lane() -> None:
    with pytest.raises(ApiError) as refused:
        decode('{"type": "response.create", "stream_id": "main", "input": 1}')
    assert refused.value.event()["stream_id"] == "main"


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{}", "missing_required_parameter", "type"),
        ('{"type": 1}', "invalid_type", "type"),
        ('{"type": "response.cancel", "response_id": 1}', "invalid_type", "response_id"),
        ('{"type": "response.cancelled"}', "unknown_event_type", "type"),
        ('{"type": "keepwarm:session.create"}', "unknown_event_type", "type"),
        ("[]", "invalid_json", None),
        (
            '{"type": "response.steer", "input": "a"}',
            "missing_required_parameter",
            "previous_response_id",
        ),
        (
            '{"type": "response.steer", "previous_response_id": "r"}',
            "missing_required_parameter",
            "input",
        ),
        (
            '{"type": "response.steer", "previous_response_id": 1, "input": "a"}',
            "invalid_type",
            "previous_response_id",
        ),
        (
            '{"type": "response.steer", "previous_response_id": "r", "input": {}}',
            "invalid_type",
            "input",
        ),
    ],
)
def test_other_frames_are_refused(frame: str, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        decode(frame)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_a_steer_keeps_its_input_as_sent() -> None:
    steered = [{"role": "user", "content": "Stop"}]
    frame = json.dumps(
        {"type": "response.steer", "previous_response_id": "resp_1", "input": steered}
    )
    assert decode(frame) == SteerRequest(previous_response_id="resp_1", input=steered)


@pytest.mark.parametrize("response_id", ["resp_1", None, 3])
def test_an_acknowledgement_is_taken_silently(response_id: Any) -> None:
    frame = json.dumps({"type": "response.processed", "response_id": response_id})
    expected = response_id if isinstance(response_id, str) else None
    assert decode(frame) == ProcessedAck(response_id=expected)
