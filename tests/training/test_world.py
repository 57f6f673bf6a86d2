"""The tools of a generated session as live functions."""

import json

import pytest

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.world import Call, Toolbox, calculate


@pytest.mark.parametrize("seed", range(30))
def test_the_scripted_calls_get_the_scripted_results(seed: int) -> None:
    session = SessionGenerator(seed, held_out=True).session()
    toolbox = Toolbox(session)
    for question in session.questions:
        for step in question.steps:
            results = tuple(toolbox.call(call.name, call.arguments) for call in step.calls)
            assert results == step.results


def test_a_calculator_answers_numbers_that_no_script_names() -> None:
    generator = SessionGenerator(3, held_out=True)
    tools = [tool for _ in range(50) for tool in generator.session().tools if tool.operation]
    session = next(s for s in iter(generator.session, None) if any(t.operation for t in s.tools))
    tool = next(tool for tool in session.tools if tool.operation)
    first, second = tool.parameters
    result = Toolbox(session).call(tool.name, {first.name: 12345.5, second.name: 3})
    assert json.loads(result) == {"result": calculate(tool.operation, (12345.5, 3))}
    assert {tool.operation for tool in tools} == {"add", "subtract", "multiply"}


def test_wrong_calls_get_an_error_result() -> None:
    session = SessionGenerator(1, held_out=True).session(num_tools=1)
    toolbox = Toolbox(session)
    assert json.loads(toolbox.call("nobody", {})) == {"error": "unknown tool"}
    assert json.loads(toolbox.call(session.tools[0].name, {})) == {"error": "not found"}


@pytest.mark.parametrize(
    ("operation", "left", "right", "result"),
    [("add", 0.1, 0.2, 0.3), ("multiply", 2.5, 4, 10), ("subtract", 5, 7, -2)],
)
def test_results_are_short_and_whole_where_they_can_be(
    operation: str, left: float, right: float, result: float
) -> None:
    found = calculate(operation, (left, right))
    assert found == result
    assert isinstance(found, type(result))


def test_the_order_of_arguments_does_not_make_another_call() -> None:
    there = Call(name="f", arguments={"a": 1, "b": 2})
    back = Call(name="f", arguments={"b": 2, "a": 1})
    assert there.key() == back.key()
