"""The check of finished outputs: what it finds, and that it never accuses falsely."""

import json
import random
from typing import Any

import jsonschema
import pytest

from tools_api.items import FunctionCall, Item, Message, Reasoning, TextPart
from tools_api.output_checks import OutputChecks, output_checks
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool

NUMBERS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def checks(schema: Any, *, lenient: bool = False) -> OutputChecks:
    text_format = TextFormat(type="json_schema", name="v", schema=schema)
    return output_checks((), text_format, lenient=lenient)


def message(value: Any) -> Item:
    text = value if isinstance(value, str) else json.dumps(value)
    return Message(role="assistant", content=(TextPart(type="output_text", text=text),), id="m")


def call(name: str, arguments: str) -> Item:
    return FunctionCall(call_id="c", name=name, arguments=arguments)


def finds(schema: Any, value: Any, *, lenient: bool = False) -> str | None:
    return checks(schema, lenient=lenient).violation([message(json.dumps(value))])


def of_property(schema: Any) -> Any:
    return {"type": "object", "properties": {"a b": {"type": "array", "items": schema}}}


def test_a_schema_that_the_grammar_enforces_is_not_looked_at() -> None:
    none = checks({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert none == OutputChecks()
    assert none.warnings() == ()
    assert none.violation([message("no JSON at all")]) is None


def test_warnings_name_the_tool_or_format_and_the_keywords() -> None:
    tool = FunctionTool(name="pick", parameters={"type": "object", "properties": {"s": NUMBERS}})
    text_format = TextFormat(
        type="json_schema", name="v", schema={"type": "array", "contains": {"const": 1}}
    )
    found = output_checks((tool,), text_format, lenient=False).warnings()
    assert found == (
        "pick: uniqueItems: checked when the output is finished, not enforced.",
        "text.format.schema: contains: checked when the output is finished, not enforced.",
    )
    loose = checks({"type": "array", "unevaluatedItems": False}, lenient=True).warnings()
    assert loose == ("text.format.schema: unevaluatedItems: neither enforced nor checked.",)


def test_the_keyword_and_its_place_are_named() -> None:
    found = finds(of_property(NUMBERS), {"a b": [[1, 2], [3, 3]]})
    assert found == "text.format.schema: the output breaks uniqueItems at '$.a b[1]'."
    assert finds(of_property(NUMBERS), {"a b": [[1, 2], [3, 4]]}) is None


def test_calls_are_checked_by_the_tool_they_call() -> None:
    tool = FunctionTool(name="pick", parameters={"type": "object", "properties": {"s": NUMBERS}})
    found = output_checks((tool,), TextFormat(), lenient=False)
    bad = call("pick", '{"s": [1, 1]}')
    assert found.violation([call("other", '{"s": [1, 1]}'), call("pick", '{"s": [1]}')]) is None
    assert found.violation([Reasoning(content=("x",), id="r", status="completed")]) is None
    assert "pick" in str(found.violation([call("pick", "{}"), bad]))
    assert found.violation([call("pick", '{"s": [1, 1')]) is None, "cut: others say so"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NUMBERS, [1, 2], [1, 1]),
        ({"uniqueItems": True}, [1, True, "1", None, 0, False], [1, 1.0]),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"a": 1}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
        ({"contains": {"type": "integer"}}, ["a", 1], ["a"]),
        ({"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, [1, 1], [1, 1, 1, 1]),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"dependencies": {"a": ["b"], "b": {"required": ["c"]}}}, {"b": 1, "c": 1}, {"a": 1}),
        ({"propertyNames": {"maxLength": 2}, "properties": {}}, {"ab": 1}, {"abc": 1}),
        ({"properties": {"a": {}}, "minProperties": 2}, {"a": 1, "b": 2}, {"a": 1}),
        ({"properties": {"a": {}}, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 2, 4),
        ({"anyOf": [NUMBERS, {"type": "null"}]}, None, [2, 2]),
        ({"allOf": [NUMBERS]}, [], [0, 0]),
        ({"$ref": "#/$defs/n", "$defs": {"n": NUMBERS}}, [1], [1, 1]),
        ({"prefixItems": [{}], "items": NUMBERS}, [[1, 1], [2]], [0, [2, 2]]),
        (
            {"patternProperties": {"^x": NUMBERS}, "additionalProperties": False},
            {"x": [1]},
            {"x": [1, 1]},
        ),
    ],
)
def test_each_keyword_is_judged(schema: Any, good: Any, bad: Any) -> None:
    schema = {"type": ["array", "object", "integer", "null"]} | schema
    assert finds(schema, good) is None
    assert finds(schema, bad) is not None


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"not": {"const": 1}}, 2, 1),
        ({"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "null"}}, 7, 3),
    ],
)
def test_what_lenient_leaves_out_is_judged_too(schema: Any, good: Any, bad: Any) -> None:
    assert finds(schema, good, lenient=True) is None
    assert finds(schema, bad, lenient=True) is not None
    assert finds(schema, bad) is None, "the grammar refuses it"


