"""A server is killed while it recasts contexts: each session stands before the cut or behind it.

``KEEPWARM_CONTEXT_KILLS`` says how many times (CI: 8; 100 is the long campaign),
``KEEPWARM_CONTEXT_KILL_SEED`` where the draws begin.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage

from keepwarm.demo.child_server import child_server
from sessions.durable.ledger import COMPACTION, nano_dollars
from sessions.journal.adoption import Loader, link_up
from sessions.journal.encoding import decode_turn
from sessions.journal.records import SERVER_DIED, TENANT_ACCOUNT
from sessions.journal.sqlite import SqliteJournal
from tests.e2e.conftest import OPTIONS
from tests.support.wire_client import TERMINAL, WireClient

KILLS = int(os.environ.get("KEEPWARM_CONTEXT_KILLS", "8"))
SEED = int(os.environ.get("KEEPWARM_CONTEXT_KILL_SEED", "1"))
THRESHOLD = 2400
OUTPUT = "The shop has sold so many of them today, at the usual price. "
TASK = "The task: count what the shop has sold."
PRICE = "input=3,cached=0.3,output=15"
G = {
    "type": "function",
    "name": "g",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": True,
}


class Agent:
    """A tool loop whose context is recast; a turn that was cut off is asked for again."""

    def __init__(self, name: str, *, ahead: bool) -> None:
        self.name = name
        self.acknowledged: list[dict[str, Any]] = []
        self.died: list[dict[str, Any]] = []
        """Turns that a server died in and had begun."""
        self.compacting = asyncio.Queue[str]()
        """Where it says that its context is being recast."""
        self._options = {"compaction": {"ahead": ahead}}
        self._tries = 0

    async def play(self, url: str) -> None:
        """Until the server is gone."""
        with contextlib.suppress(ConnectionClosed, OSError, InvalidMessage):
            client = await WireClient.open(url)
            while True:
                await self.turn(client)

    async def turn(self, client: WireClient) -> None:
        await client.send(**self._fields())
        event: dict[str, Any] = {"type": ""}
        while event["type"] not in TERMINAL:
            event = await client.event()
            if event["type"] == "response.compaction.compacting":
                self.compacting.put_nowait(self.name)
        assert "response" in event, event
        response = event["response"]
        if response["status"] == "failed":
            assert response["keepwarm"]["reason"] == SERVER_DIED, response
            self.died.append(response)
            self._tries += 1
        else:
            self.acknowledged.append(response)

    def _fields(self) -> dict[str, Any]:
        number = len(self.acknowledged)
        fields: dict[str, Any] = {
            "input": TASK,
            "tools": [G],
            "tool_choice": "required",
            "temperature": 0,
            "context_management": [{"type": "compaction", "compact_threshold": THRESHOLD}],
            "keepwarm": self._options
            | {"session": self.name, "request_id": f"{self.name}.{number}.{self._tries}"},
        }
        if self.acknowledged:
            last = self.acknowledged[-1]
            fields["previous_response_id"] = last["id"]
            fields["input"] = [
                {
                    "type": "function_call_output",
                    "call_id": item["call_id"],
                    "output": f"{number}: {OUTPUT * 2}",
                }
                for item in last["output"]
                if item["type"] == "function_call"
            ] or f"{number}: go on"
        return fields


async def kill_in_a_cut(
    url: str, pid: int, agents: list[Agent], number: int, after_s: float
) -> None:
    """Kill the server so long after that many of the agents' contexts have begun to be recast."""
    compacting = asyncio.Queue[str]()
    for agent in agents:
        agent.compacting = compacting
    playing = [asyncio.create_task(agent.play(url)) for agent in agents]
    for _ in range(number):
        await asyncio.wait_for(compacting.get(), timeout=120)
    await asyncio.sleep(after_s)
    for each in playing:
        assert not each.done() or each.result(), "an agent has stopped"
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*playing)


