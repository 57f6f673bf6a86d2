import json
from typing import Any

import pytest

from tools_api.errors import ApiError
from tools_api.items import FunctionCall, FunctionCallOutput, Message
from tools_api.limits import DEFAULT_LIMITS
from tools_api.request_reading import parse_create
from tools_api.requests import (
    CreateRequest,
    KeepwarmOptions,
    RequestBudget,
    SamplingOptions,
    TextFormat,
)


def parse(**fields: Any) -> CreateRequest:
    return parse_create({"type": "response.create", **fields}, None, DEFAULT_LIMITS)


def refusal(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as refused:
        parse(**fields)
    return refused.value.code, refused.value.param


def test_only_an_input_is_needed() -> None:
    request = parse(input="Hi")
    assert request.store
    assert request.generate
    assert request.parallel_tool_calls
    assert request.truncation == "disabled"
    assert request.model is request.temperature is request.max_output_tokens is None
    assert request.num_logprobs is None
    assert request.keepwarm == KeepwarmOptions()


def test_null_equals_absent_for_every_field() -> None:
    names = set(CreateRequest.model_fields) - {"input", "text_format", "verbosity"}
    names |= {"text", "conversation", "prompt", "background", "stream", "stream_options"}
    assert parse(input="Hi", **dict.fromkeys(names)) == parse(input="Hi")


@pytest.mark.parametrize("written", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "x": None}])
def test_a_conversation_is_named_either_way_and_is_the_session(written: object) -> None:
    request = parse(conversation=written)
    assert (request.conversation, request.keepwarm.session) == ("conv_1", "conv_1")
    assert request.input == ()
    assert parse(conversation=written, keepwarm={"session": "conv_1"}).keepwarm.session == "conv_1"


def test_unknown_fields_are_ignored() -> None:
    assert parse(input="Hi", client_metadata={"a": 1}, stream=True) == parse(input="Hi")