def test_alternatives_that_nobody_here_can_tell_apart_are_not_accused() -> None:
    schema = {
        "type": "array",
        "items": {"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]},
        "uniqueItems": True,
    }
    assert finds(schema, ["a", "b"]) is None
    assert "uniqueItems" in str(finds(schema, ["a", "a"]))


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, NUMBERS]}
    assert finds(schema, [1, 2]) is None
    finds(schema, [1, 1])


@pytest.mark.parametrize(("lists", "found"), [(24_995, True), (25_005, False)])
def test_what_is_judged_of_one_output_is_bounded(lists: int, found: bool) -> None:
    schema = {"type": "array", "items": NUMBERS}
    value = [*([number] for number in range(lists)), [0, 0]]
    assert (finds(schema, value) is not None) is found


@pytest.mark.samples(3)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_satisfies_its_schema_is_reported(seed: int) -> None:
    rng = random.Random(seed)
    words: dict[str, Any] = {
        "uniqueItems": lambda d: rng.choice([True, False]),
        "contains": lambda d: schema(d - 1),
        "minContains": lambda d: rng.randint(0, 2),
        "maxContains": lambda d: rng.randint(0, 3),
        "minProperties": lambda d: rng.randint(0, 3),
        "maxProperties": lambda d: rng.randint(0, 3),
        "dependentRequired": lambda d: {"a": ["b"]},
        "dependentSchemas": lambda d: {"a": schema(d - 1)},
        "propertyNames": lambda d: {"enum": ["a", "b"]},
        "oneOf": lambda d: [schema(d - 1), schema(d - 1)],
        "anyOf": lambda d: [schema(d - 1), schema(d - 1)],
        "allOf": lambda d: [schema(d - 1), schema(d - 1)],
        "not": lambda d: schema(d - 1),
        "if": lambda d: schema(d - 1),
        "then": lambda d: schema(d - 1),
        "else": lambda d: schema(d - 1),
        "items": lambda d: schema(d - 1),
        "prefixItems": lambda d: [schema(d - 1)],
        "properties": lambda d: {"a": schema(d - 1), "b": schema(d - 1)},
        "patternProperties": lambda d: {"^[ac]$": schema(d - 1)},
        "additionalProperties": lambda d: rng.choice([schema(d - 1), False]),
        "required": lambda d: rng.choice([["a"], ["b"], []]),
        "type": lambda d: rng.choice(["array", "object", "integer", "number", ["null", "array"]]),
        "enum": lambda d: [1, 1.0, "a", None, [1]],
        "const": lambda d: rng.choice([1, True, "a", [1, 2]]),
        "pattern": lambda d: "^a",
        "minimum": lambda d: rng.randint(-2, 3),
        "exclusiveMaximum": lambda d: rng.randint(0, 4),
        "multipleOf": lambda d: rng.choice([2, 0.5]),
        "minLength": lambda d: rng.randint(0, 2),
        "maxItems": lambda d: rng.randint(0, 3),
    }

    def schema(depth: int) -> Any:
        if depth <= 0:
            return rng.choice([True, {"type": "integer"}, {"const": 1}, {"type": "string"}])
        return {word: words[word](depth) for word in rng.sample(list(words), rng.randint(1, 5))}

    def value(depth: int) -> Any:
        plain = [None, True, False, 0, 1, 1.0, 2, 2.5, "a", "b", "abc"]
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(plain)
        if rng.random() < 0.5:
            return [value(depth - 1) for _ in range(rng.randint(0, 3))]
        names = rng.sample(["a", "b", "c"], rng.randint(0, 3))
        return {name: value(depth - 1) for name in names}

    reported = 0
    for _ in range(150):
        whole = schema(3)
        if not isinstance(whole, dict):
            continue
        reference = jsonschema.Draft202012Validator(whole)
        found = checks(whole, lenient=True)
        for _ in range(10):
            instance = value(3)
            if found.violation([message(json.dumps(instance))]) is not None:
                reported += 1
                assert not reference.is_valid(instance), (whole, instance)
    assert reported > 50


def test_a_name_that_comes_twice_does_not_count_twice() -> None:
    schema = {"type": "object", "minProperties": 2}
    assert checks(schema).violation([message('{"b": 1, "b": 2}')]) is not None
    assert checks(schema).violation([message('{"b": 1, "c": 2}')]) is None
    assert checks({"type": "object", "minProperties": 1}).warnings() == ()
