"""Schemas as rules of MiniMax M3's calls: what they let pass is read as calls that fit."""

import functools
import json
import random
from typing import Any

import jsonschema
import pytest

from benchmarks.call_reading import is_valid
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from tests.support import chat_models
from tests.support.chat_models import spelled
from tests.support.grammars import compiler, random_output
from tests.unit.tools_api.test_call_parser import segments
from tests.unit.tools_api.test_tagged_call_reader import SPECIALS
from tests.unit.tools_api.test_tagged_calls import MARK, NAMES
from tools_api.call_parser import CallParser
from tools_api.call_writing import write_calls
from tools_api.chat_format import Segment, SegmentWriter, TemplateOptions
from tools_api.custom_input import CustomFormat
from tools_api.errors import ApiError
from tools_api.exact_json import written
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.items import FunctionCall
from tools_api.parsed_events import CallDone, ParsedText
from tools_api.requests import TextFormat
from tools_api.tagged_places import Place, reads_back
from tools_api.tools import FunctionTool, ToolChoice

END = "[e~["
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
            "a": {"enum": ["x,}", "", "3", 3, None, True]},
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
            "d": {"type": ["array", "object"], "items": {"type": "null"}, "maxItems": 1},
        },
        "required": ["a", "b", "c", "d"],
    },
    "one name of two types": {
        "properties": {
            "o": {
                "anyOf": [
                    {**CLOSED, "properties": {"k": {"const": "s"}, "v": TEXT}, "required": ["v"]},
                    {**CLOSED, "properties": {"v": {"type": "integer"}}, "required": ["v"]},
                ]
            }
        },
        "required": ["o"],
    },
    "names that are not told": {
        "properties": {
            "o": {
                "type": "object",
                "additionalProperties": TEXT,
                "properties": {"n": {"type": "null"}},
            }
        },
        "required": ["o"],
    },
    "anything": {"properties": {"x": {}}, "required": ["x"]},
    "itself": {
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "required": ["node"],
        "$defs": {"node": NODE},
    },
    "many": {"properties": {f"k{i}": {"type": "boolean"} for i in range(12)}, "required": ["k3"]},
}  # fmt: skip


def tool_of(schema: dict[str, Any], name: str = "f") -> FunctionTool:
    return FunctionTool(name=name, parameters={**CLOSED, **schema})


def spec_of(
    *tools: FunctionTool,
    choice: ToolChoice | None = None,
    parallel: bool = False,
    thinking: bool = False,
    name: str = NAMES[0],
) -> GrammarSpec:
    spec = grammar_for(
        chat_models.served(name).chat_format,
        tools,
        choice or ToolChoice(mode="required"),
        parallel_tool_calls=parallel,
        text_format=TextFormat(),
        options=TemplateOptions(thinking=thinking),
    )
    assert spec is not None
    return spec


@functools.cache
def compiled(spec: GrammarSpec, name: str) -> CompiledGrammar:
    return compiler(chat_models.served(name).tokenizer).compile(spec)


def state_of(spec: GrammarSpec, name: str = NAMES[0]) -> GrammarState:
    return GrammarState(compiled(spec, name), chat_models.served(name).tokenizer)


def drawn(spec: GrammarSpec, rng: random.Random, name: str = NAMES[0]) -> str:
    model = chat_models.served(name)
    state = state_of(spec, name)
    tokens = random_output(state, model.tokenizer, 500, rng)
    assert state.ended
    return spelled(model, tokens)


def cut(text: str, name: str) -> list[Segment]:
    tags = ("<tool_call>", "</tool_call>") if name == NAMES[1] else ()
    return segments(text, (*SPECIALS, *tags))


def passes(spec: GrammarSpec, text: str | list[Segment], name: str = NAMES[0]) -> bool:
    tokenizer = chat_models.served(name).tokenizer
    given = cut(text.replace("^", MARK), name) if isinstance(text, str) else text
    matcher = compiled(spec, name).pristine.deep_copy()
    tokens = tokenizer.encode(given).tolist()
    return matcher.validate_tokens(tokens) == len(tokens) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


def done(output: str | list[Segment], tool: FunctionTool, name: str = NAMES[0]) -> list[CallDone]:
    parser = CallParser(chat_models.served(name).chat_format, False, tools=[tool])
    given = cut(output, name) if isinstance(output, str) else output
    found = [*parser.push(given), *parser.finish()]
    assert not any(isinstance(event, ParsedText) for event in found)
    return [event for event in found if isinstance(event, CallDone)]


