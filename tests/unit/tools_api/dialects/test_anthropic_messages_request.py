"""Bodies of Anthropic's Messages as requests."""

from typing import Any

import pytest

from tests.support.dialects import accepted, refused
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.anthropic_messages_request import (
    NAMES,
    counted_fields,
    create_fields,
    thinking_shown,
)

INPUT = [
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


def body(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]} | fields


def test_a_body_with_everything_becomes_one_request() -> None:
    create, _ = create_fields(
        body(
            model="default",
            system="Be brief.",
            tools=[
                TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}},
                TOOL
                | {
                    "name": "g",
                    "strict": True,
                    "input_examples": [{"a": 1}],
                    "allowed_callers": ["direct"],
                    "defer_loading": False,
                    "eager_input_streaming": None,
                },
            ],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            stop_sequences=["###"],
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            thinking={"type": "enabled", "budget_tokens": 2048},
            output_config={"effort": "high", "format": FORMAT},
            metadata={"user_id": "u"},
            service_tier="standard_only",
            speed="standard",
            stream=True,
            cache_control={"type": "ephemeral"},
            context_management={"edits": [{"type": "clear_thinking_20251015"}]},
            diagnostics={"previous_message_id": None},
            keepwarm={"session": "s", "sampling": {"seed": 7}},
        )
    )
    assert create == {
        "model": "default",
        "instructions": "Be brief.",
        "input": INPUT,
        "max_output_tokens": 100,
        "tools": [
            {
                "type": "function",
                "strict": False,
                "name": "f",
                "description": "d",
                "parameters": SCHEMA,
            },
            {
                "type": "function",
                "strict": True,
                "name": "g",
                "description": "d",
                "parameters": SCHEMA | {"examples": [{"a": 1}]},
            },
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning": {"effort": "high"},
        "text": {"format": {"type": "json_schema", "name": "output", "schema": SCHEMA}},
        "user": "u",
        "service_tier": "default",
        "keepwarm": {"session": "s", "sampling": {"seed": 7, "top_k": 40, "stop": ["###"]}},
    }


def test_the_server_understands_all_of_it() -> None:
    request = accepted(
        MESSAGES,
        body(
            system=[{"type": "text", "text": "Be brief."}],
            tools=[TOOL],
            stop_sequences=["###", "END"],
            top_k=5,
            output_config={"format": FORMAT},
        ),
    )
    assert request.instructions == "Be brief."
    assert request.tools[0].parameters == SCHEMA
    assert request.keepwarm.sampling.stop == ("###", "END")
    assert request.keepwarm.sampling.top_k == 5
    assert request.text_format.json_schema == SCHEMA
    assert (request.max_output_tokens, request.generate) == (100, True)


def test_a_body_of_messages_alone_asks_for_nothing_else() -> None:
    assert create_fields(body())[0] == {"input": INPUT, "max_output_tokens": 100}
    nulls = dict.fromkeys(("system", "tools", "thinking", "container", "unknown"))
    assert create_fields(body(**nulls))[0] == {"input": INPUT, "max_output_tokens": 100}


def test_a_limit_of_nothing_is_a_warm_up() -> None:
    assert create_fields(body(max_tokens=0))[0] == {"input": INPUT, "generate": False}


def test_what_is_counted_needs_no_limit_and_no_question() -> None:
    messages = [*body()["messages"], {"role": "assistant", "content": "Yes."}]
    create = counted_fields({"messages": messages})
    assert create["input"][:1] == INPUT
    assert len(create["input"]) == 2
    assert counted_fields(body()) == {"input": INPUT}


@pytest.mark.parametrize(
    ("choice", "wire", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"}, True),
    ],
)
def test_a_choice_among_tools_is_the_same_choice(choice: Any, wire: Any, parallel: bool) -> None:
    request = accepted(MESSAGES, body(tools=[TOOL], tool_choice=choice))
    assert request.tool_choice.to_wire() == wire
    assert request.parallel_tool_calls == parallel


@pytest.mark.parametrize(
    ("thinking", "config", "effort"),
    [
        (None, {}, None),
        (None, {"effort": "high"}, None),
        ({"type": "disabled"}, {"effort": "high"}, None),
        ({"type": "enabled", "budget_tokens": 1024}, {}, "medium"),
        ({"type": "adaptive"}, {}, "medium"),
        ({"type": "adaptive", "display": "omitted"}, {"effort": "max"}, "max"),
    ],
)
def test_the_model_thinks_if_it_is_asked_to(
    thinking: Any, config: dict[str, Any], effort: str | None
) -> None:
    request = accepted(MESSAGES, body(thinking=thinking, output_config=config))
    assert request.reasoning.effort == effort
    assert request.reasoning.thinking == (effort is not None)


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "enabled", "display": "omitted"}, False),
    ],
)
def test_thinking_is_shown_unless_it_is_not_wanted(thinking: Any, shown: bool) -> None:
    assert thinking_shown({"thinking": thinking}) == shown
    assert thinking_shown({})


