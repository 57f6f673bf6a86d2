"""Clients as they are published that run tools of the API's own: shells, patches, found functions.

The calls are asked for, so that it does not matter what a model would rather do.
"""

import json

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.playing import made, run
from tests.clients.table import OWN_TOOLS, Agent
from tests.clients.test_conversations import shown


@pytest.mark.parametrize(
    "agent", OWN_TOOLS, ids=[f"{each.script}-{each.way}" for each in OWN_TOOLS]
)
def test_calls_are_run_by_the_client_and_the_model_goes_on(
    agent: Agent, server: ChildServer
) -> None:
    where, before = made(agent), shown(server)["totals"]["failed"]
    printed = run(where, where.scripts / agent.script, server.url, agent.way)
    told = json.loads(printed.splitlines()[-1])
    assert shown(server)["totals"]["failed"] == before
    runs, seen = told["runs"], told["seen"]
    for name in ("shell", "local_shell", "apply_patch"):
        assert runs[name]["kinds"][:2] == [f"{name}_call", f"{name}_call_output"]
        assert runs[name]["kinds"][-1] == "message"
        assert len(seen[name]) >= 1
    assert all(isinstance(line, str) for line in seen["shell"][0])
    kind, path = seen["apply_patch"][0]
    assert kind in ("create_file", "update_file", "delete_file")
    assert path
    found = runs["tool_search"]["kinds"]
    assert found[:2] == ["tool_search_call", "tool_search_output"]
    assert found[-1] == "message"
