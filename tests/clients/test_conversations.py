"""Agents as they are published over three turns of their user, each with tools in them.

A script runs once and says what it saw. What the server says of it is asked as well: an agent
whose history is found goes on in one session, and computes what is new alone.
"""

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.playing import made, run
from tests.clients.table import AGENTS, Agent

SCRIPTED = [agent for agent in AGENTS if not agent.large]
EXPECTED = [
    ([["get_price", {"product": "desk"}], ["multiply", {"a": 180, "b": 3}]], "540"),
    ([["get_price", {"product": "lamp"}]], "24"),
    ([["get_price", {"product": "chair"}], ["multiply", {"a": 75, "b": 2}]], "150"),
]
TURNS = sum(len(calls) + 1 for calls, _ in EXPECTED)


@dataclass(frozen=True, kw_only=True)
class Played:
    agent: Agent
    turns: list[dict[str, Any]]
    """Of the user: the calls, and the answer."""
    sessions: list[dict[str, Any]]
    """Those that it made, as the server shows them."""
    failed: int
    """Requests of it that the server refused, or that failed."""


def shown(server: ChildServer) -> dict[str, Any]:
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/sessions.json") as page:
        found: dict[str, Any] = json.loads(page.read())
    return found


@pytest.fixture(
    scope="module", params=SCRIPTED, ids=[f"{each.script}-{each.way}" for each in SCRIPTED]
)
def played(request: pytest.FixtureRequest, server: ChildServer) -> Played:
    agent: Agent = request.param
    where = made(agent)
    before = shown(server)
    printed = run(where, where.scripts / agent.script, server.url, agent.way)
    after = shown(server)
    known = {each["session"] for each in before["sessions"]}
    return Played(
        agent=agent,
        turns=json.loads(printed.splitlines()[-1])["conversation"],
        sessions=[each for each in after["sessions"] if each["session"] not in known],
        failed=after["totals"]["failed"] - before["totals"]["failed"],
    )


def test_three_turns_of_a_user_are_played_with_their_tools(played: Played) -> None:
    assert len(played.turns) == len(EXPECTED)
    assert played.failed == 0
    if played.agent.lacks is not None:
        assert played.turns[0]["calls"][0] == EXPECTED[0][0][0]
        return
    for turn, (calls, answer) in zip(played.turns, EXPECTED, strict=True):
        assert turn["calls"] == calls
        assert answer in turn["answer"]


def test_its_history_is_found_and_only_what_is_new_is_computed(played: Played) -> None:
    """All turns of the model are one session; but for the first most of each is cached."""
    if played.agent.lacks is not None:
        assert len(played.sessions) > 1, "what the document says of it holds no longer"
        return
    (session,) = played.sessions
    assert session["turns"] == TURNS
    assert session["cached_tokens"] > 0.7 * session["input_tokens"]
