"""Arguments of a session are looked at before anything is sent."""

from typing import Any

import pytest

from tools_api.items import Message, TextPart
from tools_api.sdk.checks import (
    check_budget,
    check_input,
    check_labels,
    check_name,
    of_kind,
)
from tools_api.sdk.options import meant

MESSAGE = Message(role="user", content=(TextPart(type="input_text", text="x"),))


@pytest.mark.parametrize("budget", [None, {}, {"output": 5, "scope": "turn"}, {"soft": {}}])
def test_a_budget_that_can_be_is_let(budget: Any) -> None:
    check_budget(budget)


@pytest.mark.parametrize("given", ["", "x", (), [], [{}], [MESSAGE], (MESSAGE, {})])
def test_an_input_that_can_be_is_let(given: Any) -> None:
    check_input(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "input is None: give a string"),
        ({}, "input is of type dict: give a string"),
        (3, "input is of type int"),
        ({"a"}, "input is of type set"),
        ([{}, 3], r"input\[1\] is of type int"),
    ],
)
def test_an_input_that_cannot_be_is_named(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        check_input(given)


@pytest.mark.parametrize("labels", [None, {}, {"team": "search"}])
def test_labels_that_can_be_are_let(labels: Any) -> None:
    check_labels(labels)


@pytest.mark.parametrize(
    ("labels", "said"), [([], "labels is"), ({"a": 1}, r"labels\['a'\]"), ({1: "a"}, "name 1")]
)
def test_labels_that_cannot_be_are_named(labels: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        check_labels(labels)


def test_names_are_texts_of_some_length() -> None:
    for name in (None, "a", "x" * 256):
        check_name(name)
    for name in ("", "x" * 257):
        with pytest.raises(ValueError, match="1 to 256"):
            check_name(name)


def test_what_is_meant_is_told_only_where_it_is_near() -> None:
    assert meant("outputs", ["output", "cost"]) == ": is output meant?"
    assert meant("colour", ["output", "cost"]) == ""
    of_kind("x", None, str, "a string")
