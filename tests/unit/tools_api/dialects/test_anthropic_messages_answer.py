"""Messages and the events of their streams."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic_core import from_json

from tests.support.dialects import (
    CALL,
    CUT_CALL,
    EMPTY_CALL,
    KEEPWARM,
    REASONING,
    STEPS,
    TEXT,
    cut_short,
    outputs,
    response_of,
    stream,
    turn,
)
from tools_api import errors
from tools_api.dialects.anthropic_messages_answer import MessageWriter, error_body, error_event
from tools_api.errors import ApiError
from tools_api.parsed_events import (
    ParsedEvent,
)

Event = dict[str, Any]
LONG = Decimal("0.12345678901234567890")
USAGE = {
    "input_tokens": 36,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 64,
    "output_tokens": 20,
}


def writer(*, thinking_shown: bool = True, generates: bool = True) -> MessageWriter:
    return MessageWriter(thinking_shown=thinking_shown, generates=generates)


def whole(events: list[Event], **options: bool) -> Event:
    return writer(**options).whole(response_of(events))


def sent(events: list[Event], **options: bool) -> list[Event]:
    """The events of a stream; each has the name of its type."""
    named = stream(writer(**options), events)
    assert [name for name, _ in named] == [event["type"] for _, event in named]
    return [event for _, event in named]


def joined(events: list[Event]) -> Event:
    """The message that a stream adds up to, as the published client makes it."""
    message: Event = {}
    inputs: dict[int, str] = {}
    blocks: list[Event] = []
    for event in events:
        match event["type"]:
            case "message_start":
                assert message == {}
                message = event["message"]
                blocks = message["content"]
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                match delta.pop("type"):
                    case "input_json_delta":
                        inputs[event["index"]] = (
                            inputs.get(event["index"], "") + delta["partial_json"]
                        )
                    case kind:
                        key = kind.removesuffix("_delta")
                        blocks[-1][key] += delta[key]
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1
            case "message_delta":
                message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
                message |= {key: event[key] for key in ("keepwarm",) if key in event}
    for index, written in inputs.items():
        blocks[index]["input"] = from_json(written, allow_partial=True)
    return message


def test_a_message_has_a_block_for_every_item() -> None:
    message = whole(turn(*REASONING, *TEXT, *CALL, *EMPTY_CALL))
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "default",
        "content": [
            {"type": "thinking", "thinking": "let me think", "signature": "unsigned"},
            {"type": "text", "text": "It is 21."},
            {
                "type": "tool_use",
                "id": "call_4",
                "name": "get_weather",
                "input": {"city": "Oslo"},
            },
            {"type": "tool_use", "id": "call_6", "name": "now", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
        "keepwarm": KEEPWARM,
    }


def test_a_stream_opens_fills_and_closes_one_block_after_another() -> None:
    events = sent(turn(*REASONING[1:], *TEXT[2:], *CALL))
    assert events[0] == {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "default",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": dict.fromkeys(USAGE, 0),
        },
    }
    assert events[1:] == [
        {"type": "ping"},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": " think"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "unsigned"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "text_delta", "text": " 21."},
        },
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {
                "type": "tool_use",
                "id": "call_4",
                "name": "get_weather",
                "input": {},
            },
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '{"city"'},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": ': "Oslo"}'},
        },
        {"type": "content_block_stop", "index": 2},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": USAGE,
            "keepwarm": KEEPWARM,
        },
        {"type": "message_stop"},
    ]


def test_a_stream_says_at_its_start_what_was_read() -> None:
    told = KEEPWARM | {"tokens": {"input": 100, "cached": 64}}
    start, *_ = sent(turn(*TEXT, keepwarm=told))
    assert start["message"]["usage"] == USAGE | {"output_tokens": 0}


STOPPED = turn(*TEXT, keepwarm=KEEPWARM | {"stop": "###"})


@pytest.mark.parametrize(
    ("events", "reason", "sequence"),
    [
        (turn(*TEXT), "end_turn", None),
        (turn(), "end_turn", None),
        (turn(*TEXT, keepwarm=None), "end_turn", None),
        (STOPPED, "stop_sequence", "###"),
        (turn(*TEXT, *CALL), "tool_use", None),
        (cut_short(*TEXT), "max_tokens", None),
        (cut_short(*CUT_CALL), "max_tokens", None),
        (cut_short(*TEXT, reason="content_filter"), "refusal", None),
    ],
)
def test_it_says_why_it_ended(events: list[Event], reason: str, sequence: str | None) -> None:
    message = whole(events)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    delta = sent(events)[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_warm_up_ends_at_its_limit() -> None:
    assert whole(turn(), generates=False)["stop_reason"] == "max_tokens"
    assert sent(turn(), generates=False)[-2]["delta"]["stop_reason"] == "max_tokens"


def test_thinking_that_is_not_wanted_is_an_empty_block() -> None:
    events = turn(*REASONING, *TEXT)
    thinking, text = whole(events, thinking_shown=False)["content"]
    assert thinking == {"type": "thinking", "thinking": "", "signature": "unsigned"}
    assert text["text"] == "It is 21."
    assert joined(sent(events, thinking_shown=False))["content"] == [thinking, text]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *(('{"a": 1', {"a": 1}), ('{"a": "x', {}), ("", {}), ("[1]", {}), ("nonsense", {})),
        ('{"a": 18446744073709551617, "b": [0.12345678901234567890', {"a": 2**64 + 1, "b": [LONG]}),
        ('{"a": 18446744073709551617, "b": 0.12345678901234567890}', {"a": 2**64 + 1, "b": LONG}),
        ('{"half \\ud83d": "\\ude00"}', {"half \ufffd": "\ufffd"}),
        ('{"half \\ud83d": ["\\ude00", "', {"half \ufffd": ["\ufffd"]}),
    ],
)
def test_arguments_that_are_no_object_are_what_can_be_read_of_them(
    arguments: str, expected: Event
) -> None:
    events = cut_short(*CUT_CALL)
    response_of(events)["output"][0]["arguments"] = arguments
    assert whole(events)["content"][0]["input"] == expected


@settings(max_examples=60, deadline=None)
@given(parsed=outputs(), steps=STEPS)
def test_a_stream_adds_up_to_the_whole(parsed: list[ParsedEvent], steps: list[int]) -> None:
    events = turn(*parsed, steps=steps)
    assert joined(sent(events)) == whole(events)


def test_a_call_that_was_cut_short_adds_up_too() -> None:
    events = cut_short(*TEXT, *CUT_CALL)
    assert joined(sent(events)) == whole(events)
    assert whole(events)["content"][1]["input"] == {"city": "Oslo"}


@pytest.mark.parametrize("thinking_shown", [True, False])
@pytest.mark.parametrize("seen", [0, 3])
@pytest.mark.parametrize(
    "events",
    [turn(*REASONING, *TEXT, *CALL, *EMPTY_CALL), cut_short(*TEXT, *CUT_CALL), turn()],
)
def test_an_end_that_comes_alone_brings_the_whole_message(
    events: list[Event], seen: int, thinking_shown: bool
) -> None:
    # A turn whose events are kept no more, or one from the journal; ``seen`` are without items.
    alone = sent([*events[:seen], events[-1]], thinking_shown=thinking_shown)
    assert joined(alone) == whole(events, thinking_shown=thinking_shown)
    assert alone[-1] == {"type": "message_stop"}


@settings(max_examples=30, deadline=None)
@given(parsed=outputs())
def test_whatever_was_said_its_end_alone_adds_up_to_the_whole(parsed: list[ParsedEvent]) -> None:
    events = turn(*parsed)
    assert joined(sent(events[-1:])) == whole(events)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_has_the_published_type_of_its_status(status: int, kind: str) -> None:
    error = ApiError("No.", code=None, status=status, type="anything")
    assert error_body(error) == {"type": "error", "error": {"type": kind, "message": "No."}}


def test_an_error_names_the_field_as_it_is_called_here() -> None:
    error = errors.invalid_json_schema("tools[0].parameters.not", "no")
    assert "'tools[0].input_schema.not'" in error_body(error)["error"]["message"]


def test_of_a_thread_the_error_has_the_code_upon_which_tool_runners_go_on_without() -> None:
    error = error_body(errors.unsupported_parameter("thread", "send the messages"))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {"error_code": "thread_unsupported_request"}


def test_a_prompt_that_is_too_long_is_said_so_that_clients_shorten_it() -> None:
    """In the published words and no others: Claude Code looks for the whole of them."""
    message = error_body(errors.context_length_exceeded(5000, 4096))["error"]["message"]
    assert message == "prompt is too long: 5000 tokens > 4096 maximum"
    advised = errors.context_length_exceeded(5000, 4096, "leave some out")
    assert error_body(advised)["error"]["message"] == message


def test_a_prompt_that_leaves_no_room_for_a_token_is_longer_than_the_most() -> None:
    message = error_body(errors.context_length_exceeded(4096, 4096))["error"]["message"]
    assert message == "prompt is too long: 4096 tokens > 4095 maximum"


def test_an_error_in_a_stream_is_named() -> None:
    raw = error_event(errors.overloaded("busy"))
    head, data = raw.removesuffix(b"\n\n").split(b"\n")
    assert head == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == error_body(errors.overloaded("busy"))


def test_a_prompt_that_cannot_be_tokenised_is_too_long_as_well() -> None:
    error = errors.unsplittable_input()
    assert error_body(error)["error"]["message"] == f"prompt is too long: {error.message}"