REFUSED = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"n": 2}, "n"),
    ({"user": "u"}, "user"),
    ({"input": "hi"}, "input"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"compaction": {}}, "compaction.type"),
    ({"compaction": {"type": "summarize", "trigger": {}}}, "compaction.trigger"),
    ({"compaction": {"type": "summarize", "instructions": 5}}, "compaction.instructions"),
    ({"compaction": {"type": "summarize", "instructions": "x" * 100_000}},
     "compaction.instructions"),
    ({"compaction": {"type": "summarize"}, "context_management": {"edits": []}}, "compaction"),
    ({"fallbacks": []}, "fallbacks"),
    ({"thread": {}}, "thread"),
    ({"speed": "fast"}, "speed"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"metadata": {"user_id": "u" * 513}}, "metadata.user_id"),
    ({"metadata": {"session": "s"}}, "metadata.session"),
    ({"metadata": "u"}, "metadata"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": "x"}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 1, "keepwarm": {"sampling": {"top_k": 1}}}, "keepwarm.sampling.top_k"),
    ({"stop_sequences": "###"}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    ({"thinking": "yes"}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"context_management": {"edits": [{"type": "clear_everything"}]}},
     "context_management.edits[0].type"),
    ({"context_management": {"edits": [
        {"type": "clear_tool_uses_20250919", "clear_tool_inputs": [1]}]}},
     "context_management.edits[0].clear_tool_inputs[0]"),
    ({"context_management": {"edits": [
        {"type": "clear_tool_uses_20250919", "clear_tool_inputs": "all"}]}},
     "context_management.edits[0].clear_tool_inputs"),
    ({"context_management": {"rules": []}}, "context_management.rules"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "computer_20251124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [TOOL | {"defer_loading": 1}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL | {"allowed_callers": ["code_execution_20250825"]}]},
     "tools[0].allowed_callers[0]"),
    ({"tools": [TOOL | {"allowed_callers": 5}]}, "tools[0].allowed_callers"),
    ({"tools": [TOOL | {"input_examples": {}}]}, "tools[0].input_examples"),
    ({"tools": [TOOL | {"input_schema": None}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"name": None}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
     "tool_choice.disable_parallel_tool_use"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_is_not_served_is_refused_by_its_name_here(fields: dict[str, Any], param: str) -> None:
    error = refused(MESSAGES, body(**fields))
    assert error.keys() - {"details"} == {"type", "message"}
    assert ("details" in error) == (param == "thread")
    assert error["type"] == "invalid_request_error"
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("input[4].call_id", "messages"),
        ("instructions", "system"),
        ("tools[3].parameters.properties.x.not", "tools[3].input_schema.properties.x.not"),
        ("tools[3].parameters", "tools[3].input_schema"),
        ("tools[3].name", "tools[3].name"),
        ("text.format.schema.properties.x", "output_config.format.schema.properties.x"),
        ("max_output_tokens", "max_tokens"),
        ("user", "metadata.user_id"),
        ("keepwarm.sampling.stop[1]", "stop_sequences[1]"),
        ("keepwarm.sampling.top_k", "top_k"),
        ("keepwarm.sampling.seed", "keepwarm.sampling.seed"),
    ],
)
def test_refusals_of_the_server_behind_have_the_names_of_this_endpoint(
    param: str, name: str
) -> None:
    assert NAMES.of(param) == name
