"""A server that is killed, and the next one on the same journal: nothing acknowledged is lost.

``KEEPWARM_CRASHES`` says how many times the server is killed (CI: as many of 20 as 40 seconds
allow; 200 is the long campaign).
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed

from keepwarm.demo.child_server import child_server
from sessions.journal.adoption import Loader, link_up
from sessions.journal.encoding import decode_turn
from sessions.journal.sqlite import SqliteJournal
from tests.e2e.conftest import OPTIONS
from tests.support.wire_client import WireClient

CRASHES = int(os.environ.get("KEEPWARM_CRASHES", "20"))
SECONDS = 40.0 if "KEEPWARM_CRASHES" not in os.environ else 1e9
SESSIONS = 4


class Agent:
    """One session: plays turns, and remembers what it was told had ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[dict[str, Any]] = []

    async def play(self, url: str, until: asyncio.Event) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            client = await WireClient.open(url)
            while not until.is_set():
                await self.turn(client)

    async def turn(self, client: WireClient) -> None:
        fields: dict[str, Any] = {"input": f"turn {len(self.acknowledged)}"}
        if self.acknowledged:
            fields["previous_response_id"] = self.acknowledged[-1]["id"]
        options = {"session": self.name}
        event = await client.turn(max_output_tokens=6, keepwarm=options, **fields)
        assert event["type"] in ("response.completed", "response.incomplete"), event
        self.acknowledged.append(event["response"])


def options_with(journal: Path) -> list[str]:
    return [*OPTIONS, "--journal", str(journal), "--price", "input=3,cached=0.3,output=15"]


async def load_and_kill(url: str, pid: int, agents: list[Agent], after_s: float) -> None:
    until = asyncio.Event()
    playing = [asyncio.create_task(agent.play(url, until)) for agent in agents]
    await asyncio.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    until.set()
    await asyncio.gather(*playing)


def check(journal: Path, fingerprint: bytes, agents: list[Agent]) -> None:
    """Every turn whose end was seen is there, charged once, and its chain is whole."""
    opened = SqliteJournal(journal, fingerprint=fingerprint)
    try:
        loader = Loader(opened, fingerprint=fingerprint)
        for agent in agents:
            rows = opened.session_turns("default", agent.name)
            ids = [row.response_id for row in rows]
            assert len(ids) == len(set(ids))
            bodies = [decode_turn(row) for row in rows]
            session = opened.session("default", agent.name)
            assert session is None or session.account.cost == sum(body.cost for body in bodies)
            for response in agent.acknowledged:
                assert response["id"] in ids, "an acknowledged turn is gone"
            if agent.acknowledged:
                last = agent.acknowledged[-1]
                loaded = loader.load("default", last["id"])
                assert loaded is not None
                entry = link_up(loaded.turns, lambda _: None)
                assert len(entry.output_ids) == last["usage"]["output_tokens"]
                held = len(entry.header.ids) + entry.num_tokens
                assert held == last["usage"]["total_tokens"]
    finally:
        opened.close()


def test_a_killed_server_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    seed = 20
    print(f"seed={seed}")
    chance, journal = random.Random(seed), tmp_path / "journal"
    agents = [Agent(f"s{n}") for n in range(SESSIONS)]
    began, crashes = time.monotonic(), 0
    fingerprint = b""
    while crashes < CRASHES and time.monotonic() - began < SECONDS:
        with child_server(options_with(journal), log=tmp_path / "log") as server:
            pid = server.process.pid
            asyncio.run(load_and_kill(server.url, pid, agents, chance.uniform(0.05, 0.6)))
        crashes += 1
        fingerprint = fingerprint or _fingerprint(journal)
        check(journal, fingerprint, agents)
    acknowledged = sum(len(agent.acknowledged) for agent in agents)
    print(f"crashes={crashes} acknowledged={acknowledged}")
    assert crashes >= 3
    assert acknowledged > crashes


def _fingerprint(journal: Path) -> bytes:
    opened = SqliteJournal(journal, fingerprint=b"")
    try:
        for session in opened.sessions():
            for row in opened.session_turns(session.tenant, session.name):
                return row.fingerprint
    finally:
        opened.close()
    return b""


def test_a_chain_goes_on_at_the_next_server_in_every_way(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with child_server(options_with(journal), log=tmp_path / "log") as server:
        first = httpx.post(
            f"{server.url}/responses",
            json={"input": "hello", "max_output_tokens": 5, "keepwarm": {"session": "s"}},
            timeout=30,
        ).json()
        shown = httpx.get(f"{server.url}/responses/{first['id']}", timeout=30).json()
    with child_server(options_with(journal), log=tmp_path / "log") as server:
        again = httpx.get(f"{server.url}/responses/{first['id']}", timeout=30).json()
        assert again == shown
        for fields in (
            {"previous_response_id": first["id"]},
            {"keepwarm": {"session": "s"}},
        ):
            answer = httpx.post(
                f"{server.url}/responses",
                json={"input": "more", "max_output_tokens": 5, **fields},
                timeout=30,
            )
            assert answer.status_code == 200, answer.text
            response = answer.json()
            assert response["previous_response_id"] is not None
            assert response["usage"]["input_tokens"] > first["usage"]["total_tokens"]
