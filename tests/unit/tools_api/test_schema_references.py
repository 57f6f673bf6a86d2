"""A reference leads to a place in its own document, or nowhere."""

from typing import Any

import pytest

from tools_api.schema_references import pointed_at, resolved

ROOT: dict[str, Any] = {
    "$defs": {
        "a/b": {"type": "string"},
        "t~": {"$ref": "#/$defs/a~1b"},
        "itself": {"$ref": "#/$defs/itself"},
        "list": {"anyOf": [{"const": 1}, {"const": 2}]},
    }
}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("#/$defs/a~1b", {"type": "string"}),
        ("#/$defs/t~0", {"$ref": "#/$defs/a~1b"}),
        ("#/$defs/list/anyOf/1", {"const": 2}),
        ("#/$defs/list/anyOf/2", None),
        ("#/$defs/list/anyOf/x", None),
        ("#/$defs/none", None),
        ("#name", None),
        ("other.json#/a", None),
        ("", None),
    ],
)
def test_a_pointer_is_followed_step_by_step(reference: str, found: Any) -> None:
    assert pointed_at(ROOT, reference) == found


def test_a_reference_to_a_reference_is_followed_and_a_circle_leads_nowhere() -> None:
    assert resolved(ROOT, {"$ref": "#/$defs/t~0"}) == {"type": "string"}
    assert resolved(ROOT, {"$ref": "#/$defs/itself"}) is None
    assert resolved(ROOT, {"$ref": 5}) == {"$ref": 5}
    assert resolved(ROOT, True) is True