ACCEPTED: list[dict[str, Any]] = [
    {"temperature": 0, "top_p": 1},
    {"temperature": 2.0, "top_p": 0.0, "top_logprobs": 20},
    {"max_output_tokens": 1, "max_tool_calls": 1},
    {"truncation": "auto"},
    {"service_tier": "flex"},
    {"include": []},
    {"include": ["reasoning.encrypted_content", "something.new"]},
    {"reasoning": {"effort": "high", "summary": "auto", "other": 1}},
    {"prompt_cache_retention": "24h", "prompt_cache_key": "k"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
    {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    {"keepwarm": {"compaction": {"ahead": True, "instructions": "briefly"}}},
    {"safety_identifier": "s", "user": "u", "background": False},
    {"text": {"verbosity": "low"}},
    {"text": {"format": {"type": "text"}}},
    {"text": {"format": {"type": "json_object"}, "verbosity": None}},
    {"stream_options": {"include_obfuscation": False}, "moderation": {}, "image": {}},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted_fields(fields: dict[str, Any]) -> None:
    parse(input="Hi", **fields)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 1}, "invalid_type", "model"),
    ({"instructions": ["a"]}, "invalid_type", "instructions"),
    ({"previous_response_id": 1}, "invalid_type", "previous_response_id"),
    ({"previous_response_id": ""}, "invalid_value", "previous_response_id"),
    ({"store": "false"}, "invalid_type", "store"),
    ({"generate": 0}, "invalid_type", "generate"),
    ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
    ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "invalid_type", "max_output_tokens"),
    ({"max_output_tokens": True}, "invalid_type", "max_output_tokens"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"temperature": -0.1}, "invalid_value", "temperature"),
    ({"temperature": "1"}, "invalid_type", "temperature"),
    ({"top_p": 1.1}, "invalid_value", "top_p"),
    ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"truncation": "maybe"}, "invalid_value", "truncation"),
    ({"service_tier": "gold"}, "invalid_value", "service_tier"),
    ({"include": "all"}, "invalid_type", "include"),
    ({"include": [1]}, "invalid_type", "include[0]"),
    ({"metadata": []}, "invalid_type", "metadata"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
    ({"reasoning": "high"}, "invalid_type", "reasoning"),
    ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
    ({"prompt_cache_options": {"ttl": "1h"}}, "invalid_value", "prompt_cache_options.ttl"),
    ({"prompt_cache_retention": "1h"}, "invalid_value", "prompt_cache_retention"),
    ({"conversation": 1}, "invalid_type", "conversation"),
    ({"conversation": {}}, "missing_required_parameter", "conversation.id"),
    ({"conversation": "c" * 257}, "invalid_value", "conversation"),
    ({"conversation": "c", "store": False}, "invalid_value", "store"),
    ({"conversation": "c", "previous_response_id": "r"}, "invalid_value", "previous_response_id"),
    ({"conversation": "c", "keepwarm": {"session": "s"}}, "invalid_value", "keepwarm.session"),
    ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
    ({"background": "yes"}, "invalid_type", "background"),
    ({"background": True, "store": False}, "invalid_value", "background"),
    ({"text": "json"}, "invalid_type", "text"),
    ({"text": {"verbosity": "some"}}, "invalid_value", "text.verbosity"),
    ({"text": {"format": "json"}}, "invalid_type", "text.format"),
    ({"text": {"format": {}}}, "missing_required_parameter", "text.format.type"),
    ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "missing_required_parameter",
        "text.format.name",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "n"}}},
        "missing_required_parameter",
        "text.format.schema",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}},
        "invalid_type",
        "text.format.schema",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        "invalid_value",
        "text.format.name",
    ),
    ({"tools": "f"}, "invalid_type", "tools"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"keepwarm": "s"}, "invalid_type", "keepwarm"),
    ({"keepwarm": {"sesion": "s"}}, "invalid_value", "keepwarm.sesion"),
    ({"keepwarm": {"session": ""}}, "invalid_value", "keepwarm.session"),
    ({"keepwarm": {"session": "a\n"}}, "invalid_value", "keepwarm.session"),
    ({"keepwarm": {"session": "a" * 257}}, "invalid_value", "keepwarm.session"),
    ({"keepwarm": {"session": "a\0"}}, "invalid_value", "keepwarm.session"),
    ({"metadata": {"keepwarm.session": "a\0"}}, "invalid_value", "keepwarm.session"),
    ({"keepwarm": {"parent_session": "a\0"}}, "invalid_value", "keepwarm.parent_session"),
    ({"keepwarm": {"request_id": "\0"}}, "invalid_value", "keepwarm.request_id"),
    ({"previous_response_id": "resp_\0"}, "invalid_value", "previous_response_id"),
    (
        {"prompt_cache_options": {"comparison_response_id": "\0"}},
        "invalid_value",
        "prompt_cache_options.comparison_response_id",
    ),
    ({"keepwarm": {"request_id": ""}}, "invalid_value", "keepwarm.request_id"),
    ({"keepwarm": {"request_id": "a\n"}}, "invalid_value", "keepwarm.request_id"),
    ({"keepwarm": {"request_id": "a" * 257}}, "invalid_value", "keepwarm.request_id"),
    ({"keepwarm": {"on_disconnect": "stay"}}, "invalid_value", "keepwarm.on_disconnect"),
    ({"keepwarm": {"budget": 5}}, "invalid_type", "keepwarm.budget"),
    ({"keepwarm": {"budget": {"output": -1}}}, "invalid_value", "keepwarm.budget.output"),
    ({"keepwarm": {"budget": {"cost": -0.1}}}, "invalid_value", "keepwarm.budget.cost"),
    ({"keepwarm": {"budget": {"tokens": 1}}}, "invalid_value", "keepwarm.budget.tokens"),
    ({"keepwarm": {"budget": {"scope": "day"}}}, "invalid_value", "keepwarm.budget.scope"),
    ({"keepwarm": {"priority": 101}}, "invalid_value", "keepwarm.priority"),
    ({"keepwarm": {"deadline_ms": 0}}, "invalid_value", "keepwarm.deadline_ms"),
    ({"keepwarm": {"expected_tool_ms": -1}}, "invalid_value", "keepwarm.expected_tool_ms"),
    ({"keepwarm": {"sampling": []}}, "invalid_type", "keepwarm.sampling"),
    ({"keepwarm": {"sampling": {"topk": 1}}}, "invalid_value", "keepwarm.sampling.topk"),
    ({"keepwarm": {"sampling": {"top_k": -1}}}, "invalid_value", "keepwarm.sampling.top_k"),
    ({"keepwarm": {"sampling": {"min_p": 1.1}}}, "invalid_value", "keepwarm.sampling.min_p"),
    ({"keepwarm": {"sampling": {"seed": 2**63}}}, "invalid_value", "keepwarm.sampling.seed"),
    ({"keepwarm": {"sampling": {"stop": 1}}}, "invalid_type", "keepwarm.sampling.stop"),
    ({"keepwarm": {"sampling": {"stop": [1]}}}, "invalid_type", "keepwarm.sampling.stop[0]"),
    ({"keepwarm": {"sampling": {"stop": [""]}}}, "invalid_value", "keepwarm.sampling.stop[0]"),
    (
        {"keepwarm": {"sampling": {"presence_penalty": 2.5}}},
        "invalid_value",
        "keepwarm.sampling.presence_penalty",
    ),
    (
        {"keepwarm": {"sampling": {"repetition_penalty": 0.009}}},
        "invalid_value",
        "keepwarm.sampling.repetition_penalty",
    ),
    ({"keepwarm": {"traceparent": "00-abc"}}, "invalid_value", "keepwarm.traceparent"),
    ({"keepwarm": {"stats": 1}}, "invalid_type", "keepwarm.stats"),
    ({"keepwarm": {"tools": {}}}, "invalid_type", "keepwarm.tools"),
    (
        {"keepwarm": {"tools": [{"ms": 1}]}},
        "missing_required_parameter",
        "keepwarm.tools[0].call_id",
    ),
    (
        {"keepwarm": {"tools": [{"call_id": "c", "ms": -1}]}},
        "invalid_value",
        "keepwarm.tools[0].ms",
    ),
    (
        {"keepwarm": {"tools": [{"call_id": "c", "ms": 3.2e10}]}},
        "invalid_value",
        "keepwarm.tools[0].ms",
    ),
    (
        {"keepwarm": {"tools": [{"call_id": "c", "more": 1}]}},
        "invalid_value",
        "keepwarm.tools[0].more",
    ),
    ({"keepwarm": {"tools": [{"call_id": "c"}] * 65}}, "invalid_value", "keepwarm.tools"),
    ({"keepwarm": {"tools": [0] * 10**6}}, "invalid_value", "keepwarm.tools"),
    ({"keepwarm": {"labels": ["a"]}}, "invalid_type", "keepwarm.labels"),
    ({"keepwarm": {"labels": {"a": 1}}}, "invalid_type", "keepwarm.labels.a"),
    ({"keepwarm": {"labels": {"a": ""}}}, "invalid_value", "keepwarm.labels.a"),
    ({"keepwarm": {"labels": {"a": "x" * 257}}}, "invalid_value", "keepwarm.labels.a"),
    ({"keepwarm": {"labels": {"a": "x\ny"}}}, "invalid_value", "keepwarm.labels.a"),
    ({"keepwarm": {"labels": {str(n): "x" for n in range(9)}}}, "invalid_value", "keepwarm.labels"),
    (
        {"keepwarm": {"labels": {str(n): "x" for n in range(500)}}},
        "invalid_value",
        "keepwarm.labels",
    ),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_fields(fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(input="Hi", **fields) == (code, param)


def test_an_input_may_be_absent_from_a_warm_up_and_a_continuation() -> None:
    missing = ("missing_required_parameter", "input")
    assert refusal() == missing
    assert refusal(generate=True) == missing
    assert refusal(prompt_cache_options={"prewarm": False}) == missing
    assert parse(generate=False).input == ()
    assert parse(previous_response_id="resp_1").input == ()
    assert parse(input=[], generate=False).input == ()


def test_prewarm_overrides_generate() -> None:
    request = parse(generate=True, prompt_cache_options={"prewarm": True})
    assert not request.generate
    assert refusal(prompt_cache_options={"prewarm": 1}, input="Hi") == (
        "invalid_type",
        "prompt_cache_options.prewarm",
    )


def test_the_vendor_object_is_read_whole() -> None:
    options = parse(
        input="Hi",
        keepwarm={
            "session": "sess_42",
            "budget": {"input_uncached": 50000, "output": 4000, "cost": 0.25, "scope": "session"},
            "priority": 10,
            "deadline_ms": 1500,
            "expected_tool_ms": 2000,
            "sampling": {"top_k": 40, "min_p": 0.05, "seed": 7, "stop": ["###"]},
            "lenient": False,
            "stats": True,
        },
    ).keepwarm
    assert options == KeepwarmOptions(
        session="sess_42",
        budget=(RequestBudget(input_uncached=50000, output=4000, cost=0.25),),
        priority=10,
        deadline_ms=1500,
        expected_tool_ms=2000,
        sampling=SamplingOptions(top_k=40, min_p=0.05, seed=7, stop=("###",)),
    )


def test_the_fields_that_are_read_stay_as_they_are() -> None:
    options = {"budget": {"output": 1}, "sampling": {"seed": 7, "stop": "x"}}
    raw = {"input": "hi", "keepwarm": options, "metadata": {"keepwarm.session": "s"}}
    before = json.dumps(raw)
    assert parse(**raw) == parse(**raw)
    assert json.dumps(raw) == before


def test_one_stop_string_needs_no_array() -> None:
    assert parse(input="Hi", keepwarm={"sampling": {"stop": "#"}}).keepwarm.sampling.stop == ("#",)


def test_metadata_stands_in_for_the_vendor_object() -> None:
    metadata = {"keepwarm.session": "s", "keepwarm.budget": '{"output": 5}', "other": "x"}
    request = parse(input="Hi", metadata=metadata)
    assert request.metadata == metadata, "echoed as it came"
    assert request.keepwarm == KeepwarmOptions(session="s", budget=(RequestBudget(output=5),))


def test_the_vendor_object_precedes_metadata() -> None:
    request = parse(
        input="Hi",
        metadata={"keepwarm.session": "m", "keepwarm.budget": "not read"},
        keepwarm={"session": "k", "budget": {"cost": 1}},
    )
    assert request.keepwarm == KeepwarmOptions(session="k", budget=(RequestBudget(cost=1.0),))


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("4000", "invalid_type", "metadata.keepwarm.budget"),
        ("{", "invalid_value", "metadata.keepwarm.budget"),
        ('{"tokens": 1}', "invalid_value", "metadata.keepwarm.budget.tokens"),
    ],
)
def test_a_faulty_budget_in_metadata_is_refused(text: str, code: str, param: str) -> None:
    assert refusal(input="Hi", metadata={"keepwarm.budget": text}) == (code, param)


