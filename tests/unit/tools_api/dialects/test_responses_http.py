"""Responses over HTTP: fields pass as they are, events get a frame, errors are flat."""

from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseErrorEvent

from tools_api import errors
from tools_api.dialects.responses_http import RESPONSES, ResponsesWriter, input_tokens_body
from tools_api.errors import ApiError
from tools_api.events import encode, output_text_delta, response_of, type_of

DELTA = output_text_delta(3, item_id="msg_1", output_index=0, content_index=0, delta="a\n\nb")


def parsed(events: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Server-sent events as a client reads them."""
    found = []
    for event in events.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return found


def test_a_body_is_a_create_without_its_type() -> None:
    body = {
        "type": "x",
        "model": "m",
        "input": "hi",
        "stream": True,
        "stream_options": {"include_obfuscation": True},
        "stream_id": "lane",
        "keepwarm": {"session": "s"},
    }
    asked = RESPONSES.read(body)
    assert asked.streamed
    assert asked.create == {"model": "m", "input": "hi", "keepwarm": {"session": "s"}}


@pytest.mark.parametrize(
    ("stream", "streamed"), [({}, False), ({"stream": None}, False), ({"stream": False}, False)]
)
def test_an_answer_is_whole_unless_a_stream_is_asked_for(
    stream: dict[str, Any], streamed: bool
) -> None:
    assert RESPONSES.read({"input": "hi"} | stream).streamed is streamed


@pytest.mark.parametrize(
    ("body", "code"), [([], "invalid_json"), ("x", "invalid_json"), ({"stream": 1}, "invalid_type")]
)
def test_what_cannot_be_read_is_refused(body: object, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        RESPONSES.read(body)
    assert caught.value.code == code


def test_an_event_gets_a_name_and_keeps_its_number() -> None:
    writer = ResponsesWriter()
    assert parsed(writer.feed(DELTA)) == [("response.output_text.delta", DELTA)]
    assert writer.feed_frame(encode(DELTA)) == writer.feed(DELTA)


def test_the_whole_answer_is_the_response_also_of_a_failed_one() -> None:
    response = {"id": "resp_1", "status": "failed", "error": {"code": "server_error"}}
    assert ResponsesWriter().whole(response) is response


def test_an_error_stands_under_its_key_and_flat_in_a_stream() -> None:
    error = errors.model_not_found("x")
    body = RESPONSES.error(error)
    assert body["error"]["param"] == "model"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    ((name, event),) = parsed(RESPONSES.error_event(error))
    assert name == "error"
    assert event == {
        "type": "error",
        "sequence_number": 0,
        "message": error.message,
        "param": "model",
        "code": "model_not_found",
    }
    ResponseErrorEvent.model_validate(event, strict=True)


def test_a_count_has_its_object() -> None:
    assert input_tokens_body(7) == {"object": "response.input_tokens", "input_tokens": 7}


@pytest.mark.parametrize("stream_id", [None, "response"])
def test_type_and_response_of_a_frame_are_found_without_parsing(stream_id: str | None) -> None:
    response = {"id": "r", "instructions": '"response":{"x"}', "output": []}
    event = {"type": "response.completed", "sequence_number": 1}
    if stream_id is not None:
        event["stream_id"] = stream_id
    frame = encode(event | {"response": response})
    assert type_of(frame) == b"response.completed"
    assert orjson.loads(response_of(frame)) == response