def check(journal: Path, agents: list[Agent], cuts: Counter[str]) -> None:
    """What was acknowledged is there, whole and charged once, on the chain it was asked on; what
    was cut off is there once or not at all."""
    opened = SqliteJournal(journal, fingerprint=b"")
    try:
        costs = 0
        for agent in agents:
            rows = opened.session_turns("default", agent.name)
            told = {row.response_id: decode_turn(row) for row in rows}
            assert len(told) == len(rows)
            ids = [row.request_id for row in rows if row.request_id is not None]
            assert len(ids) == len(set(ids)), "a request was answered by two turns"
            record = opened.session("default", agent.name)
            assert record is not None
            assert record.account.cost == sum(body.cost for body in told.values())
            costs += record.account.cost
            check_chain(opened, agent, {row.response_id: row for row in rows})
            check_summaries(agent, told, cuts)
        assert opened.account("default", TENANT_ACCOUNT).cost == costs
    finally:
        opened.close()


def check_chain(opened: SqliteJournal, agent: Agent, rows: dict[str, Any]) -> None:
    """Each turn that was acknowledged comes behind the one before; the last can be loaded."""
    before = None
    for response in agent.acknowledged:
        row = rows[response["id"]]
        assert row.parent_id == before, "a chain went on elsewhere"
        assert nano_dollars(response["keepwarm"]["cost"]["turn"]) == decode_turn(row).cost
        before = row.response_id
    fingerprint = rows[agent.acknowledged[-1]["id"]].fingerprint
    loaded = Loader(opened, fingerprint=fingerprint).load("default", agent.acknowledged[-1]["id"])
    assert loaded is not None
    entry = link_up(loaded.turns, lambda _: None)
    tokens = agent.acknowledged[-1]["usage"]["total_tokens"]
    assert len(entry.header.ids) + entry.num_tokens == tokens


def check_summaries(agent: Agent, told: dict[str, Any], cuts: Counter[str]) -> None:
    """Each summary that an acknowledged turn tells of is charged once; further ones only for turns
    that servers died in, or that were computed ahead and are still to be taken."""
    charged = Counter(
        (body.usage.input_tokens, body.usage.output_tokens)
        for body in told.values()
        if body.status == COMPACTION and body.usage.output_tokens
    )
    contexts = [each["keepwarm"].get("context") for each in agent.acknowledged]
    used = Counter(
        (context["computed"] + context["cached"], context["output"])
        for context in contexts
        if context is not None and context["output"]
    )
    assert not used - charged, "a summary that was told of is not charged"
    cuts[agent.name] = sum(context is not None for context in contexts)
    assert (charged - used).total() <= cuts["kills"] + 1, "a summary is charged twice"


@pytest.mark.timeout(300 + 30 * KILLS)
def test_a_session_whose_server_dies_in_a_cut_stands_before_it_or_behind(tmp_path: Path) -> None:
    draw, journal, cuts = random.Random(SEED), tmp_path / "journal", Counter[str]()
    agents = [Agent(f"s{n}", ahead=n == 1) for n in range(3)]
    options = [*OPTIONS, "--journal", str(journal), "--price", PRICE]
    for _ in range(KILLS):
        with child_server(options, log=tmp_path / "log", start_timeout_s=600) as server:
            after_s = draw.choice((0.02, 0.1, 0.5)) * draw.random()
            pid, number = server.process.pid, draw.choice((1, 2, 3, 4))
            asyncio.run(kill_in_a_cut(server.url, pid, agents, number, after_s))
        cuts["kills"] += 1
        check(journal, agents, cuts)
    assert sum(cuts[agent.name] for agent in agents) > KILLS // 2, cuts
    with child_server(options, log=tmp_path / "log", start_timeout_s=600) as server:
        asyncio.run(go_on(server.url, agents))
    check(journal, agents, cuts)


async def go_on(url: str, agents: list[Agent]) -> None:
    """Every session does, at one more server."""
    for agent in agents:
        client, before = await WireClient.open(url), len(agent.acknowledged)
        while len(agent.acknowledged) < before + 2:
            await agent.turn(client)
        await client.close()