def test_a_text_format_is_echoed_with_its_schema_as_sent() -> None:
    written = {
        "type": "json_schema",
        "name": "answer",
        "schema": {"type": "object", "properties": {"b": {}, "a": {"default": None}}},
        "description": None,
        "strict": True,
    }
    request = parse(input="Hi", text={"format": written, "verbosity": "high"})
    assert request.text_format.to_wire() == written
    assert json.dumps(request.text_format.to_wire()["schema"]) == json.dumps(written["schema"])
    assert request.verbosity == "high"
    assert TextFormat().to_wire() == {"type": "text"}


AGENTS_TURN = json.loads("""
{"type": "response.create", "instructions": "Be brief.", "model": "m",
 "input": [{"content": "Weather in Oslo?", "role": "user"},
  {"arguments": "{\\"city\\": \\"Oslo\\"}", "call_id": "call_1", "name": "get_weather",
   "type": "function_call", "id": "fc_1", "status": "completed"},
  {"call_id": "call_1", "output": "21", "type": "function_call_output"}],
 "include": [],
 "tools": [{"name": "get_weather", "parameters": {"properties": {"city": {"title": "City",
   "type": "string"}, "days": {"default": 1, "title": "Days", "type": "integer"}},
   "required": ["city", "days"], "title": "get_weather_args", "type": "object",
   "additionalProperties": false}, "strict": true, "type": "function", "description": "Weather."},
  {"name": "now", "parameters": {"properties": {}, "title": "now_args", "type": "object",
   "additionalProperties": false, "required": []}, "strict": true, "type": "function",
   "description": "Time."}],
 "temperature": 0.0, "parallel_tool_calls": false, "stream": true,
 "text": {"format": {"type": "json_schema", "name": "final_output", "schema": {"properties":
   {"city": {"title": "City", "type": "string"}, "note": {"anyOf": [{"type": "string"},
    {"type": "null"}], "title": "Note"}, "unit": {"enum": ["c", "f"], "title": "Unit",
    "type": "string"}, "temps": {"items": {"type": "integer"}, "maxItems": 3, "minItems": 1,
    "title": "Temps", "type": "array"}}, "required": ["city", "note", "unit", "temps"],
   "title": "Out", "type": "object", "additionalProperties": false}, "strict": true}},
 "metadata": {"a": "b"}, "keepwarm": {"session": "s1"}}
""")


