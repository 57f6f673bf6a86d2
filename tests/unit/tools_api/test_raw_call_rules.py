"""Calls between tags, bound: what a schema accepts can be written, and nothing else can."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from tests.support.chat_models import served
from tools_api.chat_format import Segment, SegmentWriter, TemplateOptions
from tools_api.errors import ApiError
from tools_api.grammar import grammar_for, param_at
from tools_api.items import FunctionCall
from tools_api.raw_call_rules import RawCallRules
from tools_api.raw_calls import RawCalls, write_raw_calls
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

RAW = ("qwen3-coder", "glm4.5", "glm4.7", "minimax-m2")


@cache
def compiler(name: str) -> GrammarCompiler:
    return GrammarCompiler(served(name).tokenizer, max_cache_bytes=1 << 26)


def compiled(name: str, parameters: dict[str, Any]) -> CompiledGrammar:
    spec = grammar_for(
        served(name).chat_format,
        [FunctionTool(name="f", parameters=parameters)],
        ToolChoice(mode="required"),
        parallel_tool_calls=True,
        text_format=TextFormat(),
        options=TemplateOptions(),
    )
    assert spec is not None
    return compiler(name).compile(spec)


def is_legal(name: str, parameters: dict[str, Any], calls: Sequence[dict[str, Any]]) -> bool:
    """Whether the calls, written as the renderer writes them, are a whole output."""
    model = served(name)
    out = SegmentWriter(lambda token: model.tokenizer.special_id(token) is not None)
    syntax = model.chat_format.calls
    assert isinstance(syntax, RawCalls)
    write_raw_calls(
        out,
        syntax,
        [FunctionCall(call_id="c", name="f", arguments=json.dumps(call)) for call in calls],
    )
    matcher = compiled(name, parameters).pristine.deep_copy()
    tokens = model.tokenizer.encode(out.segments).tolist()
    return matcher.validate_tokens(tokens) == len(tokens) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": schema}, "required": ["k"], **more}


@pytest.mark.samples(20)
@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize(
    ("schema", "legal", "illegal"),
    [
        ({"type": "string"}, ["", "a\n", "12", "{}", '"', "a < b </"], []),
        ({"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "\n\n"], ["a", ""]),
        ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
        ({"type": "string", "pattern": "a|^b"}, ["xa", "bx"], ["xb"]),
        ({"enum": ["red", "", 7, None]}, ["red", "", 7, None], ["re", 8]),
        ({"const": "x</y>"}, ["x</y>"], ["x"]),
        ({"type": "integer", "minimum": 3}, [3, 10**20], [2, "a"]),
        ({"type": ["string", "null"]}, ["nullable", None], []),
        ({"type": ["string", "integer"], "maxLength": 1}, ["a", 12], ["ab"]),
        ({"type": "boolean"}, [True, False], ["maybe", None]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["a", "b"]], [[1], "a"]),
        (
            {"anyOf": [{"type": "string"}, of({"type": "integer"}, additionalProperties=False)]},
            ["k", "12", {"k": 1}],
            ["{k: 1}", {"k": "a"}],
        ),
        ({"type": "string", "format": "date"}, ["2026-02-28"], ["2026-02-30"]),
        ({"allOf": [{"type": "string"}, {"maxLength": 2}]}, ["ab"], ["abc"]),
    ],
)
def test_values_that_a_schema_accepts_can_be_written_and_no_others(
    name: str, schema: Any, legal: list[Any], illegal: list[Any]
) -> None:
    for value in legal:
        assert is_legal(name, of(schema), [{"k": value}]), value
    for value in illegal:
        assert not is_legal(name, of(schema), [{"k": value}]), value


@pytest.mark.parametrize("name", ["qwen3-coder", "minimax-m2"])
def test_no_string_holds_the_tag_that_closes_it(name: str) -> None:
    assert not is_legal(name, of({"type": "string"}), [{"k": "a</parameter>b"}])
    assert is_legal(name, of({"type": "string"}), [{"k": "a</Parameter>b"}])


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("count", [1, 3, 5, 8])
@pytest.mark.parametrize("seed", [0])
def test_arguments_come_in_any_order_each_once_and_all_that_are_required(
    name: str, count: int, seed: int
) -> None:
    rng, keys = random.Random(seed), [f"k{i}" for i in range(count)]
    required = rng.sample(keys, count // 2)
    parameters = {
        "type": "object",
        "properties": {key: {"type": "integer"} for key in keys},
        "required": required,
    }
    for _ in range(20):
        some = rng.sample(keys, rng.randint(0, count))
        call = dict.fromkeys(some, 1)
        assert is_legal(name, parameters, [call]) == set(required).issubset(some)


@pytest.mark.parametrize("name", RAW)
def test_more_arguments_come_in_groups_and_undeclared_ones_where_the_schema_has_them(
    name: str,
) -> None:
    keys = [f"k{i}" for i in range(20)]
    many = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}}
    assert is_legal(name, many, [dict.fromkeys(keys, 1)])
    assert is_legal(name, many, [dict.fromkeys([*keys[7::-1], *keys[8:]], 1)])
    assert not is_legal(name, many, [{"other": 1}])
    free = many | {"additionalProperties": {"type": "string"}}
    assert is_legal(name, free, [{"other": "a", "k3": 1, "third": "b"}])
    assert not is_legal(name, free, [{"other": "a", "k3": "no"}])


@pytest.mark.parametrize("name", RAW)
def test_calls_follow_one_another(name: str) -> None:
    assert is_legal(name, of({"type": "string"}), [{"k": "a"}, {"k": "b\n"}, {"k": ""}])


def test_objects_that_are_put_together_have_the_arguments_of_their_parts() -> None:
    parameters = {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/a"}],
        "anyOf": [
            {"properties": {"x": {"type": "string"}}, "required": ["x"]},
            {"properties": {"y": {"type": "integer"}}, "required": ["y"]},
        ],
        "properties": {"loop": {"$ref": "#/$defs/loop"}},
        "$defs": {
            "a": {"properties": {"loop": {"type": "object"}}},
            "loop": {
                "type": "object",
                "properties": {"in": {"$ref": "#/$defs/loop"}},
                "additionalProperties": False,
            },
        },
    }
    assert is_legal("qwen3-coder", parameters, [{"x": "a", "loop": {"in": {"in": {}}}}])
    assert not is_legal("qwen3-coder", parameters, [{"loop": {"in": 1}, "x": "a"}])


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "patternProperties": {"a": {}}},
        of({"type": "string"}, minProperties=2),
        {"type": "object", "properties": {"a\nb": {"type": "string"}}},
        {"type": "object", "properties": {"a>b": {"type": "string"}}},
    ],
)
def test_an_object_that_cannot_be_written_by_names_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="this model") as refused:
        compiled("qwen3-coder", parameters)
    assert refused.value.param == "tools[0].parameters"


def test_a_keyword_that_is_refused_in_json_is_refused_in_text() -> None:
    with pytest.raises(GrammarRefused, match="'not' is not supported"):
        compiled("qwen3-coder", of({"type": "string", "not": {"const": "a"}}))


def test_a_refusal_leads_to_the_tool() -> None:
    spec = compiled("qwen3-coder", of({"type": "integer"})).spec
    params = {param_at(spec.lark, line + 1) for line in range(spec.lark.count("\n"))}
    assert params == {None, "tools[0].parameters"}


def test_plain_input_stands_behind_the_name() -> None:
    assert RawCallRules.__name__ in repr(RawCallRules)
    text = [Segment("<tool_call>", True), Segment("\n<function=f>\n")]
    tokens = served("qwen3-coder").tokenizer.encode(text).tolist()
    matcher = compiled("qwen3-coder", of({"type": "string"})).pristine.deep_copy()
    assert matcher.validate_tokens(tokens) == len(tokens)


@pytest.mark.parametrize("name", RAW)
def test_an_argument_that_no_value_satisfies_is_left_out_or_refused(name: str) -> None:
    impossible = {"type": "boolean", "enum": ["dontcare"]}
    parameters = {"type": "object", "properties": {"k": impossible, "l": {"type": "integer"}}}
    assert is_legal(name, parameters, [{"l": 1}])
    assert not is_legal(name, parameters, [{"k": "dontcare"}])
    with pytest.raises(ApiError, match="no value satisfies"):
        compiled(name, parameters | {"required": ["k"]})
