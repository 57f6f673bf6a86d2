"""Requests that were taken up: each stage at which one may end, it ends once and frees its lane."""

from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from sessions.turns import running
from tests.support.sessions_rig import END, Client, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def broken(*_: object, **__: object) -> None:
    raise KeyError("secret")


REFUSED: dict[str, dict[str, Any]] = {
    "checked": {"model": "another"},
    "continued": {"previous_response_id": "resp_unknown"},
    "started": {"keepwarm": {"session": "s", "parent_session": "s"}},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED.keys())
def test_a_request_that_is_refused_is_answered_once_and_frees_its_lane(
    fields: dict[str, Any], rig: Rig, client: Client
) -> None:
    (event,) = client.create(input="hi", **fields)
    assert event["type"] == "error"
    assert client.connection.num_active == 0
    assert len(rig.store.running) == 0
    assert client.turn("ok" + END, input="again")["status"] == "completed"


@pytest.mark.parametrize("stage", ["grammar_of", "find_lineage", "plan_turn"])
def test_a_stage_that_breaks_costs_its_request_and_nothing_else(
    stage: str, rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(running, stage, broken)
        (event,) = client.create(input="hi", keepwarm={"session": "s"})
    assert (event["type"], event["status"]) == ("error", 500)
    assert client.connection.num_active == 0
    given = client.turn("ok" + END, input="again", keepwarm={"session": "s"})
    assert given["status"] == "completed", "its session was let go as well"


def test_a_grammar_that_is_refused_frees_the_session_that_its_request_had(
    rig: Rig, client: Client
) -> None:
    rig.checks_pass = False
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    client.create(input="hi", keepwarm={"session": "s"}, text={"format": schema})
    other = rig.connect()
    other.create(input="and I?", keepwarm={"session": "s"})
    assert not rig.engine.requests
    rig.verdict(GrammarRefused("it cannot be enforced"))
    assert client.last["error"]["code"] == "invalid_json_schema"
    rig.reply("ok" + END)
    assert other.last["type"] == "response.completed"
