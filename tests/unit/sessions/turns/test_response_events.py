"""Events of one response: order, numbers, identity of deltas and items."""

import itertools
import random
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from sessions.turns.response_events import Piece, ResponseEvents
from tools_api.items import CustomToolCall
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
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject, usage
from tools_api.sectioned_calls import call_number
from tools_api.tools import FunctionTool, parse_tools

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
REASONING = [ParsedReasoning("let me"), ParsedReasoning(" think"), ReasoningDone()]
TEXT = [ParsedText("It "), ParsedText("is"), ParsedText(" 21."), TextDone()]
CALL = [
    ParsedCallStart("f"),
    CallArgumentsDelta('{"a"'),
    CallArgumentsDelta(": 1}"),
    CallDone("f", '{"a": 1}'),
]
EMPTY_CALL = [ParsedCallStart("g"), CallDone("g", "{}")]


def writer(stream_id: str | None = None, tools: tuple[FunctionTool, ...] = ()) -> ResponseEvents:
    ids = itertools.count(1)
    response = ResponseObject(
        id="resp_1",
        request=CreateRequest(tools=tools),
        model="m",
        created_at=1,
        previous_response_id=None,
    )
    return ResponseEvents(
        response, stream_id=stream_id, new_id=lambda prefix: f"{prefix}_{next(ids)}"
    )


def pieces(*parsed: ParsedEvent) -> list[Piece]:
    return [Piece(event) for event in parsed]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_reasoning_text_and_calls_are_items_one_after_another() -> None:
    events = writer()
    out = events.write(pieces(*REASONING, *TEXT, *CALL, *EMPTY_CALL))
    assert kinds(out) == [
        "output_item.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta"],
        *["function_call_arguments.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta"],
        *["function_call_arguments.done", "output_item.done"],
    ]
    assert [event["output_index"] for event in out if "item" in event] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_number_that_a_model_gives_a_call_ends_its_id() -> None:
    """Of functions, custom tools and built-in ones; local shells' items have one id."""
    tools = parse_tools(
        [
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "c"},
            {"type": "local_shell"},
            {"type": "apply_patch"},
        ]
    )
    events, names = writer(tools=tools), [tool.name for tool in tools]
    out: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        out += events.write(pieces(ParsedCallStart(name, str(number)), CallDone(name, "{}")))
    items = [event["item"] for event in out if event["type"] == "response.output_item.done"]
    assert [item["call_id"].rpartition("_")[2] for item in items] == ["0", "1", "2", "3"]
    assert [call_number(item["call_id"]) for item in items] == ["0", "1", "2", "3"]
    shell = next(item for item in items if item["type"] == "local_shell_call")
    assert shell["id"] == shell["call_id"]


def test_all_events_are_of_the_published_types() -> None:
    events = writer("lane")
    out = [events.created(None), events.queued({"queue": {}}), events.in_progress(None)]
    out += events.write(pieces(*REASONING, *TEXT, *CALL, *EMPTY_CALL, ParsedText("cut")))
    events.close("incomplete", out)
    counts = usage(input_tokens=1, cached_tokens=0, cache_write_tokens=1, output_tokens=0)
    out.append(events.terminal("incomplete", usage=counts, incomplete_reason="max_output_tokens"))
    for event in out:
        read = PUBLISHED.validate_python(event)
        assert type(read).__name__ != "ResponseErrorEvent"
        assert read.type == event["type"]
    assert [event["sequence_number"] for event in out] == list(range(len(out)))
    assert {event["stream_id"] for event in out} == {"lane"}
    items = [event["item"] for event in out if event["type"] == "response.output_item.done"]
    assert out[-1]["response"]["output"] == items
    assert [item["status"] for item in items] == ["completed"] * 4 + ["incomplete"]


@pytest.mark.parametrize("seed", range(10))
def test_deltas_add_up_to_the_item_however_they_come(seed: int) -> None:
    rng = random.Random(seed)
    todo = pieces(*REASONING, *TEXT, *CALL, *TEXT)
    events, out = writer(), list[dict[str, Any]]()
    while todo:
        count = rng.randint(1, 5)
        step = events.write(todo[:count])
        del todo[:count]
        keys = [(e["type"], e["output_index"]) for e in step if e["type"].endswith(".delta")]
        assert len(keys) == len(set(keys)), "two deltas of one item in a step"
        out += step
    written = ["".join(e["delta"] for e in out if e.get("output_index") == i and "delta" in e)
               for i in range(4)]  # fmt: skip
    assert written == ["let me think", "It is 21.", '{"a": 1}', "It is 21."]
    assert [item.to_wire()["type"] for item in events.items] == [
        "reasoning",
        "message",
        "function_call",
        "message",
    ]