def test_a_turn_as_openai_agents_sends_it_is_read() -> None:
    """Recorded from openai-agents 0.24.0: two tools, an output type, ``extra_body``."""
    request = parse(**{key: value for key, value in AGENTS_TURN.items() if key != "type"})
    assert [type(item) for item in request.input] == [Message, FunctionCall, FunctionCallOutput]
    assert [tool.name for tool in request.tools] == ["get_weather", "now"]
    assert request.text_format.json_schema == AGENTS_TURN["text"]["format"]["schema"]
    assert request.keepwarm.session == "s1"
    assert not request.parallel_tool_calls
    assert request.temperature == 0.0


def test_how_a_request_travels_is_no_part_of_what_it_asks() -> None:
    def digest(**fields: Any) -> bytes:
        options = {"request_id": "a"} | fields.pop("keepwarm", {})
        return parse(input="Hi", keepwarm=options, **fields).body_digest

    assert parse(input="Hi").body_digest == b""
    one = digest(metadata={"a": "1", "b": "2"})
    assert digest(stream=True, metadata={"b": "2", "a": "1"}, user=None) == one
    assert digest(keepwarm={"request_id": "b"}, metadata={"a": "1", "b": "2"}) == one
    retried = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    assert digest(keepwarm=retried, metadata={"a": "1", "b": "2"}) == one
    others = [digest(), digest(metadata={"a": "1"}), digest(keepwarm={"session": "s"})]
    assert len({one, *others}) == 4
