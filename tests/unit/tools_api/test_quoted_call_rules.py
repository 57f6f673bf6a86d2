"""Schemas as rules of Gemma 4's calls: what they let pass is read as calls that fit."""

import json
import random
from typing import Any

import jsonschema
import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from tests.support import chat_models
from tests.support.chat_models import spelled
from tests.support.grammars import compiler, random_output
from tests.unit.tools_api.test_quoted_calls import cut, parse
from tools_api.chat_format import TemplateOptions
from tools_api.errors import ApiError
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.parsed_events import CallDone, ParsedText
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

CLOSED = {"type": "object", "additionalProperties": False}
TEXT = {"type": "string", "maxLength": 4}
NODE = {
    **CLOSED,
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a text and a number": {
        "properties": {"city": TEXT, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
    },
    "none": {"properties": {}},
    "enums": {
        "properties": {
            "a": {"enum": ["x,}", "", 3, None, True]},
            "b": {"const": ""},
            "c": {"enum": [[1, "a"], {"k": "v", "A": []}]},
        },
        "required": ["a", "b", "c"],
    },
    "objects inside": {
        "properties": {
            "o": {
                **CLOSED,
                "properties": {
                    "z": {"type": "boolean"},
                    "A": {**CLOSED, "properties": {"t": TEXT}, "required": ["t"]},
                },
                "required": ["z"],
            }
        },
        "required": ["o"],
    },
    "lists": {
        "properties": {
            "l": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
            "m": {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
            "t": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, TEXT],
                "items": False,
                "minItems": 1,
            },
            "n": {"type": "array", "maxItems": 0},
        },
        "required": ["l", "m", "t", "n"],
    },
    "alternatives": {
        "properties": {
            "a": {"anyOf": [TEXT, {"type": "number"}, {"type": "array", "items": TEXT}]},
            "b": {"type": ["string", "null"], "pattern": "^[a-c]+$"},
            "c": {
                "oneOf": [
                    {**CLOSED, "properties": {"k": {"const": "x"}}, "required": ["k"]},
                    {**CLOSED, "properties": {"k": {"const": "y"}, "n": TEXT}, "required": ["k"]},
                ]
            },
        },
        "required": ["a", "b", "c"],
    },
    "anything": {"properties": {"x": {}}, "required": ["x"]},
    "itself": {
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "required": ["node"],
        "$defs": {"node": NODE},
    },
    "many": {"properties": {f"k{i}": {"type": "boolean"} for i in range(12)}, "required": ["k3"]},
}


def tool_of(schema: dict[str, Any], name: str = "f") -> FunctionTool:
    return FunctionTool(name=name, parameters={**CLOSED, **schema})


def spec_of(
    *tools: FunctionTool, choice: ToolChoice | None = None, parallel: bool = False
) -> GrammarSpec:
    spec = grammar_for(
        chat_models.served("gemma4").chat_format,
        tools,
        choice or ToolChoice(mode="required"),
        parallel_tool_calls=parallel,
        text_format=TextFormat(),
        options=TemplateOptions(),
    )
    assert spec is not None
    return spec


def state_of(spec: GrammarSpec) -> GrammarState:
    model = chat_models.served("gemma4")
    return GrammarState(compiler(model.tokenizer).compile(spec), model.tokenizer)


def drawn(spec: GrammarSpec, rng: random.Random, most: int = 3000) -> str:
    model = chat_models.served("gemma4")
    state = state_of(spec)
    tokens = random_output(state, model.tokenizer, most, rng)
    assert state.ended
    return spelled(model, tokens)


def passes(spec: GrammarSpec, text: str) -> bool:
    model = chat_models.served("gemma4")
    tokens = model.tokenizer.encode(cut(text)).tolist()
    state = state_of(spec)
    for token in tokens:
        if state.validate([token]) != 1:
            return False
        state.advance([token])
    return state.ended


def done(text: str) -> list[CallDone]:
    found = parse([cut(text)])
    assert not any(isinstance(event, ParsedText) for event in found)
    return [event for event in found if isinstance(event, CallDone)]


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(4))
def test_what_the_rules_let_pass_is_read_as_a_call_that_fits(name: str, seed: int) -> None:
    tool = tool_of(SCHEMAS[name])
    text = drawn(spec_of(tool), random.Random(seed))
    assert text.endswith("<tool_call|><|tool_response>")
    (call,) = done(text)
    assert call.complete
    jsonschema.validate(json.loads(call.arguments or ""), tool.parameters)


