"""Two real servers that share sessions: they alternate, are stopped in mid-turn, and drain.

``KEEPWARM_STOPS`` says how often a server is stopped (CI: 3; 100 is the long campaign), and
``KEEPWARM_STOP_SEED`` when.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.journal.postgres import PostgresJournal
from sessions.journal.records import SessionRecord
from sessions.journal.sql import SqlJournal
from sessions.journal.sqlite import SqliteJournal
from tests.e2e.conftest import OPTIONS
from tests.support.journals import assert_books_agree
from tests.support.postgres import MISSING, PROGRAMS, PostgresServer, postgres_server
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.skipif(PROGRAMS is None, reason=MISSING)

STOPS = int(os.environ.get("KEEPWARM_STOPS", "3"))
SEED = int(os.environ.get("KEEPWARM_STOP_SEED", "20"))
TURNS = 100
PATIENCE_S = 7.0
"""How long the servers wait for a journal that is out of reach, and for each other."""
ENDED = ("completed", "incomplete")
LONG = {"type": "string", "minLength": 1200, "maxLength": 1200}
"""A turn that has to write this does not end before it is asked for."""
PRICE = ["--price", "input=3,cached=0.3,output=15"]


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def stop_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the name of a process says that it is to stop inside a transaction."""
    folder = tmp_path_factory.mktemp("stop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "STOP_FOLDER", str(folder))
        patch.setitem(os.environ, "PATIENCE_S", str(PATIENCE_S))
        yield folder


@dataclass(kw_only=True)
class Pair:
    """Two servers, and what their journal says when it is asked beside them."""

    servers: list[ChildServer]
    journal: str
    stop_folder: Path

    def stop_inside(self, at: int) -> None:
        """Have a server stop itself in the transaction that writes its next turn."""
        (self.stop_folder / str(self.servers[at].process.pid)).touch()

    def signal(self, at: int, number: int) -> None:
        os.kill(self.servers[at].process.pid, number)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[WireClient]]:
        """One at each."""
        opened = [await WireClient.open(each.url, ping_interval=None) for each in self.servers]
        try:
            yield opened
        finally:
            for client in opened:
                await client.close()

    def books(self, name: str) -> tuple[SessionRecord, list[str]]:
        """A session, whose books agree, and its responses that can be continued."""
        with contextlib.closing(self._open()) as journal:
            found, rows = journal.session("default", name), journal.session_turns("default", name)
        assert found is not None
        assert_books_agree(found, rows)
        return found, [row.response_id for row in rows if row.continuable]

    def file_is_held(self) -> bool:
        """Whether somebody keeps others from writing to the file, for longer than a commit."""
        with contextlib.closing(
            sqlite3.connect(self.journal, timeout=0.5, isolation_level=None)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def _open(self) -> SqlJournal:
        if self.journal.startswith("postgresql:"):
            return PostgresJournal(self.journal, fingerprint=b"", owner="books")
        return SqliteJournal(Path(self.journal), fingerprint=b"", owner="books", shared=True)


@contextmanager
def serving(pair: Pair, folder: Path, *options: str) -> Iterator[Pair]:
    """Both at once: most of a start is waiting for the other processor."""
    with ExitStack() as stack:

        def start(name: str) -> ChildServer:
            given = [*OPTIONS, "--journal", pair.journal, *PRICE, *options]
            log, module = folder / f"{name}.log", "tests.support.stopping_server"
            return stack.enter_context(child_server(given, log=log, module=module))

        with ThreadPoolExecutor() as threads:
            pair.servers += threads.map(start, "ab")
        yield pair


@pytest.fixture(scope="module")
def pair(database: PostgresServer, stop_folder: Path) -> Iterator[Pair]:
    """Over PostgreSQL; of all tests that leave them as they were."""
    made = Pair(servers=[], journal=database.address, stop_folder=stop_folder)
    with serving(made, stop_folder):
        yield made


@pytest.fixture(scope="module")
def file_pair(tmp_path_factory: pytest.TempPathFactory, stop_folder: Path) -> Iterator[Pair]:
    """Over one SQLite file; the last test ends the first of them."""
    folder = tmp_path_factory.mktemp("file")
    made = Pair(servers=[], journal=str(folder / "journal"), stop_folder=stop_folder)
    with serving(made, folder, "--journal-shared"):
        yield made


def test_a_chain_alternates_between_two_servers_turn_by_turn(pair: Pair) -> None:
    async def scenario() -> list[float]:
        async with pair.clients() as clients:
            return await alternate(clients)

    async def alternate(clients: list[WireClient]) -> list[float]:
        took: list[float] = []
        parent: dict[str, str] = {}
        told: dict[str, Any] = {}
        for n in range(TURNS):
            options: dict[str, Any] = {"session": "chain"}
            if n == 0:
                options["budget"] = [{"scope": "session", "output": 10_000}]
            began = time.monotonic()
            response = await clients[n % 2].response(
                input=f"turn {n}", max_output_tokens=2, keepwarm=options, **parent
            )
            took.append(time.monotonic() - began)
            assert response["status"] in ENDED, response
            told = response["keepwarm"]
            assert told["turn"] == n + 1
            parent = {"previous_response_id": response["id"]}
        session, ids = pair.books("chain")
        assert len(ids) == TURNS
        assert told["budget"]["left"]["output"] == 10_000 - session.account.usage.output_tokens
        return took

    took = asyncio.run(asyncio.wait_for(scenario(), 300))
    middle, worst = statistics.median(took[2:]), max(took[2:])
    print(f"turns={TURNS} turn_ms={middle * 1000:.0f} worst_ms={worst * 1000:.0f}")


class Chain:
    """A session whose budget is spent to the last token, while its servers are stopped."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.pair, self.name = pair, name
        self.budget = 120 * STOPS + 307
        self.last: dict[str, str] = {}
        self.acknowledged: list[str] = []
        self.refused: list[str] = []

    async def turn(self, client: WireClient, most: int = 60) -> dict[str, Any]:
        """The turn's response, whatever became of it."""
        options: dict[str, Any] = {"session": self.name}
        if not self.last:
            options["budget"] = [{"scope": "session", "output": self.budget}]
        fields = {"input": "go on", "max_output_tokens": most, "keepwarm": options}
        return await client.response(**fields, truncation="auto", **self.last)

    def take(self, response: dict[str, Any], *, as_last: bool = True) -> None:
        assert response["status"] in ENDED, response["keepwarm"]
        self.acknowledged.append(response["id"])
        if as_last:
            self.last = {"previous_response_id": response["id"]}

    async def round(
        self, clients: list[WireClient], at: int, stop: Callable[[], Awaitable[None]]
    ) -> float:
        """A turn in the middle of which its server stops; how long the other one takes for the
        next, whose answer is the chain's last from now on."""
        sleeping, other = clients[at], clients[1 - at]
        turn = asyncio.create_task(self.turn(sleeping))
        try:
            await stop()
            began = time.monotonic()
            self.take(await self.turn(other))
            took = time.monotonic() - began
        finally:
            self.pair.signal(at, signal.SIGCONT)
        woken = await turn
        if woken["status"] in ENDED:
            self.take(woken, as_last=False)  # it was committed before
        else:
            assert woken["keepwarm"]["reason"] == "session_moved", woken
            self.refused.append(woken["id"])
        return took

    async def spend(self, client: WireClient) -> None:
        """What is left, to the last token."""
        left = 1
        while left:
            response = await self.turn(client, most=5000)
            self.take(response)
            left = response["keepwarm"]["budget"]["left"]["output"]
        beyond = await self.turn(client)
        assert (beyond["status"], beyond["keepwarm"]["reason"]) == ("failed", "budget_exhausted")

    def check(self) -> None:
        """What was acknowledged is there, what was refused is not, the budget is spent."""
        session, ids = self.pair.books(self.name)
        assert set(self.acknowledged) <= set(ids)
        assert not set(self.refused) & set(ids)
        assert session.account.usage.output_tokens == self.budget


def test_a_turn_is_come_back_to_at_the_other_server_over_socket_and_http(pair: Pair) -> None:
    """While it runs that server says where it is, then it gives its end; nothing starts twice."""
    kept = {"session": "back", "request_id": "back 1", "on_disconnect": "continue"}
    shape = {"type": "object", "properties": {"text": LONG}, "required": ["text"]}
    form = {"format": {"type": "json_schema", "name": "long", "schema": shape}}
    create = {"input": "go on", "max_output_tokens": 1500, "text": form, "keepwarm": kept}
    origin = pair.servers[1].url

    async def until_ended(ask: Callable[[], Awaitable[tuple[int, Any]]]) -> tuple[int, Any]:
        """How often it was asked for while it ran, and what came in the end."""
        for count in itertools.count():
            status, body = await ask()
            if status != 409:
                return count, body
            assert body["error"]["code"] == "response_runs_elsewhere", body
            await asyncio.sleep(0.05)
        raise AssertionError

    async def scenario() -> None:
        async with pair.clients() as (here, there), httpx.AsyncClient(timeout=60) as http:
            await here.send(**create)
            response_id = (await here.event())["response"]["id"]
            while (await here.event())["type"] != "response.output_text.delta":
                pass  # the engine has it
            await here.close()
            shown = await http.get(f"{origin}/responses/{response_id}")
            assert (shown.status_code, shown.headers["Retry-After"]) == (409, "1"), shown.text

            async def again() -> tuple[int, Any]:
                event = await there.turn(**create)
                return event.get("status", 200), event

            async def resumed() -> tuple[int, Any]:
                wish = {"response_id": response_id, "after_sequence": 3}
                event = await there.turn(type="keepwarm:response.resume", **wish)
                return event.get("status", 200), event

            async def posted() -> tuple[int, Any]:
                named = {key: kept[key] for key in ("session", "on_disconnect")}
                answer = await http.post(
                    f"{origin}/responses",
                    json=create | {"keepwarm": named},
                    headers={"Idempotency-Key": "back 1"},
                )
                return answer.status_code, answer.json()

            asked = 0
            ends = []
            for ask in (again, resumed, posted):
                count, end = await until_ended(ask)
                asked += count
                ends.append(end.get("response", end))
            assert asked, "it still ran when it was asked for"
            assert ends[0] == ends[1] == ends[2]
            assert (ends[0]["id"], ends[0]["status"] in ENDED) == (response_id, True)
            shown = await http.get(f"{origin}/responses/{response_id}")
            assert shown.json() == ends[0]

    asyncio.run(asyncio.wait_for(scenario(), 120))
    assert pair.books("back")[1] == [pair.books("back")[0].head_id], "one turn"


def test_a_server_that_is_stopped_in_mid_turn_is_passed_over_and_refused_when_it_wakes(
    pair: Pair,
) -> None:
    chance, took = random.Random(SEED), list[float]()
    chain = Chain(pair, "stopped")

    async def scenario() -> None:
        async with pair.clients() as clients:
            for _ in range(3):
                began = time.monotonic()
                chain.take(await chain.turn(clients[0]))
                turn_s = time.monotonic() - began
            for n in range(STOPS):
                at = n % 2

                async def somewhere(at: int = at) -> None:
                    await asyncio.sleep(chance.uniform(0, turn_s))
                    pair.signal(at, signal.SIGSTOP)

                took.append(await chain.round(clients, at, somewhere))
            await chain.spend(clients[0])

    print(f"seed={SEED}")
    asyncio.run(asyncio.wait_for(scenario(), 60 + 20 * STOPS))
    chain.check()
    assert chain.refused or STOPS < 20
    print(f"stops={STOPS} refused={len(chain.refused)} taken_over_s={[round(s, 2) for s in took]}")


def test_a_server_that_is_stopped_inside_a_transaction_loses_it(pair: Pair) -> None:
    """The database ends it, and with it the locks that it holds."""
    chain = Chain(pair, "inside")

    async def inside() -> None:
        await until_stopped(pair, 0)

    async def scenario() -> float:
        async with pair.clients() as clients:
            chain.take(await chain.turn(clients[0]))
            pair.stop_inside(0)
            took = await chain.round(clients, 0, inside)
            await chain.spend(clients[0])
            return took

    took = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert chain.refused
    chain.check()
    print(f"taken_over_s={took:.2f}")


async def until_ready(pair: Pair) -> None:
    """Wait until both servers say that turns are welcome."""
    async with httpx.AsyncClient() as http, asyncio.timeout(30):
        for server in pair.servers:
            address = server.url.removesuffix("/v1")
            while (await http.get(f"{address}/readyz")).status_code != 200:
                await asyncio.sleep(0.05)


async def until_stopped(pair: Pair, at: int) -> None:
    """Wait until a server has stopped itself."""
    stat = Path(f"/proc/{pair.servers[at].process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        await asyncio.sleep(0.01)


def test_a_server_stopped_inside_a_transaction_holds_the_file_and_one_outside_does_not(
    file_pair: Pair,
) -> None:
    chain = Chain(file_pair, "file")

    async def between() -> None:
        """Elsewhere than in a heartbeat's transaction, or in another one that happened to run."""
        while True:
            file_pair.signal(0, signal.SIGSTOP)
            await until_stopped(file_pair, 0)
            if not file_pair.file_is_held():
                return
            file_pair.signal(0, signal.SIGCONT)
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with file_pair.clients() as clients:
            chain.take(await chain.turn(clients[0]))
            await chain.round(clients, 0, between)
            chain.take(await chain.turn(clients[0]))
            file_pair.stop_inside(0)
            holding = asyncio.create_task(chain.turn(clients[0]))
            await until_stopped(file_pair, 0)
            try:
                asked = {"session": chain.name}
                refused = await clients[1].turn(input="hi", keepwarm=asked, max_output_tokens=2)
            finally:
                file_pair.signal(0, signal.SIGCONT)
            assert refused["error"]["code"] == "server_is_overloaded", refused
            chain.take(await holding)
            await until_ready(file_pair)
            await chain.spend(clients[1])

    asyncio.run(asyncio.wait_for(scenario(), 60))
    chain.check()


def test_a_server_that_drains_hands_its_idle_sessions_on_at_once(file_pair: Pair) -> None:
    """While a turn of its own still runs, and before it would be missed."""

    async def scenario() -> tuple[float, float]:
        async with file_pair.clients() as (here, there):
            idle = await here.response(input="hi", max_output_tokens=2, keepwarm={"session": "i"})
            await here.send(input="hi", max_output_tokens=400, keepwarm={"session": "busy"})
            while (await here.event())["type"] != "response.in_progress":
                pass
            file_pair.signal(0, signal.SIGTERM)
            began = time.monotonic()
            while file_pair.books("i")[0].owner:
                await asyncio.sleep(0.01)
            free_s = time.monotonic() - began
            assert file_pair.servers[0].process.poll() is None
            more: dict[str, Any] = {"input": "and?", "max_output_tokens": 2}
            behind = await there.response(keepwarm={"session": "i"}, **more)
            took_s = time.monotonic() - began - free_s
            assert behind["previous_response_id"] == idle["id"]
            ended = (await here.events())[-1]["response"]
            assert ended["status"] in ENDED, ended
            behind = await there.response(keepwarm={"session": "busy"}, **more)
            assert behind["previous_response_id"] == ended["id"]
            return free_s, took_s

    free_s, took_s = asyncio.run(asyncio.wait_for(scenario(), 60))
    print(f"free_ms={free_s * 1000:.0f} next_turn_ms={took_s * 1000:.0f}")


def test_a_database_that_is_gone_for_a_while_costs_no_turn_and_for_long_none_acknowledged(
    pair: Pair, database: PostgresServer
) -> None:
    chain = Chain(pair, "gone")

    async def scenario() -> dict[str, Any]:
        async with pair.clients() as clients:
            first = await chain.turn(clients[0])
            chain.take(first)
            running = asyncio.create_task(chain.turn(clients[0], most=200))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(database.stop, "fast")
            asked = {"session": "a third"}
            early = await clients[1].turn(input="hi", max_output_tokens=2, keepwarm=asked)
            await asyncio.to_thread(database.start)
            assert early["error"]["code"] == "server_is_overloaded", early
            chain.take(await running)
            await until_ready(pair)
            await asyncio.to_thread(database.stop)
            try:
                asked = {"session": "another"}
                refused = await clients[0].turn(input="hi", max_output_tokens=2, keepwarm=asked)
            finally:
                await asyncio.to_thread(database.start)
            await until_ready(pair)
            chain.take(await chain.turn(clients[1]))
            await chain.spend(clients[0])
            return refused

    refused = asyncio.run(asyncio.wait_for(scenario(), 90))
    assert refused["error"]["code"] == "server_is_overloaded", refused
    chain.check()
