"""The settings of a run: options of each of its turns, and what no run can be."""

from typing import Any

import pytest

from tools_api.sdk.run_plan import RunPlan
from tools_api.sdk.tool_making import tool

RAW = {"type": "function", "name": "look", "parameters": {"type": "object"}}


@tool
def add(a: int, b: int) -> int:
    return a + b


def plan(**settings: Any) -> RunPlan:
    return RunPlan(**({"tools": [add, RAW], "options": {}} | settings))


def test_a_choice_is_of_the_first_turn_and_a_function_chooses_for_each() -> None:
    forced, chosen = plan(tool_choice="required"), plan(tool_choice=lambda n: ("none", "auto")[n])
    assert [forced.turn_options(n)["tool_choice"] for n in range(3)] == ["required", "auto", "auto"]
    assert [chosen.turn_options(n)["tool_choice"] for n in range(2)] == ["none", "auto"]
    assert plan(tool_choice=add).turn_options(0)["tool_choice"] is add, "a tool is no such function"


def test_a_choice_goes_along_only_where_there_are_tools() -> None:
    bare = plan(tools=[], options={"temperature": 0.0})
    assert bare.turn_options(0) == {"temperature": 0.0}
    assert bare.turn_options(0, late=True) == {"temperature": 0.0, "tool_choice": "auto"}
    assert bare.options == {"temperature": 0.0}, "each turn has options of its own"


def test_an_output_type_is_the_format_of_every_turn() -> None:
    typed = plan(output_type=int)
    assert typed.turn_options(0)["text"] == typed.turn_options(1)["text"]
    assert "text" not in plan().turn_options(0)


def test_tools_that_can_be_run_here_are_those_with_a_function() -> None:
    assert plan().functions == [add]


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"max_turns": 0}, ValueError, "max_turns 0 is below 1"),
        ({"max_repairs": -1}, ValueError, "max_repairs -1 is below 0"),
        ({"max_repairs": "2"}, TypeError, "max_repairs"),
        ({"options": {"temprature": 1}}, TypeError, "temprature"),
    ],
)
def test_what_no_run_can_be_is_refused_by_name(
    settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        plan(**settings)
