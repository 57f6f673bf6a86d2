"""Two servers behind HAProxy: sessions find home, servers come and go, die and hang, and no turn is
lost or charged twice.

One cluster for all tests; each leaves two servers that are ready.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from playwright.sync_api import expect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from cluster.haproxy_file import BACKEND
from cluster.replica_process import ReplicaDidNotStart
from keepwarm import AsyncClient, AsyncSession, Response, TextDelta, TurnRestarted
from sessions.journal.members import MemberState
from sessions.journal.postgres import PostgresJournal
from tests.e2e.conftest import OPTIONS
from tests.support.clusters import Cluster, missing, running
from tests.support.journals import assert_books_agree
from tools.screenshots import browser, chromium, opened

LACKS = missing()
pytestmark = pytest.mark.skipif(bool(LACKS), reason=LACKS)

LENGTH = {"type": "string", "minLength": 700, "maxLength": 700}
SHAPE = {"type": "object", "properties": {"text": LENGTH}, "required": ["text"]}
LONG: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "long", "schema": SHAPE}},
    "max_output_tokens": 1500,
    "temperature": 0,
}
"""A turn that does not end before it is asked for."""
ENDED = ("completed", "incomplete")
SHORT: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}
AGAIN_S = 15.0
"""The longest until a client whose server died or hangs hears of its turn again."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(2, OPTIONS) as made:
        yield made


def run(scenario: Any, limit_s: float = 120) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, limit_s))


def client(cluster: Cluster) -> AsyncClient:
    return AsyncClient(cluster.url, sockets="session")


def books(cluster: Cluster, name: str) -> list[str]:
    """Ids of a session's responses that can be continued; its books agree."""
    address = cluster.database.address
    with contextlib.closing(
        PostgresJournal(address, fingerprint=b"", owner="tests", beside=True)
    ) as journal:
        found, rows = journal.session("default", name), journal.session_turns("default", name)
    assert found is not None
    assert_books_agree(found, rows)
    return [row.response_id for row in rows if row.continuable]


def a_fresh_pair(cluster: Cluster) -> None:
    """Two servers that are ready, in place of whoever is gone."""
    for dead in [each for each in cluster.replicas if not each.lives]:
        dead.end()
        cluster.replicas.remove(dead)
    while len(cluster.replicas) < 2:
        cluster.start(log=f"later {time.monotonic()}")
    cluster.until(
        lambda: all(cluster.serves(each) for each in cluster.replicas), "two servers serve"
    )


@contextlib.asynccontextmanager
async def sockets(cluster: Cluster, count: int, name: str) -> AsyncIterator[list[ClientConnection]]:
    address = cluster.url.replace("http://", "ws://") + "/responses"
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(connect(f"{address}?session={quote(f'{name}{n}')}"))
            for n in range(count)
        ]


def num_sockets(cluster: Cluster) -> dict[str, int]:
    """Open at each server, by address."""
    lines = cluster.haproxy.ask("show stat").splitlines()
    names = lines[0].removeprefix("# ").split(",")
    rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:]]
    return {
        row["addr"]: int(row["scur"])
        for row in rows
        if row["pxname"] == BACKEND and row["svname"].startswith("r") and row["status"] == "UP"
    }


def test_sessions_are_spread_evenly_and_come_home_on_every_new_socket(cluster: Cluster) -> None:
    async def scenario() -> list[Response]:
        before: dict[str, str] = {}
        last = []
        for turn in range(3):
            async with client(cluster) as own:
                sessions = [own.session(name=f"home {n}") for n in range(12)]
                last = [await each.respond(f"turn {turn}", **SHORT) for each in sessions]
                open_now = num_sockets(cluster)
            owners = {name: at for name, at in cluster.owners().items() if name.startswith("home")}
            if turn == 0:
                assert sorted(open_now.values()) == [6, 6]
                before = owners
            assert owners == before
            assert all(owners.values())
        return last

    last = run(scenario())
    assert all(each.usage.cached_tokens > each.usage.input_tokens / 2 for each in last)


async def told(session: AsyncSession, tell: asyncio.Event) -> tuple[Response, float, int]:
    """A long turn's end, the seconds that its stream was silent at most, and how often it began
    again. ``tell`` is set when it runs."""
    silent_s, restarts, at = 0.0, 0, time.monotonic()
    async for event in session.stream_turn("go on", **LONG):
        silent_s, at = max(silent_s, time.monotonic() - at), time.monotonic()
        restarts += isinstance(event, TurnRestarted)
        if isinstance(event, TextDelta):
            tell.set()
    assert isinstance(event, Response)
    return event, silent_s, restarts


