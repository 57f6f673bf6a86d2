"""Each conversation that pieces are found from holds its marks once, and grows by one turn."""

from runtime.chat_judge.conversations import Wants, variables
from runtime.chat_judge.short_conversations import (
    ANSWER,
    CALLS,
    LATER,
    MORE,
    NAMES,
    OUTPUTS,
    SECOND,
    SYSTEM,
    THOUGHT,
    TOOLS,
    USER,
    conversations,
)

MARKS = (USER, MORE, ANSWER, SECOND, SYSTEM, LATER, THOUGHT, *OUTPUTS)


def test_no_mark_stands_in_another() -> None:
    for mark in MARKS:
        assert [other for other in MARKS if mark in other] == [mark]


def test_names_are_given_once_and_marks_stand_once_at_most() -> None:
    names = [each.name for each in conversations()]
    assert len(set(names)) == len(names)
    for each in conversations():
        told = repr(variables(each, Wants(special_tokens={})))
        once = [mark for mark in MARKS if mark != THOUGHT]  # which has two names in a message
        assert all(told.count(mark) <= 1 for mark in once), each.name
        assert USER in told


def test_each_call_is_of_a_tool_of_its_own() -> None:
    assert tuple(tool.name for tool in TOOLS) == NAMES
    assert tuple(each.name for each in CALLS) == NAMES
