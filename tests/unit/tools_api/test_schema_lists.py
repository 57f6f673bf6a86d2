"""What a schema says of a list, and what of it the grammar library refuses."""

from typing import Any

import pytest

from tools_api.schema_lists import (
    ListForm,
    has_refused,
    list_form,
    listed_values,
    only_empty,
    times,
)

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        ({}, ListForm(first=[], rest=True, least=0, most=None)),
        (
            {"items": TEXT, "minItems": 1, "maxItems": 3},
            ListForm(first=[], rest=TEXT, least=1, most=3),
        ),
        (
            {"prefixItems": [TEXT, NUMBER], "items": False},
            ListForm(first=[TEXT, NUMBER], rest=False, least=0, most=2),
        ),
        (
            {"prefixItems": [TEXT, NUMBER], "maxItems": 1},
            ListForm(first=[TEXT], rest=True, least=0, most=1),
        ),
        (
            {"items": [TEXT], "additionalItems": NUMBER},
            ListForm(first=[TEXT], rest=NUMBER, least=0, most=None),
        ),
        (
            {"items": TEXT, "allOf": [{"$ref": "#/n"}, {"items": NUMBER, "minItems": 2}]},
            ListForm(first=[], rest={"allOf": [TEXT, NUMBER]}, least=2, most=4),
        ),
        ({"prefixItems": [TEXT], "allOf": [{"prefixItems": [TEXT]}]}, None),
        (
            {"allOf": [{"items": TEXT, "allOf": [{"minItems": 1}]}]},
            ListForm(first=[], rest=TEXT, least=1, most=None),
        ),
    ],
)
def test_a_list_has_first_items_others_and_counts(
    schema: dict[str, Any], form: ListForm | None
) -> None:
    assert list_form({"n": {"maxItems": 4}}, schema) == form


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({}, None),
        ({"const": None}, [None]),
        ({"enum": [1, [2], {}], "allOf": [{"$ref": "#/n"}, {"enum": [[2], {}, 3]}]}, [[2], {}]),
        ({"allOf": [{"allOf": [{"enum": [1, 2]}]}, {"const": 2}]}, [2]),
    ],
)
def test_values_are_listed_by_all_parts_of_a_schema(
    schema: dict[str, Any], values: list[Any] | None
) -> None:
    assert listed_values({"n": {"minItems": 1}}, schema) == values


def test_counts_as_lark_says_them() -> None:
    assert [times(0, None), times(2, None), times(0, 3)] == ["*", "{2,}", "{0,3}"]


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"not": {}}, True),
        ({"properties": {"not": {}}}, False),
        ({"properties": {"a": {"anyOf": [{"if": {}}]}}}, True),
        ({"enum": [{"not": 1}], "default": {"if": 1}}, False),
    ],
)
def test_keywords_are_looked_for_where_keywords_stand(
    schema: dict[str, Any], refused: bool
) -> None:
    assert has_refused(schema) is refused


def test_whether_no_string_but_the_empty_one_fits() -> None:
    assert [only_empty(each) for each in ({"const": ""}, {"enum": ["", 1]}, {"maxLength": 0})] == (
        [True] * 3
    )
    assert [only_empty(each) for each in ({}, {"enum": ["", "a"]}, {"const": 1})] == [False] * 3
