"""Schemas as alternatives: what satisfies one of them satisfies the schema, and the other way."""

import random
from typing import Any

import pytest

from runtime.grammar.plain_schemas import NotPlain, alternatives, is_assertive
from runtime.grammar.schema_parts import APPLICATORS
from tests.support.exact_schemas import Schemas, satisfies, some_value
from tools_api.exact_json import written

ID = 1190000000000000001
PATTERN_BESIDE_NAME = {"allOf": [{"patternProperties": {"a": {}}}, {"properties": {"b": {}}}]}


@pytest.mark.parametrize("seed", range(60))
def test_a_value_satisfies_a_schema_if_it_satisfies_an_alternative(seed: int) -> None:
    rng = random.Random(seed)
    drawing = Schemas(rng)
    one, other = drawing.any(2), drawing.any(2)
    schema: dict[str, Any] = {"allOf": [one.schema, other.schema]}
    if rng.random() < 0.5:
        schema = {"anyOf": [one.schema, other.schema, schema], **_beside(rng)}
    root = schema | {"$defs": drawing.definitions}
    found = alternatives(root, schema)
    for plain in found:
        assert not plain.keys() & set(APPLICATORS)
    for value in (one.draw(rng), other.draw(rng), some_value(rng, 1), some_value(rng, 2)):
        text = written(value)
        whole = satisfies(root, text)
        parts = [satisfies(plain | {"$defs": drawing.definitions}, text) for plain in found]
        assert any(parts) is whole, (seed, schema, value)


def _beside(rng: random.Random) -> dict[str, Any]:
    options: list[dict[str, Any]] = [{}, {"type": ["integer", "object", "string"]}, {"minimum": 0}]
    return rng.choice(options)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"type": "number"}, {"type": ["integer", "null"]}, {"type": ["integer"]}),
        ({"minimum": ID}, {"minimum": ID + 1}, {"minimum": ID + 1}),
        ({"minimum": 1}, {"exclusiveMinimum": 1}, {"exclusiveMinimum": 1}),
        ({"enum": [1, "a", ID]}, {"const": ID}, {"enum": [ID]}),
        ({"minLength": 1}, {"minLength": 3, "maxLength": 4}, {"minLength": 3, "maxLength": 4}),
        ({"multipleOf": 0.4}, {"multipleOf": 3}, {"multipleOf": 6}),
        ({"required": ["a"]}, {"required": ["b", "a"]}, {"required": ["a", "b"]}),
        (
            {"items": [{"type": "null"}], "additionalItems": {"minimum": 1}},
            {"items": {"maximum": 5}},
            {
                "prefixItems": [{"allOf": [{"type": "null"}, {"maximum": 5}]}],
                "items": {"allOf": [{"minimum": 1}, {"maximum": 5}]},
            },
        ),
        (
            {"properties": {"a": {"minimum": 1}}, "additionalProperties": False},
            {"properties": {"a": True, "b": {"type": "null"}}},
            {"properties": {"a": {"minimum": 1}, "b": False}, "additionalProperties": False},
        ),
    ],
)
def test_keywords_are_merged_to_the_last_digit(one: Any, other: Any, both: Any) -> None:
    assert alternatives({}, {"allOf": [one, other]}) == [both]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "string"}, {"type": "null"}),
        ({"const": ID}, {"const": ID + 1}),
        ({"enum": [1]}, {"enum": [True]}),
        ({}, False),
    ],
)
def test_what_cannot_hold_together_has_no_alternative(one: Any, other: Any) -> None:
    assert alternatives({}, {"allOf": [one, other]}) == []


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern"),
        (PATTERN_BESIDE_NAME, "patternProperties"),
        ({"$ref": "https://example.com/"}, "$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"allOf": [{"anyOf": [{"minimum": n} for n in range(20)]}] * 2}, "anyOf"),
    ],
)
def test_what_does_not_go_together_is_named(schema: Any, keyword: str) -> None:
    with pytest.raises(NotPlain) as caught:
        alternatives(schema, schema)
    assert caught.value.keyword in (keyword, "allOf")


def test_descriptions_assert_nothing() -> None:
    assert not is_assertive({"$ref": "#/a", "title": "t", "default": ID, "$defs": {}})
    assert is_assertive({"$ref": "#/a", "minimum": 1})
