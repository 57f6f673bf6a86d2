"""Choices are written out or told apart exactly: the reference implementation is asked."""

import random
from itertools import product
from typing import Any

import jsonschema
import pytest

from tools_api.schema_choices import Choices, only_in_one
from tools_api.schema_dialect import rewrite_schema

TEXT = {"type": "string"}
LETTERS = {"enum": ["a", "b", "c"]}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3.5, 4, 10**19, "", "a", "b", "abcd", "é"),
    *([], [1], ["a", "b"], ["a", "a"], [1, 1.0], {}, {"k": "a"}, {"k": "b"}, {"k": 1, "l": 2}),
    *({"l": "a"}, {"k": "a", "l": None}, [None, None, None]),
]


def unique(items: Any, **own: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **own}


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        (unique(LETTERS), 16),
        (unique(LETTERS, minItems=2), 12),
        (unique(LETTERS, maxItems=1), 4),
        (unique({"enum": [*"abcde"]}), 326),
        (unique({"enum": [1, 1.0, True, "1"]}), 16),
        (unique({"type": "string", "enum": ["a", 1, None]}), 2),
        (unique({"type": "boolean"}), 5),
        (unique({"type": "null"}), 2),
        (unique({"const": "x"}, description="d"), 2),
        (unique({"type": "integer", "minimum": -1, "maximum": 1}), 16),
        (unique({"$ref": "#/$defs/letters"}), 16),
    ],
)
def test_a_list_of_few_different_values_is_written_out(schema: Any, count: int) -> None:
    root = {"$defs": {"letters": LETTERS}, "properties": {"x": schema}}
    written = Choices(root).written_out(schema)
    assert written is not None
    assert len(written["enum"]) == count
    assert written.get("description") == schema.get("description")
    plain = jsonschema.Draft202012Validator({**schema, "$defs": root["$defs"]})
    assert all(map(plain.is_valid, written["enum"]))
    values = [*"abcde", 1, True, "1", None, "x", -1, 0]
    lists = [list(each) for size in range(4) for each in product(values, repeat=size)]
    listed = jsonschema.Draft202012Validator({"enum": written["enum"]})
    for each in random.Random(count).sample(lists, 600):
        assert plain.is_valid(each) == listed.is_valid(each), each
    assert rewrite_schema(root).afterwards == ()


@pytest.mark.parametrize(
    "schema",
    [
        unique(TEXT),
        unique({"enum": [*"abcdef"]}),
        unique(LETTERS, minItems=4),  # nothing satisfies it
        unique(LETTERS, contains={"const": "a"}),
        unique({"enum": [["a"], ["b"]]}),
        unique({"enum": ["x" * 9000, "y"]}),
        unique({"type": "integer", "minimum": 0}),
        {"items": LETTERS, "uniqueItems": True},  # of no type: other values fit, too
        {"type": "array", "items": LETTERS, "uniqueItems": False},
    ],
)
def test_another_list_is_left_as_it_is(schema: Any) -> None:
    assert Choices(schema).written_out(schema) is None
    assert rewrite_schema(schema).schema.get("enum") is None


