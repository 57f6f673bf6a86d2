"""Fields of an object out of parsed JSON: what they may be, and what a fault says."""

from typing import Any, Literal

import pytest

from tools_api.errors import ApiError
from tools_api.json_fields import Fields, join, without_nulls

Size = Literal["small", "large"]


def read(raw: Any) -> tuple[Any, ...]:
    fields = Fields(raw, "base")
    return (
        fields.text("name", least=1, most=3),
        fields.text("note", absent=True),
        fields.choice("size", Size, absent=True),
        fields.flag("strict", True),
    )


def test_null_equals_absent_and_unknown_keys_are_ignored() -> None:
    nothing = ("abc", None, None, True)
    assert read({"name": "abc", "note": None, "size": None, "strict": None}) == nothing
    assert read({"name": "abc", "other": 1}) == nothing
    whole = {"name": "abc", "note": "", "size": "large", "strict": False}
    assert read(whole) == ("abc", "", "large", False)
    assert without_nulls({"a": None, "b": 0, "c": {"d": None}}) == {"b": 0, "c": {"d": None}}


@pytest.mark.parametrize(
    ("raw", "code", "message"),
    [
        ([], "invalid_type", "Invalid type for 'base': expected an object, got an array."),
        ({}, "missing_required_parameter", "Missing required parameter: 'base.name'."),
        (
            {"name": 1},
            "invalid_type",
            "Invalid type for 'base.name': expected a string, got an integer.",
        ),
        (
            {"name": ""},
            "invalid_value",
            "Invalid value for 'base.name': shorter than 1 character.",
        ),
        (
            {"name": "x" * 10_000},
            "invalid_value",
            "Invalid value for 'base.name': longer than 3 characters.",
        ),
        (
            {"name": "a", "note": []},
            "invalid_type",
            "Invalid type for 'base.note': expected a string, got an array.",
        ),
        (
            {"name": "a", "size": "huge"},
            "invalid_value",
            "Invalid value for 'base.size': should be 'small' or 'large', got 'huge'.",
        ),
        (
            {"name": "a", "size": ["small"]},
            "invalid_value",
            "Invalid value for 'base.size': should be 'small' or 'large'.",
        ),
        (
            {"name": "a", "strict": 1},
            "invalid_type",
            "Invalid type for 'base.strict': expected a boolean, got an integer.",
        ),
    ],
)
def test_a_fault_is_named_by_its_path(raw: Any, code: str, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(raw)
    assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (("tools", 0, "name"), "tools[0].name"),
        (("", "input", 2), "input[2]"),
        (("text",), "text"),
        (("", "a", "b"), "a.b"),
    ],
)
def test_paths_are_written_as_the_protocol_does(steps: tuple[Any, ...], path: str) -> None:
    assert join(*steps) == path
