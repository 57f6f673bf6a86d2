"""What ``client.session`` makes of its arguments before anything is sent."""

from typing import Any

import pytest

from tools_api.sdk.backoff import Retries
from tools_api.sdk.connection import Connection, Endpoint
from tools_api.sdk.hooks import NO_HOOKS
from tools_api.sdk.new_session import equipped, new_session

NOTHING: dict[str, Any] = {"name": None, "budget": None, "labels": None, "head": None}


def made(**given: Any) -> Any:
    connection = Connection(Endpoint("http://h/v1"), Retries())
    equipment = equipped(None, None)
    return new_session(connection, **NOTHING | given, equipment=equipment, defaults={})


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"name": "a"}, {"session": "a"}),
        ({"labels": {}}, {"labels": {}}),
        (
            {"name": "a", "budget": {"output": 5}},
            {"session": "a", "budget": {"scope": "tree", "output": 5}},
        ),
    ],
)
def test_only_what_was_given_goes_with_its_turns(given: dict[str, Any], sent: Any) -> None:
    assert made(**given)._chain.defaults.get("keepwarm") == sent


def test_a_session_behind_a_response_does_not_know_its_past() -> None:
    session = made(head="resp_1")
    assert (session.head, session._chain.complete) == ("resp_1", False)
    assert made()._chain.complete


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, True), "approve"),
        ((None, None, "8"), "max_parallel_tools"),
        ((None, None, 8, print), "hooks"),
    ],
)
def test_an_argument_of_another_kind_is_named(given: tuple[Any, ...], said: str) -> None:
    assert equipped("mine", None).context == "mine"
    assert equipped(None, None).hooks is NO_HOOKS
    with pytest.raises(TypeError, match=said):
        equipped(*given)
