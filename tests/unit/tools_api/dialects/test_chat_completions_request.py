"""Bodies of Chat Completions as requests."""

from typing import Any

import pytest

from tests.support.dialects import accepted, refused
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.chat_completions_request import NAMES, create_fields, usage_wanted

MESSAGES = [{"role": "user", "content": "hi"}]
INPUT = [
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": SCHEMA},
}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES} | fields


def test_a_body_with_everything_becomes_one_request() -> None:
    create, _ = create_fields(
        body(
            model="default",
            tools=[TOOL, {"type": "function", "function": {"name": "g", "strict": True}}],
            tool_choice="required",
            parallel_tool_calls=False,
            response_format={"type": "text"},
            verbosity="low",
            stop=["###"],
            seed=7,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.1,
            logprobs=True,
            top_logprobs=3,
            max_completion_tokens=100,
            n=1,
            modalities=["text"],
            logit_bias={},
            prediction={"type": "content", "content": "hi"},
            stream=True,
            stream_options={"include_usage": True},
            user="u",
            metadata={"a": "b"},
            reasoning_effort="high",
            store=False,
            service_tier="priority",
            safety_identifier="id",
            prompt_cache_key="k",
            keepwarm={"session": "s", "priority": 5},
        )
    )
    assert create == {
        "model": "default",
        "input": INPUT,
        "tools": [
            {
                "type": "function",
                "strict": False,
                "name": "f",
                "description": "d",
                "parameters": SCHEMA,
            },
            {"type": "function", "strict": True, "name": "g"},
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "text": {"verbosity": "low", "format": {"type": "text"}},
        "temperature": 0.5,
        "top_p": 0.9,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "max_output_tokens": 100,
        "user": "u",
        "metadata": {"a": "b"},
        "reasoning": {"effort": "high"},
        "store": False,
        "service_tier": "priority",
        "safety_identifier": "id",
        "prompt_cache_key": "k",
        "keepwarm": {
            "session": "s",
            "priority": 5,
            "sampling": {
                "frequency_penalty": 0.2,
                "presence_penalty": 0.1,
                "seed": 7,
                "stop": ["###"],
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "top_k": 40,
            },
        },
    }


def test_the_server_understands_all_of_it() -> None:
    request = accepted(
        CHAT_COMPLETIONS,
        body(
            tools=[TOOL],
            stop="###",
            seed=7,
            logprobs=True,
            reasoning_effort="low",
            response_format={"type": "json_object"},
        ),
    )
    assert request.keepwarm.sampling.stop == ("###",)
    assert request.keepwarm.sampling.seed == 7
    assert request.num_logprobs == 0
    assert request.reasoning.thinking
    assert request.text_format.type == "json_object"
    assert request.tools[0].parameters == SCHEMA
    assert request.store


def test_a_body_of_messages_alone_asks_for_nothing_else() -> None:
    assert create_fields(body())[0] == {"input": INPUT}
    nulls = dict.fromkeys(("stop", "tools", "seed", "n", "audio", "functions", "unknown"))
    assert create_fields(body(**nulls))[0] == {"input": INPUT}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_limit_is_understood(name: str) -> None:
    assert accepted(CHAT_COMPLETIONS, body(**{name: 5})).max_output_tokens == 5
    for wrong in (0, -1, "5", True, 1.5):
        assert refused(CHAT_COMPLETIONS, body(**{name: wrong}))["param"] == name


def test_both_names_of_the_limit_must_agree() -> None:
    both = {"max_tokens": 5, "max_completion_tokens": 5}
    assert accepted(CHAT_COMPLETIONS, body(**both)).max_output_tokens == 5
    error = refused(CHAT_COMPLETIONS, body(**both | {"max_tokens": 6}))
    assert error["param"] == "max_tokens"


def test_a_schema_for_the_answer_is_enforced() -> None:
    format_ = {
        "type": "json_schema",
        "json_schema": {"name": "out", "schema": SCHEMA, "strict": True, "description": "d"},
    }
    text = accepted(CHAT_COMPLETIONS, body(response_format=format_)).text_format
    assert (text.type, text.name, text.json_schema) == ("json_schema", "out", SCHEMA)
    assert (text.strict, text.description) == (True, "d")


NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (NAMED, {"type": "function", "name": "f"}),
        (
            ALLOWED,
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_a_choice_among_tools_is_the_same_choice(choice: Any, wire: Any) -> None:
    request = accepted(CHAT_COMPLETIONS, body(tools=[TOOL], tool_choice=choice))
    assert request.tool_choice.to_wire() == wire


def test_usage_in_the_stream_is_asked_for() -> None:
    assert usage_wanted({"stream_options": {"include_usage": True}})
    assert not usage_wanted({"stream_options": {"include_obfuscation": False}})
    assert not usage_wanted({})


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [TOOL, {"type": "function", "function": {"name": "g"} | fields}]}


REFUSED = [
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": "1"}, "n", "invalid_type"),
    ({"audio": {"voice": "a"}}, "audio", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities[1]", "unsupported_parameter"),
    ({"functions": []}, "functions", "unsupported_parameter"),
    ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
    ({"logit_bias": {"5": -100}}, "logit_bias", "unsupported_parameter"),
    ({"input": "hi"}, "input", "unsupported_parameter"),
    ({"ignore_eos": True}, "ignore_eos", "unsupported_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": 3}, "logprobs", "invalid_type"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"top_p": -1}, "top_p", "invalid_value"),
    ({"seed": -1}, "seed", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": [""]}, "stop[0]", "invalid_value"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": "x"}, "frequency_penalty", "invalid_type"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"verbosity": "loud"}, "verbosity", "invalid_value"),
    ({"stream_options": {"continuous": True}}, "stream_options.continuous",
     "unsupported_parameter"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ({"keepwarm": {"sampling": {"seed": 1}}, "seed": 1}, "keepwarm.sampling.seed",
     "invalid_value"),
    ({"tools": {}}, "tools", "invalid_type"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type", "unsupported_parameter"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    (function(name=None), "tools[1].function.name", "missing_required_parameter"),
    (function(name="f"), "tools[1].function.name", "invalid_value"),
    (function(parameters=5), "tools[1].function.parameters", "invalid_type"),
    (function(parameters={"type": "array"}), "tools[1].function.parameters",
     "invalid_json_schema"),
    (function(strict="yes"), "tools[1].function.strict", "invalid_type"),
    ({"tool_choice": "always"}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "unsupported_parameter"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function",
     "missing_required_parameter"),
    ({"tool_choice": NAMED}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
     "tool_choice.allowed_tools.mode", "missing_required_parameter"),
    ({"response_format": "json"}, "response_format", "invalid_type"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema",
     "missing_required_parameter"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
     "response_format.json_schema.schema", "missing_required_parameter"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
     "response_format.json_schema.name", "missing_required_parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_what_is_not_served_is_refused_by_its_name_here(
    fields: dict[str, Any], param: str, code: str
) -> None:
    error = refused(CHAT_COMPLETIONS, body(**fields))
    assert (error["param"], error["code"]) == (param, code)
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("input[4].call_id", "messages"),
        ("tools[3].parameters.properties.x.not", "tools[3].function.parameters.properties.x.not"),
        ("tools[3].type", "tools[3].type"),
        ("tools", "tools"),
        ("text.format.schema", "response_format.json_schema.schema"),
        ("text.format", "response_format"),
        ("max_output_tokens", "max_completion_tokens"),
        ("keepwarm.sampling.stop[1]", "stop[1]"),
        ("keepwarm.budget.cost", "keepwarm.budget.cost"),
    ],
)
def test_refusals_of_the_server_behind_have_the_names_of_this_endpoint(
    param: str, name: str
) -> None:
    assert NAMES.of(param) == name