def test_lists_of_one_document_have_a_common_bound() -> None:
    each = unique({"enum": [word * 10 for word in "abcde"]})
    choices = Choices({})
    written = [choices.written_out(each) is not None for _ in range(4)]
    assert written == [True, False, False, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "integer"}, TEXT),
        ({"const": 1}, {"enum": ["1", True, 2]}),
        ({"const": 5}, {"type": "number", "maximum": 4}),
        ({"type": "number", "maximum": 3}, {"type": "integer", "minimum": 4}),
        ({"type": "number", "exclusiveMaximum": 4}, {"type": "number", "minimum": 4}),
        ({**TEXT, "maxLength": 3}, {**TEXT, "minLength": 4}),
        ({"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}),
        ({"type": "null"}, {"type": ["boolean", "string"]}),
        (
            {"type": "object", "required": ["k"], "properties": {"k": TEXT}},
            {"type": "object", "properties": {"k": {"type": "integer"}}},
        ),
        (
            {"type": "object", "required": ["k"]},
            {"type": "object", "properties": {"l": TEXT}, "additionalProperties": False},
        ),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [{"type": "array"}, {"const": 0}]}),
        ({"allOf": [TEXT, {"maxLength": 2}]}, {**TEXT, "minLength": 3}),
        ({"$ref": "#/$defs/letters"}, {"type": "integer"}),
        (False, TEXT),
    ],
)
def test_schemas_that_no_value_satisfies_both_are_told(one: Any, other: Any) -> None:
    root = {"$defs": {"letters": LETTERS}}
    assert Choices(root).never_both(one, other)
    assert Choices(root).never_both(other, one)
    assert rewrite_schema({**root, "oneOf": [one, other]}).afterwards == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "number", "maximum": 4}, {"type": "integer", "minimum": 4}),
        ({**TEXT, "maxLength": 4}, {**TEXT, "minLength": 4}),
        ({"pattern": "^a"}, {"pattern": "^b"}),
        ({"required": ["k"]}, {"properties": {"l": TEXT}, "additionalProperties": False}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"type": ["null", "array"]}),
        ({"$ref": "elsewhere.json"}, {"type": "integer"}),
        (True, True),
    ],
)
def test_schemas_that_may_both_hold_are_not(one: Any, other: Any) -> None:
    assert not Choices({}).never_both(one, other)
    assert not Choices({}).never_both(other, one)


def drawn(rng: random.Random, depth: int = 2) -> Any:
    kinds: list[Any] = [
        {"type": rng.choice(["integer", "number", "string", "object", "array", "null", "boolean"])},
        {"enum": rng.sample(VALUES, 3)},
        {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): rng.choice([1, 2, 3.5])},
        {"type": "number", rng.choice(["maximum", "exclusiveMaximum"]): rng.choice([1, 2, 3.5])},
        {"type": "string", rng.choice(["minLength", "maxLength"]): rng.randint(0, 3)},
        {rng.choice(["minItems", "maxItems"]): rng.randint(0, 2)},
        True,
        False,
    ]
    if depth:
        properties = {name: drawn(rng, depth - 1) for name in rng.sample("kl", rng.randint(0, 2))}
        whole: dict[str, Any] = {"properties": properties, "required": rng.sample("kl", 1)}
        if rng.random() < 0.7:
            whole["type"] = "object"
        if rng.random() < 0.5:
            whole["additionalProperties"] = False
        inner = [drawn(rng, depth - 1) for _ in range(rng.randint(1, 2))]
        kinds += [whole, whole, whole, {rng.choice(["anyOf", "allOf", "oneOf"]): inner}]
    return rng.choice(kinds)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_satisfies_both_of_what_is_told_apart(seed: int) -> None:
    rng, told = random.Random(seed), 0
    for _ in range(400):
        one, other = drawn(rng), drawn(rng)
        if Choices({}).never_both(one, other):
            told += 1
            both = jsonschema.Draft202012Validator({"allOf": [one, other]})
            assert not any(map(both.is_valid, VALUES)), (seed, one, other)
    assert told > 100


@pytest.mark.parametrize(
    ("alternatives", "left"),
    [
        ([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], ["a", "c"]),
        ([{"const": 1}, {"enum": [1.0, 2]}], [2]),
        ([{"enum": [1, 1]}, {"enum": [2, True]}], None),  # nothing is in two
        ([{"const": 1}, {"const": 1}], None),  # nothing is left
        ([{"const": 1}, {"const": 1, "type": "integer"}], None),
    ],
)
def test_of_lists_of_values_those_in_one_of_them_are_left(alternatives: Any, left: Any) -> None:
    found = only_in_one({"oneOf": alternatives, "title": "t"})
    assert found == (None if left is None else {"oneOf": [{"enum": left}], "title": "t"})