@pytest.mark.parametrize(
    ("parsed", "status"),
    [
        ([ParsedText("a"), TextDone()], "incomplete"),
        ([ParsedReasoning("a"), ReasoningDone()], "incomplete"),
        ([ParsedCallStart("f"), CallDone("f", "", complete=False)], "incomplete"),
    ],
)
def test_what_ends_because_the_output_was_cut_ends_incomplete(
    parsed: list[ParsedEvent], status: str
) -> None:
    events = writer()
    events.write(pieces(*parsed[:-1]))
    events.write(pieces(parsed[-1]), cut=True)
    assert events.items[0].status == status


def test_a_call_that_went_wrong_is_incomplete_though_the_turn_goes_on() -> None:
    events = writer()
    broken = [
        ParsedCallStart("f"), CallArgumentsDelta('{"a'), CallDone("f", '{"a', complete=False)
    ]  # fmt: skip
    events.write(pieces(*broken, *TEXT))
    assert [item.status for item in events.items] == ["incomplete", "completed"]


def test_log_probabilities_of_joined_deltas_are_joined() -> None:
    events = writer()
    a, b = ({"token": letter, "bytes": [], "logprob": 0.0, "top_logprobs": []} for letter in "ab")
    out = events.write([Piece(ParsedText("a"), (a,)), Piece(ParsedText("b"), (b,))])
    assert out[-1]["logprobs"] == [a, b]
    events.close("completed", out)
    assert out[-1]["item"]["content"][0]["logprobs"] == [a, b]


def test_closing_with_nothing_open_says_nothing() -> None:
    out: list[dict[str, Any]] = []
    writer().close("incomplete", out)
    assert out == []


# Custom tools and namespaces

TOOLS = parse_tools(
    [
        {"type": "custom", "name": "note"},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "syntax": "regex", "definition": "a*"},
        },
        {
            "type": "namespace",
            "name": "mcp__x",
            "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}],
        },
    ]
)


@pytest.mark.parametrize(
    ("name", "deltas", "text"),
    [
        ("note", ['{"inp', 'ut": "a\\', 'n\\"b"', "}"], 'a\n"b'),
        ("note", ['{"input": ""}'], ""),
        ("patch", ["*** {", '"a": \\n'], '*** {"a": \\n'),
        ("patch", [], ""),
    ],
)
def test_a_custom_call_gives_its_text(name: str, deltas: list[str], text: str) -> None:
    events = writer(tools=TOOLS)
    out = events.write(pieces(ParsedCallStart(name)))
    for delta in deltas:
        out += events.write(pieces(CallArgumentsDelta(delta)))
    out += events.write(pieces(CallDone(name, "".join(deltas))))
    for event in out:
        assert PUBLISHED.validate_python(event).type == event["type"]
    assert kinds(out)[-2:] == ["custom_tool_call_input.done", "output_item.done"]
    assert "".join(e["delta"] for e in out if "delta" in e) == text
    assert out[-2]["input"] == text
    assert out[-1]["item"] == {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "status": "completed",
        "call_id": "call_2",
        "name": name,
        "input": text,
    }


@pytest.mark.parametrize("name", ["f", "c"])
def test_calls_of_a_namespace_come_back_with_both_names(name: str) -> None:
    events = writer(tools=TOOLS)
    called = f"mcp__x__{name}"
    out = events.write(pieces(ParsedCallStart(called), CallDone(called, "{}")))
    for event in out:
        if "item" in event:
            assert (event["item"]["name"], event["item"]["namespace"]) == (name, "mcp__x")


def test_a_custom_call_that_was_cut_keeps_what_is_certain() -> None:
    events = writer(tools=TOOLS)
    cut = '{"input": "ab\\u00'
    events.write(
        pieces(ParsedCallStart("note"), CallArgumentsDelta(cut), CallDone("note", cut, False))
    )
    (item,) = events.items
    assert isinstance(item, CustomToolCall)
    assert (item.input, item.status) == ("ab", "incomplete")
