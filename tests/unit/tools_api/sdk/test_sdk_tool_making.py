"""Schemas from type hints, what a tool may be told, and which functions are none."""

from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from tools_api.sdk.tool_making import tool
from tools_api.sdk.tools import Conduct, ToolContext


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    This paragraph is for people.
    """
    return a + b


def test_a_tool_is_strict_and_described_by_its_docstring() -> None:
    assert add.to_wire() == {
        "type": "function",
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "strict": True,
    }


@tool
def pay(amount: Decimal, note: str, share: float) -> None:
    """Pay."""


def test_arguments_are_bound_to_the_last_digit_and_whatever_the_text() -> None:
    amount = "123456789012345678901234567890.12345678901234567890"
    bound = pay.bind(f'{{"amount": {amount}, "note": "cut \\ud83d", "share": 0.5}}')
    assert bound == {"amount": Decimal(amount), "note": "cut \ufffd", "share": 0.5}
    with pytest.raises(ValidationError):
        pay.bind(f'{{"amount": {amount}, "note": 1.00000000000000000001, "share": 0.5}}')


def test_a_tool_is_still_a_function() -> None:
    assert add(2, b=3) == 5


class Unit(Enum):
    KELVIN = "K"
    CELSIUS = "C"


class Place(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("hint", "schema", "argument", "value"),
    [
        (str, {"type": "string"}, '"x"', "x"),
        (float, {"type": "number"}, "1.5", 1.5),
        (bool, {"type": "boolean"}, "true", True),
        (list[int], {"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, '"a"', "a"),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        (Annotated[str, Field(max_length=3)], {"type": "string", "maxLength": 3}, '"x"', "x"),
        (
            Annotated[int, Field(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
            "2",
            2,
        ),
        (Unit, {"$ref": "#/$defs/Unit"}, '"K"', Unit.KELVIN),
        (Place, {"$ref": "#/$defs/Place"}, '{"name": "Oslo"}', Place(name="Oslo")),
    ],
)
def test_type_hints_become_a_schema_and_json_becomes_the_type(
    hint: Any, schema: dict[str, Any], argument: str, value: Any
) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    made = tool(take)
    assert made.to_wire()["parameters"]["properties"]["value"] == schema
    assert made.bind(f'{{"value": {argument}}}') == {"value": value}


def test_names_that_pydantic_uses_itself_are_fine() -> None:
    @tool
    def odd(schema: str, copy: int, model_config: str) -> str:
        return f"{schema}{copy}{model_config}"

    bound = odd.bind('{"schema": "s", "copy": 1, "model_config": "m"}')
    assert odd(**bound) == "s1m"
    assert list(odd.to_wire()["parameters"]["properties"]) == ["schema", "copy", "model_config"]


def test_an_argument_with_a_default_is_required_of_the_model_and_counts_without_it() -> None:
    nothing: Any = object()

    @tool
    def greet(name: str = "you", times: int = nothing) -> str:
        return f"{name}{times}"

    assert greet.to_wire()["parameters"]["required"] == ["name", "times"]
    assert "default" not in greet.to_wire()["parameters"]["properties"]["name"]
    assert greet.bind("{}") == {"name": "you", "times": nothing}
    assert greet.bind('{"times": 2}') == {"name": "you", "times": 2}
    with pytest.raises(ValidationError):
        greet.bind('{"name": null}')


def test_a_tool_without_arguments_takes_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "12:00"

    assert now.bind("{}") == {}
    assert now.to_wire()["parameters"]["properties"] == {}


def without_type(a) -> None: ...
def positional(a: int, /) -> None: ...
def starred(*a: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (without_type, "argument a has no type"),
        (positional, "cannot be passed by name"),
        (starred, "cannot be passed by name"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(
    function: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(TypeError, match=f"tool {function.__name__}: .*{complaint}"):
        tool(function)


def test_a_tool_may_be_told_how_it_is_to_be_run() -> None:
    @tool(name="look", read_only=True, timeout_s=2, retries=1, max_output_bytes=1000)
    def look_up(name: str) -> str:
        return name

    assert look_up.name == "look"
    assert look_up("x") == "x"
    assert look_up.conduct == Conduct(read_only=True, timeout_s=2, retries=1, max_output_bytes=1000)
    assert look_up.conduct.may_start_early
    assert not add.conduct.may_start_early, "without a word it may have effects"


@pytest.mark.parametrize(
    ("conduct", "complaint"),
    [
        ({"timeout_s": 0}, "not above 0"),
        ({"retries": -1}, "below 0"),
        ({"max_output_bytes": 255}, "below 256"),
        ({"name": "not a name"}, "cannot be a tool's name"),
    ],
)
def test_conduct_that_makes_no_sense_is_refused(conduct: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        tool(**conduct)(lambda: None)


class Shop:
    """What tools of a session share."""


def test_the_context_is_given_by_its_type_and_hidden_from_the_model() -> None:
    @tool
    def buy(here: ToolContext[Shop], product: str) -> str:
        return product + here.call_id

    assert list(buy.to_wire()["parameters"]["properties"]) == ["product"]
    context = ToolContext(call_id="c", tool="buy", attempt=1, value=Shop())
    assert buy.takes(context) == {"here": context}
    assert add.takes(context) == {}
    buy.check_context(Shop())
    with pytest.raises(TypeError, match="context of type Shop, the session has none: give"):
        buy.check_context(None)


def test_a_context_without_a_type_may_be_anything() -> None:
    @tool
    def buy(here: ToolContext, product: str) -> str:
        return product

    buy.check_context(None)
    with pytest.raises(ValidationError):
        buy.bind('{"product": "lamp", "here": 1}')
