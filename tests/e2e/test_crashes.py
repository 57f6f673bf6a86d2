"""A server that is killed, and the next one on the same journal: nothing acknowledged is lost.

``KEEPWARM_CRASHES`` says how many times the server is killed (CI: 5; 200 is the long campaign).
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidMessage

from keepwarm.demo.child_server import child_server
from runtime.model.presets import random_model_config
from runtime.model.sources import BYTE_TOKENIZER
from runtime.tokenizer import Tokenizer
from sessions.durable.ledger import nano_dollars
from sessions.durable.transcript import chain_ids
from sessions.journal.adoption import Loader, link_up
from sessions.journal.encoding import TurnBody, decode_turn
from sessions.journal.records import (
    PARENT_DELETED,
    SERVER_DIED,
    TENANT_ACCOUNT,
    StoredTurn,
)
from sessions.journal.sqlite import SqliteJournal
from tests.e2e.conftest import OPTIONS
from tests.support.wire_client import WireClient

CRASHES = int(os.environ.get("KEEPWARM_CRASHES", "5"))
SESSIONS = 4
LONG_TOKENS = 2000
"""A session of so many is left, and another begun: the model's context has an end."""
VOCABULARY = random_model_config("qwen3-tiny").vocab_size


class Agent:
    """One session after the other: plays turns, and remembers what it was told had ended. A turn
    whose answer it did not get is asked for again, by its id."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.sessions: list[str] = []
        self.acknowledged: list[dict[str, Any]] = []
        self.cut: list[dict[str, Any]] = []
        """Turns that ran when a server died."""
        self.roots: set[int] = set()
        """Of what was acknowledged, the indices of turns that began a session."""
        self.checked = 0
        """So many of what was acknowledged have been compared."""
        self._numbers = itertools.count()
        self._asked: dict[str, Any] | None = None

    async def play(self, url: str, until: asyncio.Event) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            try:
                client = await WireClient.open(url)
            except InvalidMessage:
                assert until.is_set(), "it was killed while this one connected"
                return
            while not until.is_set():
                await self.turn(client)

    async def turn(self, client: WireClient) -> None:
        if self._asked is None:
            self._asked = self._next()
        event = await client.turn(**self._asked)
        self._asked = None
        if event["type"] == "response.failed":
            assert event["response"]["keepwarm"]["reason"] == SERVER_DIED, event
            self.cut.append(event["response"])
            return
        assert event["type"] in ("response.completed", "response.incomplete"), event
        self.acknowledged.append(event["response"])

    def _next(self) -> dict[str, Any]:
        number = next(self._numbers)
        last = self.acknowledged[-1] if self.acknowledged else None
        if last is None or last["usage"]["total_tokens"] > LONG_TOKENS:
            self.roots.add(len(self.acknowledged))
            self.sessions.append(f"{self._name}.{number}")
            last = None
        fields: dict[str, Any] = {
            "input": f"turn {number}",
            "max_output_tokens": 6,
            "include": ["message.output_text.logprobs"],
            "keepwarm": {"session": self.sessions[-1], "request_id": f"{self._name}.{number}"},
        }
        if last is not None:
            fields["previous_response_id"] = last["id"]
        return fields


def options_with(journal: Path) -> list[str]:
    return [*OPTIONS, "--journal", str(journal), "--price", "input=3,cached=0.3,output=15"]


async def load_and_kill(
    url: str, pid: int, agents: list[Agent], after_s: float, *, turns: int
) -> None:
    """Kill the server so long after so many turns of this life have ended."""
    until = asyncio.Event()
    playing = [asyncio.create_task(agent.play(url, until)) for agent in agents]
    enough = sum(len(agent.acknowledged) for agent in agents) + turns
    while sum(len(agent.acknowledged) for agent in agents) < enough:
        for each in playing:
            assert not each.done() or each.result(), "an agent has stopped"
        await asyncio.sleep(0.01)
    await asyncio.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    until.set()
    await asyncio.gather(*playing)


def check(
    journal: Path, fingerprint: bytes, agents: list[Agent], tokens: Tokenizer, *, all_: bool = False
) -> None:
    """Every turn whose end was seen is there, with the tokens that were told, charged once, and
    its chain is whole; one that was cut short is spent, once."""
    opened = SqliteJournal(journal, fingerprint=fingerprint)
    try:
        loader = Loader(opened, fingerprint=fingerprint)
        costs = 0
        for agent in agents:
            rows: dict[str, StoredTurn] = {}
            bodies: dict[str, TurnBody] = {}
            for name in agent.sessions:
                mine = {row.response_id: row for row in opened.session_turns("default", name)}
                told = {id_: decode_turn(row) for id_, row in mine.items()}
                session = opened.session("default", name)
                cost = sum(body.cost for body in told.values())
                assert session is None or session.account.cost == cost
                costs += cost
                rows |= mine
                bodies |= told
            requests = [row.request_id for row in rows.values()]
            assert len(requests) == len(set(requests)), "a request was answered by two turns"
            before: str | None = None
            for n, response in enumerate(agent.acknowledged):
                id_, before = response["id"], None if n in agent.roots else before
                assert id_ in rows, "an acknowledged turn is gone"
                assert rows[id_].parent_id == before, "a chain went on elsewhere"
                if all_ or n >= agent.checked:
                    check_turn(loader, response, tokens)
                assert nano_dollars(response["keepwarm"]["cost"]["turn"]) == bodies[id_].cost
                before = id_
            agent.checked = len(agent.acknowledged)
            for response in agent.cut:
                body = bodies[response["id"]]
                assert (body.status, body.reason) == ("failed", SERVER_DIED)
                assert body.usage.input_tokens > 0
                assert body.usage.input_tokens == response["usage"]["input_tokens"]
        assert opened.account("default", TENANT_ACCOUNT).cost == costs
    finally:
        opened.close()


def check_turn(loader: Loader, response: dict[str, Any], tokens: Tokenizer) -> None:
    """What is loaded has the tokens that the client was told, one by one."""
    loaded = loader.load("default", response["id"])
    assert loaded is not None
    entry = link_up(loaded.turns, lambda _: None)
    assert len(entry.output_ids) == response["usage"]["output_tokens"]
    assert len(entry.header.ids) + entry.num_tokens == response["usage"]["total_tokens"]
    ids = chain_ids(entry.header, entry, entry.input_ids[:0])
    assert len(ids) == response["usage"]["total_tokens"]
    told = [
        bytes(each["bytes"])
        for item in response["output"]
        for part in item["content"]
        for each in part["logprobs"]
    ]
    kept = [tokens.token_bytes(int(token)) for token in entry.output_ids]
    assert kept[: len(told)] == told
    assert len(told) in (len(kept), len(kept) - 1), "all but what ends the turn"


def test_a_killed_server_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    seed = 20
    print(f"seed={seed}")
    chance, journal = random.Random(seed), tmp_path / "journal"
    agents = [Agent(f"s{n}") for n in range(SESSIONS)]
    fingerprint = b""
    tokens = Tokenizer.load(BYTE_TOKENIZER, vocab_size=VOCABULARY)
    for number in range(CRASHES):
        with child_server(
            options_with(journal), log=tmp_path / "log", start_timeout_s=600
        ) as server:
            pid = server.process.pid
            after_s, turns = chance.uniform(0.05, 0.6), 0 if number % 3 == 2 else 2
            asyncio.run(load_and_kill(server.url, pid, agents, after_s, turns=turns))
        fingerprint = fingerprint or _fingerprint(journal)
        check(journal, fingerprint, agents, tokens)
    check(journal, fingerprint, agents, tokens, all_=True)
    acknowledged = sum(len(agent.acknowledged) for agent in agents)
    cut = sum(len(agent.cut) for agent in agents)
    print(f"crashes={CRASHES} acknowledged={acknowledged} cut={cut}")
    assert acknowledged > CRASHES
    assert cut > 0


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
    with child_server(options_with(journal), log=tmp_path / "log", start_timeout_s=600) as server:
        first = httpx.post(
            f"{server.url}/responses",
            json={"input": "hello", "max_output_tokens": 5, "keepwarm": {"session": "s"}},
            timeout=30,
        ).json()
        shown = httpx.get(f"{server.url}/responses/{first['id']}", timeout=30).json()
    with child_server(options_with(journal), log=tmp_path / "log", start_timeout_s=600) as server:
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


def test_a_session_is_deleted_beside_the_server_that_runs_it(tmp_path: Path) -> None:
    """A parent that the server remembers is no parent any more, and nothing is left on it."""
    journal = tmp_path / "journal"
    place = ["--journal", str(journal)]

    async def scenario(url: str) -> None:
        client = await WireClient.open(url)
        named = {"keepwarm": {"session": "s"}, "max_output_tokens": 4}
        first = await client.response(input="never to be read again", **named)
        _sessions("delete", *place, "s")
        _sessions("vacuum", *place)
        for file in (journal, journal.with_name("journal-wal")):
            assert b"never to be read again" not in file.read_bytes()
        event = await client.turn(input="more", previous_response_id=first["id"], **named)
        assert event["type"] == "response.failed", event
        assert event["response"]["keepwarm"]["reason"] == PARENT_DELETED
        event = await client.turn(input="more", previous_response_id=first["id"], **named)
        assert event["error"]["code"] == "previous_response_not_found"
        anew = await client.response(input="anew", **named)
        assert anew["previous_response_id"] is None
        again = await client.response(input="on", previous_response_id=anew["id"], **named)
        assert again["status"] in ("completed", "incomplete")
        await client.close()

    with child_server(options_with(journal), log=tmp_path / "log", start_timeout_s=600) as server:
        asyncio.run(scenario(server.url))
    shown = json.loads(_sessions("show", *place, "s", "--json"))
    assert shown[0]["reason"] == PARENT_DELETED
    assert len(shown) == 3
    assert {turn["status"] for turn in shown[1:]} <= {"incomplete", "completed"}
    with child_server(options_with(journal), log=tmp_path / "log", start_timeout_s=600) as server:
        found = httpx.get(f"{server.url}/responses/{shown[-1]['response']}", timeout=30)
        assert found.status_code == 200


def _sessions(*words: str) -> str:
    """What ``keepwarm sessions`` prints."""
    command = [sys.executable, "-m", "keepwarm", "sessions", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
