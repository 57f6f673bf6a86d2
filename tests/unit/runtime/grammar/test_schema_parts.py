"""What is inside a schema, and parts of it as documents of their own."""

from typing import Any

import jsonschema
import pytest

from runtime.grammar.schema_parts import changed, circles, nodes, references_to, standalone

NODE = {"id": {"$ref": "#/$defs/id"}, "more": {"items": {"$ref": "#/$defs/tree"}}}
TREE: dict[str, Any] = {
    "$defs": {
        "tree": {"properties": NODE},
        "id": {"const": 5},
        "unused": {"const": 6},
    },
    "properties": {"enum": {"type": "null"}, "tree": {"anyOf": [{"$ref": "#/$defs/tree"}]}},
    "items": [{"minimum": 1}],
    "additionalProperties": {"patternProperties": {"a": {"maximum": 1}}},
    "default": {"const": 7},
}


def test_schemas_are_found_where_they_say_something() -> None:
    found = [node for node in nodes(TREE) if node is not TREE]
    assert {"type": "null"} in found
    assert {"minimum": 1} in found
    assert {"maximum": 1} in found
    assert not any("const" in node for node in found)
    assert list(nodes(True)) == []


def test_a_changed_copy_leaves_the_original_alone() -> None:
    before = repr(TREE)
    new = changed(TREE, lambda node: {k: v for k, v in node.items() if k != "minimum"})
    assert new["items"] == [{}]
    assert "$defs" not in new
    assert repr(TREE) == before
    assert changed(False, dict) is False


def test_references_are_followed_however_far() -> None:
    to_five = references_to(TREE, lambda node: node.get("const") == 5)
    assert to_five == {"#/$defs/id", "#/$defs/tree"}
    assert references_to(TREE, lambda node: node.get("const") == 6) == frozenset()


@pytest.mark.parametrize("part", [TREE["properties"]["tree"], TREE["$defs"]["tree"]])
def test_a_part_as_a_document_says_what_it_said_in_its_place(part: Any) -> None:
    own = standalone(TREE, part)
    assert own["$defs"].keys() == {"d0", "d1"}
    for value in ({"id": 5}, {"id": 6}, {"more": [{"id": 5}]}, {"more": [{"id": 4}]}, {}):
        inside = {"$defs": TREE["$defs"], "allOf": [part]}
        judged = [jsonschema.Draft202012Validator(s).is_valid(value) for s in (own, inside)]
        assert judged[0] is judged[1], value


def test_a_reference_out_of_the_document_is_named() -> None:
    with pytest.raises(LookupError, match="elsewhere"):
        standalone({}, {"items": {"$ref": "elsewhere#/a"}})


@pytest.mark.parametrize(
    ("schema", "keywords"),
    [
        ({"$ref": "#"}, ["$ref"]),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, []),
        ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, ["allOf", "$ref"]),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, ["$ref"]),
        ({"properties": {"a": {"$ref": "#"}}}, []),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, []),
        ({"$ref": "https://example.com/"}, []),
        ({"anyOf": []}, []),
    ],
)
def test_circles_are_references_that_say_nothing(schema: Any, keywords: list[str]) -> None:
    assert sorted(circles(schema).values()) == sorted(keywords)
