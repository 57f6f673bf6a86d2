"""Which requests want their context recast, and how."""

from typing import Any

import pytest

from sessions.turns.recasting import Rules
from sessions.turns.thresholds import rules_of
from tests.support.recast_loops import connect, threshold
from tests.support.sessions_rig import END
from tools_api.requests import ContextManagement, CreateRequest

CLEARS: dict[str, Any] = {"type": "clear_tool_uses", "compact_threshold": 100, "keep_uses": 2}


@pytest.mark.parametrize(
    ("fields", "entry", "rules"),
    [
        ({}, None, Rules()),
        ({"compacts": "trigger"}, None, Rules(clears=False, keeps_newest=False)),
        (
            {"compacts": "alone"},
            None,
            Rules(clears=False, keeps_newest=False, keeps_turns=False),
        ),
        (
            {},
            CLEARS | {"exclude_tools": ("f",), "clear_at_least": 7},
            Rules(summarises=False, keeps_uses=2, exempt=frozenset({"f"}), least=7),
        ),
    ],
)
def test_rules_are_what_the_request_says(
    fields: dict[str, Any], entry: dict[str, Any] | None, rules: Rules
) -> None:
    request = CreateRequest(model="m").model_copy(update=fields)
    found = None if entry is None else ContextManagement.model_validate(entry)
    assert rules_of(request, found) == rules


@pytest.mark.parametrize(("less", "is_due"), [(1, False), (0, True)])
def test_a_context_is_due_from_its_threshold_on(less: int, is_due: bool) -> None:
    """One that has a token less is not; a context in which nothing can go says so."""
    _, client = connect()
    tokens = client.turn("said" + END, input="the task")["keepwarm"]["tokens"]["input"]
    done = client.turn("said" + END, input="the task", context_management=threshold(tokens + less))
    told = any("nothing of the context" in each for each in done["keepwarm"].get("warnings", []))
    assert told is is_due