async def interrupted(cluster: Cluster, name: str, number: int) -> tuple[float, int]:
    """Its owner gets a signal in the middle of a turn; the seconds until the client heard of that
    again."""
    async with client(cluster) as own:
        session, expected = own.session(name=name), own.session(name=f"{name} alone")
        await session.respond("begin", **SHORT)
        await expected.respond("begin", **SHORT)
        runs = asyncio.Event()
        turn = asyncio.create_task(told(session, runs))
        await asyncio.wait_for(runs.wait(), 30)
        owner = await asyncio.to_thread(cluster.owner_of, name)
        os.kill(owner.process.pid, number)
        response, silent_s, restarts = await turn
        assert response.status in ENDED
        if number == signal.SIGSTOP:
            os.kill(owner.process.pid, signal.SIGCONT)
        after = await session.respond("and now?", **SHORT)
        assert after.usage.input_tokens > response.usage.output_tokens
        whole = (await told(expected, asyncio.Event()))[0]
        assert response.text == whole.text
    ids = await asyncio.to_thread(books, cluster, name)
    assert ids[-2:] == [response.id, after.id]
    assert len(ids) == 3
    return silent_s, restarts


@pytest.mark.parametrize("number", range(3))
def test_a_front_end_that_is_killed_in_mid_turn_is_not_missed(
    cluster: Cluster, number: int
) -> None:
    cluster.buries = number != 2  # once nobody is there who would see it die
    silent_s, restarts = run(interrupted(cluster, f"killed {number}", signal.SIGKILL))
    cluster.buries = True
    print(f"heard_again_s={silent_s:.2f}")
    assert silent_s <= AGAIN_S
    assert restarts >= 1
    a_fresh_pair(cluster)


def test_a_server_that_is_stopped_in_mid_turn_is_left_and_refused_when_it_wakes(
    cluster: Cluster,
) -> None:
    silent_s, _ = run(interrupted(cluster, "stopped", signal.SIGSTOP))
    print(f"heard_again_s={silent_s:.2f}")
    assert silent_s <= AGAIN_S
    a_fresh_pair(cluster)
    rows = cluster.rows().values()
    assert len({each.slot for each in rows}) == 2


