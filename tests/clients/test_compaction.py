"""Clients as they are published that have their context compacted, over three turns of a user.

The answers behind a cut are the right ones: what was asked first and the newest turns stay.
"""

import json
import urllib.request

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.playing import made, run
from tests.clients.table import COMPACTING, Agent
from tests.clients.test_conversations import EXPECTED, shown


def recasts(server: ChildServer) -> float:
    """How many summaries and cuts the server has made."""
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("keepwarm_context_recasts_total")
    )


SCRIPTED = [agent for agent in COMPACTING if not agent.large]


@pytest.mark.parametrize("agent", SCRIPTED, ids=[f"{each.script}-{each.way}" for each in SCRIPTED])
def test_three_turns_are_answered_right_with_cuts_between_them(
    agent: Agent, server: ChildServer
) -> None:
    where = made(agent)
    before, cut = shown(server)["totals"]["failed"], recasts(server)
    printed = run(where, where.scripts / agent.script, server.url, agent.way)
    told = json.loads(printed.splitlines()[-1])
    assert shown(server)["totals"]["failed"] == before
    assert recasts(server) > cut
    assert told["compacted"] > 0, "the client has seen no item"
    for turn, (calls, answer) in zip(told["conversation"], EXPECTED, strict=True):
        assert turn["calls"] == calls
        assert answer in turn["answer"]
