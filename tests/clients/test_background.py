"""Turns in the background by clients as they are published: polled, streamed again, cancelled."""

import json

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.playing import made, run
from tests.clients.table import BACKGROUND, Agent


@pytest.mark.parametrize(
    "agent", BACKGROUND, ids=[f"{each.script}-{each.way}" for each in BACKGROUND]
)
def test_turns_run_on_and_are_found_again(agent: Agent, server: ChildServer) -> None:
    where = made(agent)
    printed = run(where, where.scripts / agent.script, server.url, agent.way)
    told = json.loads(printed.splitlines()[-1])
    turn = told["turn"]
    assert (turn["began"], turn["status"]) == ("queued", "completed")
    assert turn["text"]
    assert turn["streamed"] == turn["text"]
    assert turn["numbers"] == list(range(len(turn["numbers"])))
    assert turn["later"] == turn["numbers"][3:]
    assert told["cancelled"] == {"status": "incomplete", "cancelled": 1}