def test_a_drain_cuts_nobody_else_and_its_own_by_1012_though_the_balance_is_killed(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        leaver = cluster.replicas[0]
        async with sockets(cluster, 8, "drain ") as opened, client(cluster) as own:
            busy = [own.session(name=f"busy {n}") for n in range(2)]
            for each in busy:
                await each.respond("begin", **SHORT)
            runs = [asyncio.Event() for _ in busy]
            turns = [
                asyncio.create_task(told(each, event))
                for each, event in zip(busy, runs, strict=True)
            ]
            await asyncio.gather(*(event.wait() for event in runs))
            cluster.kill_balance()
            leaver.process.send_signal(signal.SIGTERM)
            async with httpx.AsyncClient() as http:
                origin = f"http://{leaver.address}"
                health = await http.get(f"{origin}/health")
                ready = await http.get(f"{origin}/readyz")
                assert (health.status_code, ready.status_code) == (200, 503)
            assert await asyncio.to_thread(cluster.begin_balance)
            assert await asyncio.to_thread(leaver.process.wait, 60) == 0
            for response, _, restarts in await asyncio.gather(*turns):
                assert response.status in ENDED
                assert restarts == 0
            await asyncio.sleep(0.1)
            closes = [close_of(each) for each in opened]
            assert sorted(filter(None, closes)) == [1012] * 4, closes
            fresh = [await each.respond("and now?", **SHORT) for each in busy]
            assert all(each.usage.input_tokens > 300 for each in fresh)

    run(scenario())
    a_fresh_pair(cluster)


def close_of(each: ClientConnection) -> int | None:
    """The code with which a socket was closed; None: it is open."""
    with contextlib.suppress(ConnectionClosed):
        return each.close_code
    return None


def test_a_rolling_update_fails_no_turn(cluster: Cluster) -> None:
    async def talk(own: AsyncClient, number: int, over: asyncio.Event) -> int:
        session, count = own.session(name=f"rolling {number}"), 0
        while not over.is_set() or count < 2:
            response = await session.respond(f"turn {count}", truncation="auto", **SHORT)
            assert response.status in ENDED
            count += 1
            await asyncio.sleep(0.2)  # the servers that start need the machine too
        return count

    async def scenario() -> list[int]:
        over = asyncio.Event()
        async with client(cluster) as own:
            talks = [asyncio.create_task(talk(own, number, over)) for number in range(4)]
            for old in list(cluster.replicas):
                new = await asyncio.to_thread(cluster.start, log=f"update {time.monotonic()}")
                await asyncio.to_thread(
                    cluster.until, lambda new=new: cluster.serves(new), "the new one serves"
                )
                assert await asyncio.to_thread(old.drain, 60) == 0
            over.set()
            return await asyncio.gather(*talks)

    counts = run(scenario())
    for number, count in enumerate(counts):
        assert len(books(cluster, f"rolling {number}")) == count
    a_fresh_pair(cluster)


def test_idle_sessions_of_a_server_that_left_come_home_to_the_next_one_in_its_slot(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        async with client(cluster) as own:
            for n in range(6):
                await own.session(name=f"left {n}").respond("begin", **SHORT)
        leaver = cluster.replicas[0]
        before = {name: at for name, at in cluster.owners().items() if name.startswith("left")}
        slot = cluster.rows()[leaver.address].slot
        assert await asyncio.to_thread(leaver.drain, 60) == 0
        cluster.replicas.remove(leaver)
        new = await asyncio.to_thread(cluster.start, "--cluster-slot", str(slot), log="in its slot")
        await asyncio.to_thread(cluster.until, lambda: cluster.serves(new), "it serves")
        assert cluster.rows()[new.address].slot == slot
        async with client(cluster) as own:
            for n in reversed(range(6)):
                await own.session(name=f"left {n}").respond("again", **SHORT)
        homes = {leaver.address: new.address}
        after = {name: at for name, at in cluster.owners().items() if name.startswith("left")}
        assert after == {name: homes.get(at, at) for name, at in before.items()}
        assert sum(at == leaver.address for at in before.values()) == 3

    run(scenario())


def test_servers_are_seen_in_a_list_on_a_page_and_behind_their_sessions(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client(cluster) as own:
            await own.session(name="seen").respond("begin", **SHORT)
        one, two = (each.address for each in cluster.replicas)
        async with httpx.AsyncClient(base_url=f"http://{one}") as http:
            page = (await http.get("/cluster.json")).json()
            listed = (await http.get("/sessions.json?list=1&q=seen")).json()["rows"]
        assert page["cluster"] == cluster.name
        ready = {each["address"] for each in page["servers"] if each["state"] == "ready"}
        assert ready == {one, two}
        assert [each["server"] for each in listed] == [cluster.owners()["seen"]]

    run(scenario())
    table = subprocess.run(
        [sys.executable, "-m", "keepwarm", "cluster", "status",
         "--journal", cluster.database.address, "--cluster", cluster.name],
        capture_output=True, text=True, check=True, env=cluster.environment(),
    ).stdout  # fmt: skip
    assert all(f"{each.address}  ready" in table for each in cluster.replicas)
    told = json.loads((cluster.folder / "targets.json").read_text())
    assert {each.address for each in cluster.replicas} <= set(told[0]["targets"])


@pytest.mark.skipif(chromium() is None, reason="there is no chromium on the path")
def test_a_person_sees_the_servers_and_at_which_each_session_is(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client(cluster) as own:
            await own.session(name="looked at").respond("begin", **SHORT)

    run(scenario())
    one, two = cluster.replicas
    with browser() as found:
        page = opened(found, f"http://{one.address}", None)
        page.goto("/dashboard#sessions?q=looked")
        row = page.locator("tr[data-session='looked at']")
        expect(row).to_contain_text(f"at {cluster.owners()['looked at']}", timeout=20_000)
        page.locator("nav a", has_text="Cluster").click()
        rows = page.locator("table.cluster tbody tr")
        for each in (one, two):
            mine = rows.filter(has_text=each.address)
            expect(mine.locator(".chip")).to_have_text("ready", timeout=20_000)
        expect(page.locator("#cluster-title")).to_contain_text(f"{cluster.name}, 2 ready")


def test_an_engine_that_dies_behind_its_front_end_cuts_no_socket(cluster: Cluster) -> None:
    async def scenario() -> None:
        struck = cluster.replicas[0]
        async with sockets(cluster, 4, "engine ") as opened:
            (engine,) = [
                each
                for each in psutil.Process(struck.process.pid).children()
                if "runtime.process.engine_process" in each.cmdline()
            ]
            engine.kill()
            await asyncio.to_thread(
                cluster.until, lambda: not cluster.serves(struck), "new sessions go elsewhere"
            )
            async with client(cluster) as own:
                await own.session(name="beside").respond("hi", **SHORT)
            assert cluster.owners()["beside"] != struck.address
            await asyncio.to_thread(
                cluster.until, lambda: cluster.serves(struck), "its engine is back"
            )
            assert [close_of(each) for each in opened] == [None] * 4

    run(scenario())


def test_a_database_that_was_away_takes_no_session_from_a_server_that_lives(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        async with client(cluster) as own:
            sessions = [own.session(name=f"away {n}") for n in range(4)]
            for each in sessions:
                await each.respond("begin", **SHORT)
            before = cluster.owners()
            async with sockets(cluster, 4, "away ") as opened:
                await asyncio.to_thread(cluster.database.stop)
                await asyncio.sleep(4.0)  # longer than servers that are not heard live
                await asyncio.to_thread(cluster.database.start)
                for each in sessions:
                    await each.respond("and now?", **SHORT)
                assert [close_of(each) for each in opened] == [None] * 4
            after = cluster.owners()
        for n in range(4):
            assert after[f"away {n}"] == before[f"away {n}"]

    run(scenario())
    a_fresh_pair(cluster)


def test_whoever_does_not_belong_is_refused_by_name(cluster: Cluster) -> None:
    other = ["--model", "random:qwen3-100m", "--port", "0"]
    given = ["--journal", cluster.database.address, "--cluster", cluster.name]
    command = ["keepwarm", "serve", *other, *given, "--advertise", "127.0.0.1"]
    refused = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False,
        env=cluster.environment(), timeout=60,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "serves random:qwen3-tiny" in refused.stderr
    with pytest.raises(ReplicaDidNotStart, match="is that of a server of the cluster"):
        cluster.start("--advertise", cluster.replicas[0].address, log="same address")
    cluster.replicas.pop()
    lost = cluster.start("--advertise", "127.0.0.1:9", log="lost")
    cluster.until(
        lambda: "nobody is reached at --advertise" in (cluster.folder / "lost.log").read_text(),
        "it says that nobody reaches it",
    )
    assert cluster.rows()["127.0.0.1:9"].presence.state is MemberState.STARTING
    lost.drain(30)
    cluster.replicas.remove(lost)


def test_of_two_balances_the_second_waits_and_takes_over_the_sockets(cluster: Cluster) -> None:
    async def scenario() -> None:
        number = cluster.haproxy.process()
        async with sockets(cluster, 4, "balance ") as opened:
            second = cluster.another_balance()
            assert second.stdout is not None
            line = await asyncio.to_thread(second.stdout.readline)
            assert "another balance is at work, waiting" in line
            await asyncio.to_thread(cluster.kill_balance)
            line = await asyncio.to_thread(second.stdout.readline)
            assert "ready at" in line
            cluster.balance = second
            assert cluster.haproxy.process() == number
            assert [close_of(each) for each in opened] == [None] * 4

    run(scenario())


def test_a_new_haproxy_knows_the_homes_that_the_last_one_had(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client(cluster) as own:
            for n in range(4):
                await own.session(name=f"kept {n}").respond("begin", **SHORT)
        before = cluster.owners()
        assert cluster.balance is not None
        cluster.balance.terminate()  # ends HAProxy as well, behind a copy of its table
        await asyncio.to_thread(cluster.balance.communicate)
        await asyncio.to_thread(cluster.begin_balance)
        await asyncio.to_thread(
            cluster.until, lambda: all(map(cluster.serves, cluster.replicas)), "both serve again"
        )
        async with client(cluster) as own:
            for n in reversed(range(4)):
                await own.session(name=f"kept {n}").respond("again", **SHORT)
        assert {name: cluster.owners()[name] for name in before if "kept" in name} == {
            name: at for name, at in before.items() if "kept" in name
        }

    run(scenario())
