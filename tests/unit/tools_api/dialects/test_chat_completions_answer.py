"""Completions and their chunks, as OpenAI's own types read them."""

from typing import Any

import pytest
from hypothesis import given, settings
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

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
from tools_api.dialects.chat_completions_answer import CompletionWriter, error_body, error_event
from tools_api.parsed_events import (
    ParsedEvent,
)

Event = dict[str, Any]
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 36},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


def writer(*, usage: bool = False, logprobs: bool = False) -> CompletionWriter:
    return CompletionWriter(usage=usage, logprobs=logprobs)


def whole(events: list[Event], *, logprobs: bool = False) -> Event:
    completion = writer(logprobs=logprobs).whole(response_of(events))
    ChatCompletion.model_validate(completion)
    return completion


def chunks(events: list[Event], *, usage: bool = False, logprobs: bool = False) -> list[Event]:
    """All chunks but ``[DONE]``, which is the last."""
    *sent, last = stream(writer(usage=usage, logprobs=logprobs), events)
    assert last == (None, "[DONE]")
    for name, chunk in sent:
        assert name is None
        ChatCompletionChunk.model_validate(chunk)
    return [chunk for _, chunk in sent]


def deltas(events: list[Event]) -> list[Event]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(events)]


def joined(sent: list[Event]) -> Event:
    """The message that deltas add up to."""
    message: Event = {"role": None, "content": "", "refusal": None}
    calls: list[Event] = []
    for delta in sent:
        message["role"] = delta.get("role", message["role"])
        for key in ("content", "reasoning_content"):
            if key in delta:
                message[key] = message.get(key, "") + delta[key]
        for part in delta.get("tool_calls", []):
            index, function = part["index"], part["function"]
            if "id" in part:
                assert index == len(calls)
                calls.append({key: part[key] for key in ("id", "type", "function")})
            else:
                calls[index]["function"]["arguments"] += function["arguments"]
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    return message


def test_a_completion_has_text_reasoning_and_calls() -> None:
    completion = whole(turn(*REASONING, *TEXT, *CALL, *EMPTY_CALL))
    assert completion == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": "default",
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "It is 21.",
                    "refusal": None,
                    "reasoning_content": "let me think",
                    "tool_calls": [
                        {
                            "id": "call_4",
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                        },
                        {
                            "id": "call_6",
                            "type": "function",
                            "function": {"name": "now", "arguments": "{}"},
                        },
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": USAGE,
        "keepwarm": KEEPWARM,
    }


def test_a_stream_has_the_role_first_then_deltas_then_the_reason() -> None:
    sent = chunks(turn(*REASONING, *TEXT, *CALL))
    head = {key: sent[0][key] for key in ("id", "object", "created", "model")}
    assert head == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": "default",
    }
    assert all(chunk.items() >= head.items() for chunk in sent)
    assert [chunk["choices"][0]["delta"] for chunk in sent] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "let me"},
        {"reasoning_content": " think"},
        {"content": "It "},
        {"content": "is"},
        {"content": " 21."},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_4",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "Oslo"}'}}]},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in sent]
    assert reasons == [None] * 9 + ["tool_calls"]
    assert sent[-1]["keepwarm"] == KEEPWARM
    assert not any("usage" in chunk for chunk in sent)


def test_the_usage_has_a_chunk_of_its_own_if_it_is_asked_for() -> None:
    *sent, last = chunks(turn(*TEXT), usage=True)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert [chunk["usage"] for chunk in sent] == [None] * len(sent)


def test_calls_without_text_have_no_content() -> None:
    assert whole(turn(*CALL))["choices"][0]["message"]["content"] is None


def test_an_empty_answer_is_an_empty_text() -> None:
    completion = whole(turn())
    assert completion["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
    }
    assert deltas(turn()) == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (turn(*TEXT), "stop"),
        (turn(), "stop"),
        (turn(*TEXT, *CALL), "tool_calls"),
        (cut_short(*TEXT), "length"),
        (cut_short(*CALL, *CUT_CALL), "length"),
        (cut_short(*TEXT, reason="content_filter"), "content_filter"),
    ],
)
def test_it_says_why_it_ended(events: list[Event], reason: str) -> None:
    assert whole(events)["choices"][0]["finish_reason"] == reason
    assert chunks(events)[-1]["choices"][0]["finish_reason"] == reason