CITY = tool_of(SCHEMAS["a text and a number"])
INSIDE = tool_of(SCHEMAS["objects inside"])
LISTS = tool_of(SCHEMAS["lists"])
OTHERS = FunctionTool(
    name="f",
    parameters={
        "type": "object",
        "properties": {
            "o": {
                "type": "object",
                "properties": {"a": TEXT},
                "additionalProperties": {"type": "integer"},
                "required": ["a"],
            }
        },
    },
)


@pytest.mark.parametrize(
    ("tool", "body", "passed"),
    [
        (CITY, 'city:<|"|>Oslo<|"|>', True),
        (CITY, 'city:<|"|>Oslo<|"|>,days:3', True),
        (CITY, 'days:3,city:<|"|>Oslo<|"|>', True),
        (CITY, "days:3", False),
        (CITY, 'city:<|"|>Tromsø<|"|>', False),
        (CITY, 'city:<|"|>Oslo<|"|>,days:0', False),
        (CITY, 'city:<|"|>Oslo<|"|>,city:<|"|>Rome<|"|>', False),
        (CITY, 'city:<|"|>Oslo<|"|>,more:1', False),
        (CITY, 'city: <|"|>Oslo<|"|>', False),
        (INSIDE, 'o:{A:{t:<|"|>,}<|"|>},z:true}', True),
        (INSIDE, "o:{z:true}", True),
        (INSIDE, "o:{z:true,A:{}}", False),
        (INSIDE, 'o:{z:true,A:{t:<|"|>a<|"|>}}', False),
        (OTHERS, 'o:{Content-Type:1,a:<|"|>x<|"|>,b c:2}', True),
        (OTHERS, 'o:{a:<|"|>x<|"|>,é:-3}', True),
        (OTHERS, 'o:{a:<|"|>x<|"|>,b:<|"|>x<|"|>}', False),
        (OTHERS, "o:{b:1}", False),
        (OTHERS, "o:{a:1}", False),
        (OTHERS, 'o:{a:<|"|>x<|"|>, b:1}', False),
        (OTHERS, 'o:{a:<|"|>x<|"|>,b :1}', False),
        (LISTS, 'l:[<|"|>a<|"|>],m:[[null],[]],n:[],t:[1]', True),
        (LISTS, 'l:[],m:[],n:[],t:[1,<|"|>b<|"|>]', False),
        (LISTS, 'l:[<|"|>a<|"|>],m:[],n:[],t:[1,<|"|>b<|"|>,2]', False),
    ],
)
def test_members_inside_are_in_order_and_arguments_in_any(
    tool: FunctionTool, body: str, passed: bool
) -> None:
    text = f"<|tool_call>call:f{{{body}}}<tool_call|><|tool_response>"
    assert passes(spec_of(tool), text) is passed


def test_calls_are_as_many_as_may_be_and_of_the_tool_that_is_chosen() -> None:
    tools = (tool_of({}, "f"), tool_of({}, "g"))
    one, other = ("<|tool_call>call:f{}<tool_call|>", "<|tool_call>call:g{}<tool_call|>")
    end = "<|tool_response>"
    assert passes(spec_of(*tools), one + end)
    assert not passes(spec_of(*tools), one + other + end)
    assert passes(spec_of(*tools, parallel=True), one + other + one + end)
    assert not passes(spec_of(*tools, parallel=True), one + "<turn|>")
    named = ToolChoice(mode="required", named=True, names=("g",))
    assert passes(spec_of(*tools, choice=named), other + end)
    assert not passes(spec_of(*tools, choice=named), one + end)
    auto = spec_of(*tools, choice=ToolChoice(mode="auto"), parallel=True)
    assert (auto.trigger, auto.after) == ("<|tool_call>", None)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a": {}}},
        {"properties": {"a b": {}, "c:d": {}}},
        {"properties": {"o": {"type": "object", "patternProperties": {"^a": {}}}}},
        {"properties": {"o": {"enum": [{"a,b": 1}]}}},
        {"properties": {"l": {"type": "array", "minItems": 2, "maxItems": 1}}},
    ],
)
def test_what_cannot_be_written_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        spec_of(tool_of(schema))
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param == "tools[0].parameters"


def test_keywords_that_no_grammar_holds_are_refused_as_elsewhere() -> None:
    spec = spec_of(tool_of({"properties": {"a": {"not": {"type": "string"}}}}))
    with pytest.raises(GrammarRefused):
        state_of(spec)
    assert done(drawn(spec_of(tool_of({"properties": {"not": TEXT, "if": TEXT}})),
                      random.Random(0)))  # fmt: skip
