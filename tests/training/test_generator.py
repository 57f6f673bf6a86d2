"""Sessions drawn for the default model's training and evaluation."""

import itertools
import json
import re

import pytest

from examples.train_agent_model.generator import (
    ALL_KINDS,
    ERRORS,
    MAX_QUESTIONS,
    MAX_TOOLS,
    SessionGenerator,
)
from examples.train_agent_model.toolmaker import (
    CALCULATORS,
    COMMON_PARAMETERS,
    NUMBER_PAIRS,
    VERBS,
)
from examples.train_agent_model.words import is_held_out
from examples.train_agent_model.world import Session, Tool

FRAME_WORDS = {"get", "find", "look", "two", "numbers", "calc", "id", "code", "key"}


def sessions(count: int, *, held_out: bool = True, seed: int = 1) -> list[Session]:
    generator = SessionGenerator(seed, held_out=held_out)
    return [generator.session() for _ in range(count)]


def test_the_same_seed_gives_the_same_sessions() -> None:
    assert sessions(20, seed=5) == sessions(20, seed=5)
    assert sessions(20, seed=5) != sessions(20, seed=6)


def test_every_kind_of_question_occurs_within_the_stated_sizes() -> None:
    drawn = sessions(300)
    assert {q.kind for s in drawn for q in s.questions} == set(ALL_KINDS)
    assert {len(s.tools) for s in drawn} == set(range(1, MAX_TOOLS + 1))
    assert max(len(s.questions) for s in drawn) == MAX_QUESTIONS
    assert {len(q.steps) for s in drawn for q in s.questions} == {0, 1, 2, 3}


def test_every_call_fits_its_tools_schema() -> None:
    for session in sessions(200):
        tools = {tool.name: tool for tool in session.tools}
        assert len(tools) == len(session.tools)
        calls = [c for q in session.questions for step in q.steps for c in step.calls]
        for call in calls:
            parameters = tools[call.name].parameters
            assert list(call.arguments) == [p.name for p in parameters]
            for parameter in parameters:
                value = call.arguments[parameter.name]
                assert value in parameter.schema.get("enum", [value])
                assert isinstance(value, str) == (parameter.schema["type"] == "string")


def test_every_argument_can_be_copied_from_what_was_said_before() -> None:
    for session in sessions(200):
        said = ""
        for question in session.questions:
            said += question.text + "\n"
            for step in question.steps:
                for value in itertools.chain(*(c.arguments.values() for c in step.calls)):
                    assert str(value) in said
                said += "\n".join(step.results)
                assert all(json.loads(result) for result in step.results)


def test_names_of_the_evaluation_hold_no_word_of_the_training_side() -> None:
    fixed = {*VERBS, *CALCULATORS, *FRAME_WORDS, "name"}
    for session in sessions(200):
        names = [t.name for t in session.tools]
        names += [p.name for t in session.tools for p in t.parameters]
        for word in re.findall(r"[A-Z]?[a-z]+", " ".join(names)):
            assert word.lower() in fixed or is_held_out(word), word


def test_training_never_says_a_held_out_word_in_a_name() -> None:
    pairs = itertools.chain(*NUMBER_PAIRS)
    fixed = {*VERBS, *CALCULATORS, *COMMON_PARAMETERS, *FRAME_WORDS, *ERRORS, *pairs}
    for session in sessions(200, held_out=False):
        names = [t.name for t in session.tools]
        names += [p.name for t in session.tools for p in t.parameters]
        for word in re.findall(r"[A-Z]?[a-z]+", " ".join(names)):
            assert word.lower() in fixed or not is_held_out(word), word


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_the_level_bounds_the_number_of_tools(level: float) -> None:
    generator = SessionGenerator(1, held_out=False)
    most = max(len(generator.session(level=level).tools) for _ in range(200))
    assert most == round(1 + (MAX_TOOLS - 1) * level)


@pytest.mark.parametrize("hard", [False, True])
def test_a_question_is_open_where_it_holds_what_its_first_call_may_or_may_not_take(
    hard: bool,
) -> None:
    generator = SessionGenerator(1, held_out=False, hard=hard)
    answers = {"lookup": set[tuple[bool, int]](), "chain": set[tuple[bool, int]]()}
    for session in (generator.session(num_tools=6) for _ in range(100)):
        second = {p.name for tool in session.tools if tool.topic for p in tool.parameters[1:]}
        for question in session.questions:
            holds = any(f"{name} " in question.text for name in second)
            if question.kind in ("chain", "chain_calculate"):
                assert question.is_open == holds, question.text
                answers["chain"].add((question.is_open, len(question.steps[0].calls[0].arguments)))
            elif question.kind in ("lookup", "two_parameters"):
                assert question.is_open == (hard and holds), question.text
                answers["lookup"].add((question.is_open, len(question.steps[0].calls[0].arguments)))
            else:
                assert not question.is_open
    assert answers["chain"] == {(False, 1), (True, 1), (True, 2)}
    if hard:
        assert answers["lookup"] == {(False, 1), (True, 1), (True, 2)}
    else:
        assert answers["lookup"] == {(False, 1), (False, 2)}


def test_a_recall_calls_each_lookup_tool_once() -> None:
    generator = SessionGenerator(1, held_out=False, hard=True)
    for tools, recalled in (generator.recall() for _ in range(50)):
        calls = [one.call for one in recalled]
        assert sorted(tool.name for tool in tools) == sorted(call.name for call in calls)
        parameters = {tool.name: [p.name for p in tool.parameters] for tool in tools}
        assert all(list(call.arguments) == parameters[call.name] for call in calls)
        assert all(tool.topic for tool in tools)


def test_recalled_tools_are_near_each_other_and_named_in_every_way() -> None:
    generator = SessionGenerator(1, held_out=False, hard=True)
    recalls = [generator.recall()[0] for _ in range(200)]
    ordinary = [[t for t in s.tools if t.topic] for s in sessions(200, held_out=False)]

    def near(drawn: list[list[Tool]]) -> float:
        """The share of tools whose topic shares a word with another's."""
        words = [[tool.topic.split() for tool in tools] for tools in drawn]
        shared = [
            any(set(own) & set(other) for other in topics if other is not own)
            for topics in words
            for own in topics
        ]
        return sum(shared) / len(shared)

    def camel(drawn: list[list[Tool]]) -> float:
        names = [tool.name for tools in drawn for tool in tools]
        return sum(name != name.lower() for name in names) / len(names)

    assert near(recalls) > 0.6 > 0.3 > near(ordinary)
    assert camel(recalls) > 0.4 > 0.2 > camel(ordinary)


def test_results_of_hard_sessions_hold_a_second_value_more_often() -> None:
    shares = []
    for hard in (False, True):
        generator = SessionGenerator(1, held_out=False, hard=hard, plain_share=0.0)
        results = [
            json.loads(result)
            for session in (generator.session() for _ in range(100))
            for question in session.questions
            for step in question.steps
            for result in step.results
            if question.kind == "parallel"
        ]
        shares.append(sum(len(result) > 1 and "ok" not in result for result in results))
        shares[-1] /= len(results)
    assert shares[0] < 0.4 < 0.5 < shares[1]