def test_a_call_that_was_cut_short_comes_as_it_is() -> None:
    (call,) = whole(cut_short(*CUT_CALL))["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "Oslo", "day": "Mo'


def test_log_probabilities_come_with_the_text_if_they_are_asked_for() -> None:
    events = turn(*REASONING, *TEXT, *CALL, logprobs=True)
    logprobs = whole(events, logprobs=True)["choices"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs["content"]] == ["It ", "is", " 21."]
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "x", "bytes": [120], "logprob": -1.5}
    ]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks(events, logprobs=True)]
    found = [entry for part in streamed if part for entry in part["content"]]
    assert found == logprobs["content"]
    assert whole(events)["choices"][0]["logprobs"] is None


def test_without_our_own_object_there_is_none() -> None:
    assert "keepwarm" not in whole(turn(*TEXT, keepwarm=None))
    assert "keepwarm" not in chunks(turn(*TEXT, keepwarm=None))[-1]


def test_the_published_client_reads_the_stream_as_the_whole() -> None:
    events = turn(*TEXT, *CALL, *EMPTY_CALL, logprobs=True)
    state = ChatCompletionStreamState()
    for chunk in chunks(events, usage=True, logprobs=True):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    read = state.get_final_completion()
    expected = whole(events, logprobs=True)
    message = read.choices[0].message
    assert message.content == expected["choices"][0]["message"]["content"]
    assert [call.function.arguments for call in message.tool_calls or ()] == [
        '{"city": "Oslo"}',
        "{}",
    ]
    assert read.choices[0].finish_reason == "tool_calls"
    assert read.usage is not None
    assert read.usage.model_dump(exclude_unset=True) == USAGE


@settings(max_examples=60, deadline=None)
@given(parsed=outputs(), steps=STEPS)
def test_a_stream_adds_up_to_the_whole(parsed: list[ParsedEvent], steps: list[int]) -> None:
    events = turn(*parsed, steps=steps)
    expected = whole(events)["choices"][0]
    assert joined(deltas(events)) == expected["message"]
    assert chunks(events)[-1]["choices"][0]["finish_reason"] == expected["finish_reason"]


ALL_KINDS = (*REASONING, *TEXT, *CALL, *EMPTY_CALL)


@pytest.mark.parametrize("seen", [0, 3])
@pytest.mark.parametrize(
    "events",
    [turn(*ALL_KINDS, logprobs=True), cut_short(*TEXT, *CUT_CALL, logprobs=True), turn()],
)
def test_an_end_that_comes_alone_brings_the_whole_answer(events: list[Event], seen: int) -> None:
    # A turn whose events are kept no more, or one from the journal; ``seen`` are without items.
    sent = chunks([*events[:seen], events[-1]], logprobs=True)
    expected = whole(events, logprobs=True)["choices"][0]
    choices = [chunk["choices"][0] for chunk in sent]
    assert joined([choice["delta"] for choice in choices]) == expected["message"]
    found = [
        entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]
    assert found == expected["logprobs"]["content"]
    assert choices[-1]["finish_reason"] == expected["finish_reason"]


@settings(max_examples=30, deadline=None)
@given(parsed=outputs())
def test_whatever_was_said_its_end_alone_adds_up_to_the_whole(parsed: list[ParsedEvent]) -> None:
    events = turn(*parsed)
    assert joined(deltas(events[-1:])) == whole(events)["choices"][0]["message"]


def test_an_error_has_the_published_shape() -> None:
    error = errors.invalid_json_schema("tools[0].parameters.not", "no")
    assert error_body(error) == {
        "error": {
            "message": "Invalid JSON schema at 'tools[0].function.parameters.not': no.",
            "type": "invalid_request_error",
            "param": "tools[0].function.parameters.not",
            "code": "invalid_json_schema",
        }
    }
    assert error_body(errors.internal_error())["error"].keys() == {
        "message",
        "type",
        "param",
        "code",
    }


def test_an_error_in_a_stream_is_its_last_event() -> None:
    raw = error_event(errors.overloaded("busy"))
    assert raw.startswith(b'data: {"error":{')
    assert b"[DONE]" not in raw