def whole(body: str) -> str:
    return f'^<tool_call>\n^<invoke name="f">{body}^</invoke>\n^</tool_call>'


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(4))
def test_what_the_rules_let_pass_is_read_as_a_call_that_fits(name: str, seed: int) -> None:
    tool, model = tool_of(SCHEMAS[name]), NAMES[seed % 2]
    text = drawn(spec_of(tool, name=model), random.Random(seed), model)
    assert text.endswith(f"{MARK}</tool_call>{END}")
    (call,) = done(text, tool, model)
    assert call.complete
    jsonschema.validate(json.loads(call.arguments or ""), tool.parameters)


def sample(schema: dict[str, Any], root: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A value of one of the schemas above."""
    if "$ref" in schema:
        return sample(root["$defs"]["node"], root, rng, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return sample(rng.choice(schema[key]), root, rng, depth)
    if "const" in schema or "enum" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    kinds = schema.get("type", ["string", "number", "null", "array", "object"])
    kind = rng.choice(kinds if isinstance(kinds, list) else [kinds])
    match kind:
        case "string":
            words = ("", "a", "5", "null", "<k>", "é\n", " b ", "abc")
            return "abc" if "pattern" in schema else rng.choice(words)
        case "integer" | "number":
            return rng.randint(1, 9)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            first = schema.get("prefixItems", [])
            if "items" in schema and schema["items"] is False:
                return [sample(each, root, rng, depth) for each in first[: rng.randint(1, 2)]]
            most = min(schema.get("maxItems", 3), 3 if depth < 2 else 1)
            size = rng.randint(min(schema.get("minItems", 0), most), most)
            return [sample(schema.get("items", {}), root, rng, depth + 1) for _ in range(size)]
    members = {
        key: sample(inner, root, rng, depth + 1)
        for key, inner in schema.get("properties", {}).items()
        if key in schema.get("required", ()) or (rng.random() < 0.5 and depth < 4)
    }
    more = schema.get("additionalProperties", {})
    if more is not False and depth < 3 and rng.random() < 0.7:
        members["more"] = sample(more, root, rng, depth + 1)
    return members


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_schema_accepts_passes_where_it_is_read_as_the_same(name: str) -> None:
    """All of it and nothing else, whatever kinds of values there are."""
    tool, rng = tool_of(SCHEMAS[name]), random.Random(name)
    place, spec = Place(tool.parameters, tool.parameters), spec_of(tool_of(SCHEMAS[name]))
    syntax = chat_models.served(NAMES[0]).chat_format.calls
    assert syntax is not None
    told = set()
    for _ in range(30):
        given = sample(tool.parameters, tool.parameters, rng)
        jsonschema.validate(given, tool.parameters)
        out = SegmentWriter(lambda _: True)
        text = written(given)
        write_calls(out, syntax, [FunctionCall(call_id="c", name="f", arguments=text)])
        (call,) = done([*out.segments, Segment(END, special=True)], tool)
        same = json.loads(call.arguments) == given
        told.add(same)
        assert same is reads_back(given, place) or not given
        assert passes(spec, out.segments) is (same or is_valid(call.arguments, tool.parameters))
    assert True in told


CITY = tool_of(SCHEMAS["a text and a number"])
INSIDE = tool_of(SCHEMAS["objects inside"])
LISTS = tool_of(SCHEMAS["lists"])
OTHERS = tool_of(SCHEMAS["names that are not told"])
EITHER = tool_of(SCHEMAS["one name of two types"])
ANY = tool_of(SCHEMAS["anything"])
A, ONE = "^<item>a^</item>", "^<item>1^</item>"


@pytest.mark.parametrize(
    ("tool", "body", "passed"),
    [
        (CITY, "^<city>Oslo^</city>", True),
        (CITY, "^<city>5^</city>^<days>3^</days>", True),
        (CITY, "^<days>3^</days>^<city>^</city>", True),
        (CITY, "^<days>3^</days>", False),
        (CITY, "^<city>Tromsø^</city>", False),
        (CITY, "^<city>Oslo^</city>^<days>0^</days>", False),
        (CITY, "^<city>Oslo^</city>^<days>null^</days>", False),
        (CITY, "^<city>Oslo^</city>^<city>Rome^</city>", False),
        (CITY, "^<city>Oslo^</city>^<more>1^</more>", False),
        (CITY, "^<city>Oslo^</days>", False),
        (CITY, "\n^<city>Oslo^</city>", False),
        (INSIDE, "^<o>^<z>true^</z>^</o>", True),
        (INSIDE, "^<o>^<z>true^</z>^<A>^<t></t>^</t>^</A>^</o>", True),
        (INSIDE, "^<o>^<A>^<t>^</t>^</A>^<z>true^</z>^</o>", False),
        (INSIDE, "^<o>^<z>true^</z>^<A>^</A>^</o>", False),
        (INSIDE, '^<o>{"z": true}^</o>', False),
        (OTHERS, "^<o>^</o>", True),
        (OTHERS, "^<o>^<n>null^</n>^<text/a>5^</text/a>^<b c>^</b c>^</o>", True),
        (OTHERS, "^<o>^<x>long text^</x>^</o>", False),
        (OTHERS, "^<o>^< b>x^</ b>^</o>", False),
        (OTHERS, "^<o>^<x>a^</invoke>^</o>", False),
        (EITHER, "^<o>^<k>s^</k>^<v>a^</v>^</o>", True),
        (EITHER, "^<o>^<k>s^</k>^<v>5^</v>^</o>", False),
        (EITHER, "^<o>^<v>5^</v>^</o>", True),
        (LISTS, f"^<l>{A}^</l>^<m>^<item>^</item>^</m>^<t>{ONE}^</t>^<n>^</n>", True),
        (LISTS, f"^<l>{A}^</l>^<m>^</m>^<t>{ONE}{A}{ONE}^</t>^<n>^</n>", False),
        (LISTS, f"^<l>^</l>^<m>^</m>^<t>{ONE}^</t>^<n>^</n>", False),
        (ANY, "^<x>words^</x>", True),
        (ANY, "^<x>^<item>1^</item>^<item>a^</item>^</x>", True),
        (ANY, "^<x>^<a>1^</a>^<item>a^</item>^</x>", False),
    ],
)  # fmt: skip
def test_members_inside_are_in_order_and_arguments_in_any(
    tool: FunctionTool, body: str, passed: bool
) -> None:
    assert passes(spec_of(tool), whole(body)) is passed


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_as_many_as_may_be_and_of_the_tool_that_is_chosen(name: str) -> None:
    tools = (tool_of({}, "f"), tool_of({}, "g"))
    one, other = (f'^<invoke name="{each}">^</invoke>\n' for each in "fg")
    start, end = "^<tool_call>\n", "^</tool_call>"
    assert passes(spec_of(*tools, name=name), start + one + end, name)
    assert not passes(spec_of(*tools, name=name), start + one + other + end, name)
    several = spec_of(*tools, name=name, parallel=True)
    assert passes(several, start + one + other + one + end, name)
    assert not passes(several, start + end, name)
    assert not passes(several, start + one, name)
    named = spec_of(*tools, name=name, choice=ToolChoice(mode="required", named=True, names=("g",)))
    assert passes(named, start + other + end, name)
    assert not passes(named, start + one + end, name)
    auto = spec_of(*tools, choice=ToolChoice(mode="auto"), thinking=True)
    assert (auto.trigger, auto.after) == (MARK, "</mm:think>")
    assert not auto.reasons_first


def test_plain_input_stands_between_the_tags_of_its_call() -> None:
    custom = CustomFormat(type="grammar", syntax="regex", definition="[a-z]+")
    tool = FunctionTool(name="f", custom=custom)
    assert tool.plain
    spec = spec_of(tool)
    assert passes(spec, whole("\nabc"))
    assert not passes(spec, whole("\n12"))


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a": {}}},
        {"properties": {"a>b": {}}},
        {"properties": {"/a": {}}},
        {"properties": {'a"b': {}}},
        {"properties": {"": {}}},
        {"properties": {" a": {}}},
        {"properties": {"o": {"type": "object", "patternProperties": {"^a": {}}}}},
        {"properties": {"o": {"type": ["object", "array"], "properties": {"item": {}}}}},
        {"properties": {"o": {"enum": [{"a<b": 1}]}}},
        {"properties": {"o": {"anyOf": [
            {"type": "object", "properties": {"v": {"const": "5"}}, "required": ["v"]},
            {"type": "object", "properties": {"v": {"type": "integer"}}}]}}},
        {"properties": {"l": {"type": "array", "minItems": 2, "maxItems": 1}}},
        {"properties": {"l": {"type": "array", "prefixItems": [TEXT], "allOf": [{"items": [{}]}]}}},
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        spec_of(tool_of(schema))
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param == "tools[0].parameters"


def test_keywords_that_no_grammar_holds_are_refused_as_elsewhere() -> None:
    spec = spec_of(tool_of({"properties": {"a": {"not": {"type": "string"}}}}))
    with pytest.raises(GrammarRefused):
        state_of(spec)
    tool = tool_of({"properties": {"not": TEXT, "if": TEXT}})
    assert done(drawn(spec_of(tool), random.Random(0)), tool)
