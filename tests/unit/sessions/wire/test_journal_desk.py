"""A running hub and a journal in a file: order, restarts, and a journal that is out of reach."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from sessions.durable.account import NOTHING, Account, Budget
from sessions.durable.tenant import Tenant
from sessions.journal import ownership, shares
from sessions.journal.errors import JournalBusy, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.members import Heard
from sessions.journal.ownership import Ownership
from sessions.journal.records import session_account, tree_account
from sessions.journal.samples import HOUR_S, Sample
from sessions.journal.shares import Share
from sessions.journal.sqlite import SqliteJournal
from sessions.pages.metrics import Metrics
from sessions.pages.past import PastCurves
from sessions.pages.recorder import WHOLE, Recorder
from sessions.turns.connection import Connection
from sessions.turns.sharing import SharedAccounts
from sessions.turns.wanted import Wanted
from sessions.wire import journal_desk, session_sharing
from sessions.wire.errands import LongWork
from sessions.wire.http_responses import StoredResponses
from sessions.wire.hub import Hub
from sessions.wire.journal_desk import READERS
from sessions.wire.session_sharing import SessionSharing
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.exchange import KeptExchange, make_call
from tests.support.fake_engine import INFO
from tests.support.journals import over, record, reservation
from tests.support.reading import inline_reading
from tests.support.sessions_rig import make_service
from tests.support.speaking_engine import SpeakingEngine
from tests.support.timed_journal import TimedJournal


class Bench:
    """A server's inside over a journal; ``ids`` go on from server to server."""

    def __init__(
        self,
        path: Path,
        ids: Any,
        owner: str = "",
        *,
        shared: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal or SqliteJournal(path, fingerprint=b"f", owner=owner, shared=shared)
        service = make_service(FakeClock(1000.0))
        service = replace(service, new_id=lambda prefix: f"{prefix}_{next(ids)}")
        self.service, self.desk = over(self.journal, service)
        self.dashboard = make_dashboard(service.clock)
        self.engine = SpeakingEngine()
        self.metrics = Metrics()
        self.hub = Hub(
            engine=self.engine,
            store=service.store,
            connect=lambda id_, tenant: Connection(
                connection_id=id_, tenant=tenant, service=self.service
            ),
            long_work=LongWork(
                check_grammar=self._check,
                reading=inline_reading(self.service.read_context),
                journal=self.desk,
            ),
            metrics=self.metrics,
            dashboard=self.dashboard,
            clock=service.clock,
        )
        self.hub.engine_ready(INFO)
        self.task = asyncio.get_running_loop().create_task(self.hub.run())

    async def _check(self, *_: object) -> None:
        return None

    async def close(self) -> None:
        self.task.cancel()
        await self.desk.close()


class Client:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.events: list[dict[str, Any]] = []
        self.came = asyncio.Event()
        self.link = bench.hub.open("acme", self)

    def deliver(self, frames: Any, close: int | None) -> None:
        self.events += [orjson.loads(frame) for frame in frames]
        self.came.set()

    async def turn(self, **fields: Any) -> dict[str, Any]:
        event = {"type": "response.create", "input": "hi"} | fields
        self.bench.hub.receive(self.link, json.dumps(event))
        ends = ("response.completed", "response.failed", "response.incomplete", "error")
        while not self.events or self.events[-1]["type"] not in ends:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 20)
        last = self.events[-1]
        self.events.clear()
        return last


def no_samples(*, end: bool) -> Sequence[Sample]:
    del end
    return ()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_curves_of_a_server_are_there_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_desk, "SAMPLE_S", 0.001)

    async def scenario() -> None:
        wall, ids = FakeClock(90 * HOUR_S), iter(range(1000))
        for life in range(3):
            bench = Bench(tmp_path / "j", ids, owner=f"life {life}")
            bench.dashboard.history.recorder = Recorder(wall)
            past = PastCurves(
                bench.journal, bench.desk.beside, clock=bench.service.clock, wall_clock=wall
            )
            read = {}
            for level in ("hour", "day", "week", "month"):
                past.curves(level, WHOLE)
                while not (found := past.curves(level, WHOLE)).machine and life:
                    await asyncio.sleep(0.001)
                read[level] = sum(bucket.turns for bucket in found.turns.values())
            assert set(read.values()) == {life}
            await Client(bench).turn()
            bench.dashboard.tick()
            if life == 1:  # what a server that is killed leaves: all but its last minute
                wall.advance(60.0)
                while len(bench.journal.samples(WHOLE, HOUR_S, 0, own=True)) < 2:
                    await asyncio.sleep(0.001)
                monkeypatch.setattr(bench.desk, "_samples", no_samples)
            await bench.close()

    run(scenario)


def test_a_turn_goes_on_at_the_next_server_over_socket_and_http(tmp_path: Path) -> None:
    async def scenario() -> None:
        ids = iter(range(1000))
        bench = Bench(tmp_path / "j", ids)
        first = (await Client(bench).turn())["response"]
        await bench.close()
        bench = Bench(tmp_path / "j", ids)
        stored = StoredResponses(hub=bench.hub, store=bench.service.store)
        exchange = KeptExchange()
        assert exchange.play(stored.show_stored(make_call(first["id"])))
        while not exchange.over:
            await asyncio.sleep(0.001)
        assert exchange.body == first
        second = await Client(bench).turn(previous_response_id=first["id"])
        assert second["type"] == "response.completed"
        exchange = KeptExchange()
        exchange.play(stored.delete(make_call(first["id"], method="DELETE")))
        while not exchange.over:
            await asyncio.sleep(0.001)
        assert exchange.body["deleted"]
        await bench.close()
        bench = Bench(tmp_path / "j", ids)
        gone = await Client(bench).turn(previous_response_id=first["id"])
        assert gone["error"]["code"] == "previous_response_not_found"
        again = await Client(bench).turn(previous_response_id=second["response"]["id"])
        assert again["type"] == "response.completed"
        await bench.close()

    run(scenario)


def test_what_another_deleted_is_not_shown_from_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", iter(range(1000)))
        stored = StoredResponses(hub=bench.hub, store=bench.service.store)
        for shown in (stored.show_stored, stored.input_items):
            said = (await Client(bench).turn())["response"]
            for status in (200, 404):
                exchange = KeptExchange()
                exchange.play(shown(make_call(said["id"])))
                while not exchange.over:
                    await asyncio.sleep(0.001)
                assert exchange.status == status
                bench.journal.hide("acme", said["id"])
        await bench.close()

    run(scenario)


def test_a_response_whose_end_waits_for_the_journal_is_not_deleted_yet(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", iter(range(1000)))
        written, told, append = threading.Event(), threading.Event(), bench.journal.append

        def slow(*args: Any) -> list[bool]:
            done = append(*args)
            written.set()
            told.wait()
            return done

        bench.journal.append = slow  # type: ignore[method-assign]
        client = Client(bench)
        turn = asyncio.create_task(client.turn())
        await asyncio.to_thread(written.wait)
        id_ = client.events[0]["response"]["id"]
        stored = StoredResponses(hub=bench.hub, store=bench.service.store)
        exchange = KeptExchange()
        exchange.play(stored.delete(make_call(id_, method="DELETE")))
        while not exchange.over:
            await asyncio.sleep(0.001)
        assert exchange.body["error"]["code"] == "invalid_value"
        told.set()
        await turn
        assert bench.journal.turn("acme", id_) is not None
        await bench.close()

    run(scenario)


def test_when_the_last_event_comes_the_record_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", iter(range(1000)))
        clients = [Client(bench) for _ in range(8)]
        for _ in range(5):
            ended = await asyncio.gather(*(client.turn() for client in clients))
            for event in ended:
                assert bench.journal.turn("acme", event["response"]["id"]) is not None
        await bench.close()

    run(scenario)


def test_a_journal_out_of_reach_for_a_while_keeps_turns_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_desk, "RETRY_S", 0.001)
    monkeypatch.setattr("sessions.journal.writer.RETRY_S", 0.001)

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", iter(range(1000)))
        first = await Client(bench).turn()
        append, turn, failures = bench.journal.append, bench.journal.turn, [3, 3]

        def failing(which: int, call: Any) -> Any:
            def fail(*given: Any) -> Any:
                if failures[which]:
                    failures[which] -= 1
                    raise JournalUnavailable("gone")
                return call(*given)

            return fail

        bench.journal.append = failing(0, append)  # type: ignore[method-assign]
        bench.journal.turn = failing(1, turn)  # type: ignore[method-assign]
        bench.service.store.tenant("acme").responses.clear()
        second = await Client(bench).turn(previous_response_id=first["response"]["id"])
        assert second["type"] == "response.completed"
        assert failures == [0, 0]
        await bench.close()

    run(scenario)


def test_two_servers_take_turns_at_one_chain(tmp_path: Path) -> None:
    async def scenario() -> None:
        ids = iter(range(1000))
        benches = [Bench(tmp_path / "j", ids, owner, shared=True) for owner in ("a", "b")]
        clients = [Client(bench) for bench in benches]
        parent: dict[str, Any] = {}
        for n in range(6):
            event = await clients[n % 2].turn(keepwarm={"session": "s"}, **parent)
            assert event["type"] == "response.completed", event
            assert event["response"]["keepwarm"]["turn"] == n + 1
            parent = {"previous_response_id": event["response"]["id"]}
        for _ in range(3):  # of one server's making: it need not claim it
            event = await clients[0].turn(keepwarm={"session": "mine"})
            assert event["type"] == "response.completed", event
        session = benches[0].journal.session("acme", "s")
        assert session is not None
        assert (session.account.turns, session.epoch) == (6, 6)
        for bench in benches:
            await bench.close()

    run(scenario)


def test_upkeep_goes_on_after_whatever_once_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_desk, "EXPIRE_EVERY_S", 0.0)
    calls: list[float] = []

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1))
        again = asyncio.Event()
        loop = asyncio.get_running_loop()

        def expire(before_s: float) -> int:
            calls.append(before_s)
            if len(calls) == 1:
                raise OSError("no space left for the mark")
            loop.call_soon_threadsafe(again.set)
            return 0

        monkeypatch.setattr(bench.journal, "expire", expire)
        await asyncio.wait_for(again.wait(), 10)
        await bench.desk.close()

    asyncio.run(scenario())
    assert len(calls) >= 2


@pytest.mark.parametrize("ahead_days", [-400, 0, 400])
def test_what_is_old_is_so_by_the_journals_clock_and_not_by_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_days: int
) -> None:
    """One server with a wrong clock would take the history of all."""
    monkeypatch.setattr(journal_desk, "EXPIRE_EVERY_S", 0.0)
    day_s, now_s, rounds = 86_400.0, 1_800_000_000.0, list[float]()

    async def scenario() -> None:
        journal = TimedJournal(tmp_path / "j", lambda: round(now_s * 1000), fingerprint=b"f")
        journal.append(
            [
                record("old", session="old", created_s=now_s - 31 * day_s),
                record("new", session="new", created_s=now_s - 29 * day_s),
            ]
        )
        expire = journal.expire

        def counted(before_s: float) -> int:
            rounds.append(before_s)
            return expire(before_s)

        journal.expire = counted  # type: ignore[method-assign]
        service = make_service(FakeClock(1000.0))
        service.store.wall_clock = lambda: now_s + ahead_days * day_s
        service = replace(service, wall_clock=service.store.wall_clock)
        _, desk = over(journal, service, keep_s=30 * day_s)
        desk.start(lambda _: None, no_samples, lambda _: None)
        await until(lambda: len(rounds) > 1)
        assert [row.name for row in journal.sessions()] == ["new"]
        await desk.close()

    run(scenario)


def sharing_of(bench: Bench) -> SessionSharing:
    assert bench.desk.sharing is not None
    return bench.desk.sharing


@pytest.fixture
def busy_upkeep(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """No pause between looks; how many heartbeats there were."""
    beats: list[None] = []
    beat = Ownership.beat

    def counted(ownership: Ownership) -> Heard:
        beats.append(None)
        return beat(ownership)

    monkeypatch.setattr(Ownership, "beat", counted)
    monkeypatch.setattr(session_sharing, "POLL_S", 0.0)
    monkeypatch.setattr(session_sharing, "HEARTBEAT_S", 0.0)
    return lambda: len(beats)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize("given_up", [False, True])
def test_who_reads_much_of_the_journal_keeps_no_other_tenant_waiting(
    tmp_path: Path, given_up: bool
) -> None:
    """Nor does who gives up what it has asked, since that keeps its reader."""

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1))
        begun: list[str] = []
        may_end = threading.Semaphore(0)

        def ask(tenant: str) -> "asyncio.Task[bool]":
            def read() -> bool:
                begun.append(tenant)
                return may_end.acquire()

            return asyncio.create_task(bench.desk.beside(tenant, read))

        asked = [ask("greedy") for _ in range(READERS)]
        try:
            await until(lambda: len(begun) == READERS)
            if given_up:
                for task in asked:
                    task.cancel()
            asked += [ask("greedy") for _ in range(4)]
            await asyncio.sleep(0)
            asked.append(ask("other"))
            await asyncio.sleep(0)
            may_end.release()
            await until(lambda: len(begun) > READERS)
            assert begun[READERS] == "other"
        finally:
            may_end.release(len(asked))
            await asyncio.gather(*asked, return_exceptions=True)
            await bench.close()

    run(scenario)


def test_a_dead_servers_turn_counts_in_the_metrics_of_who_takes_its_session(
    tmp_path: Path, busy_upkeep: Callable[[], int]
) -> None:
    dead = SqliteJournal(tmp_path / "j", fingerprint=b"f", owner="dead", shared=True)
    dead.reserve([replace(reservation("r1", tenant="acme"), options=b"")])
    dead.close()

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "b", shared=True)
        registry = bench.metrics.registry

        def counted(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"keepwarm_{name}_total", labels)

        event = await Client(bench).turn(keepwarm={"session": "s"})
        assert event["type"] == "response.completed", event
        await until(lambda: counted("turns", status="failed") == 1)
        beats = busy_upkeep()
        await until(lambda: busy_upkeep() >= beats + 3)
        account = bench.journal.account("acme", session_account("s"))
        assert account.turns == 2
        assert counted("turns", status="failed") == counted("turns", status="completed") == 1
        assert counted("output_tokens") == account.usage.output_tokens > 256
        assert counted("input_tokens") == account.usage.input_tokens
        assert counted("cost_nanodollars") == account.cost
        await bench.close()

    run(scenario)


def test_heartbeats_do_not_wait_for_requests_that_wait_for_other_servers(
    tmp_path: Path, busy_upkeep: Callable[[], int]
) -> None:
    """A claim may take ten seconds; a server without a heartbeat for two loses its sessions."""

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        let_go = threading.Event()
        waiting = [asyncio.create_task(bench.desk.beside("t", let_go.wait)) for _ in range(8)]
        await asyncio.sleep(0)
        try:
            await until(lambda: busy_upkeep() >= 3)
        finally:
            let_go.set()
            await asyncio.gather(*waiting)
            await bench.close()

    run(scenario)


def test_heartbeats_go_on_while_a_session_cannot_be_let_go(
    tmp_path: Path, busy_upkeep: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def release(journal: SqliteJournal, tenant: str, names: Sequence[str]) -> None:
        tries.extend(names)
        raise JournalUnavailable("the disk is busy")

    monkeypatch.setattr(SqliteJournal, "release", release)
    monkeypatch.setattr(Ownership, "wanted", lambda _: [("acme", "s")])

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        try:
            await until(lambda: busy_upkeep() >= 3 and len(tries) >= 3)
        finally:
            await bench.close()

    run(scenario)


def test_heartbeats_do_not_wait_for_shares_that_go_back(
    tmp_path: Path, busy_upkeep: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that another server has locked may take seconds."""
    begun, let_go = threading.Event(), threading.Event()

    def return_share(*_: object) -> None:
        begun.set()
        let_go.wait(20)

    monkeypatch.setattr(Ownership, "return_share", return_share)

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        share = Share(name="tenant", amount=NOTHING, spent=NOTHING)
        assert bench.service.commits is not None
        bench.service.commits.shared.unwanted("acme", share)
        try:
            await until(begun.is_set)
            beats = busy_upkeep()
            await until(lambda: busy_upkeep() >= beats + 3)
        finally:
            let_go.set()
            await bench.close()

    run(scenario)


def test_a_share_that_a_turn_draws_on_by_then_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one before it went back the turn began."""
    gone: list[str] = []

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        loop, commits = asyncio.get_running_loop(), bench.service.commits
        assert commits is not None
        shared = commits.shared
        session = bench.service.store.tenant("acme").session("s")
        session.ledger.tree.budget = Budget(output=9)
        session.ledger.above = (Account(scope="tenant"),)
        begun = threading.Event()

        def begin() -> None:
            shared.follow(session)
            begun.set()

        def return_share(_: Ownership, __: str, name: str) -> None:
            gone.append(name)
            loop.call_soon_threadsafe(begin)
            begun.wait(60)

        monkeypatch.setattr(Ownership, "return_share", return_share)
        for name in ("a", tree_account("s")):
            shared.unwanted("acme", Share(name=name, amount=NOTHING, spent=NOTHING))
        await until(begun.is_set)
        shared.unwanted("acme", Share(name="z", amount=NOTHING, spent=NOTHING))
        await until(lambda: "z" in gone)
        await bench.close()

    monkeypatch.setattr(session_sharing, "POLL_S", 0.0)
    run(scenario)
    assert gone == ["a", "z"]


def test_what_a_turn_leaves_of_a_budget_is_there_for_the_next_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only once the journal has it back: that may take a quarter of a second."""
    monkeypatch.setattr(SharedAccounts, "idle", lambda _: [])

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        client, used = Client(bench), 0
        budget = {"session": "s", "budget": {"scope": "tree", "output": 260}}
        for _ in range(2):
            event = await client.turn(max_output_tokens=256 - used, keepwarm=budget)
            assert event["type"] == "response.completed", event
            used += event["response"]["usage"]["output_tokens"]
        assert used > 4, "more than the first turn left to the others"
        await bench.close()

    run(scenario)


def test_what_cannot_be_put_into_memory_is_out_of_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the session could never be let go."""

    def adopt(*_: object, **__: object) -> None:
        raise ValueError

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        recalled = await bench.desk.recall(bench.service.store.tenant("acme"), Wanted(session="s"))
        monkeypatch.setattr(Tenant, "adopt", adopt)
        with pytest.raises(ValueError):
            bench.desk.remember(bench.service.store.tenant("acme"), recalled)
        await sharing_of(bench).let_go([("acme", "s")])
        assert not sharing_of(bench).kept
        await bench.close()

    run(scenario)


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers look for what others want when they are told to, and else never."""
    monkeypatch.setattr(session_sharing, "POLL_S", 1000.0)


def owner_of(journal: SqliteJournal, name: str) -> str:
    session = journal.session("acme", name)
    return "nobody" if session is None else session.owner


@pytest.mark.usefixtures("told_only")
def test_a_server_that_drains_lets_go_unasked_of_what_is_idle_and_then_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_sharing, "_AT_ONCE", 2)

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        client, idle = Client(bench), [f"idle{n}" for n in range(5)]
        for name in (*idle, "busy"):
            await client.turn(keepwarm={"session": name})
        session = bench.service.store.tenant("acme").known_session("busy")
        assert session is not None
        assert session.request_turn("somebody")
        bench.desk.drain()
        await until(lambda: all(owner_of(bench.journal, name) == "" for name in idle))
        assert owner_of(bench.journal, "busy") == "a"
        session.withdraw("somebody")
        await client.turn(keepwarm={"session": "another"})  # some turn's end makes it look again
        await until(lambda: owner_of(bench.journal, "busy") == "")
        await bench.close()

    run(scenario)


@pytest.mark.usefixtures("told_only")
def test_a_session_that_is_asked_for_goes_when_its_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell: list[Callable[[], None]] = []
    monkeypatch.setattr(Ownership, "listen", lambda _, given: tell.append(given))

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        client = Client(bench)
        await client.turn(keepwarm={"session": "s"})
        other = SqliteJournal(tmp_path / "j", fingerprint=b"f", owner="b", shared=True)
        with pytest.raises(JournalBusy):
            await asyncio.to_thread(other.claim, "acme", "s", 0.0)
        session = bench.service.store.tenant("acme").known_session("s")
        assert session is not None
        assert session.request_turn("somebody")
        await asyncio.to_thread(tell[0])
        await until(lambda: sharing_of(bench).kept)
        assert owner_of(bench.journal, "s") == "a"
        session.withdraw("somebody")
        await client.turn(keepwarm={"session": "another"})
        await until(lambda: owner_of(bench.journal, "s") == "")
        claimed = await asyncio.to_thread(other.claim, "acme", "s", 0.0)
        assert claimed is not None
        assert claimed.epoch == 2
        other.close()
        await bench.close()

    run(scenario)


def test_a_server_that_slept_asks_for_its_sessions_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the first turn after it has woken is not the one to be refused."""

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        client = Client(bench)
        await client.turn(keepwarm={"session": "s"})
        monkeypatch.setattr(session_sharing, "DEAD_MS", -1)  # every heartbeat comes too late
        await until(lambda: bench.service.store.tenant("acme").known_session("s") is None)
        monkeypatch.undo()
        other = SqliteJournal(tmp_path / "j", fingerprint=b"f", owner="b", shared=True)
        await asyncio.to_thread(bench.journal.release, "acme", ["s"], unasked=True)
        claimed = await asyncio.to_thread(other.claim, "acme", "s", 0.0)
        assert claimed is not None
        other.close()
        event = await client.turn(keepwarm={"session": "s"})
        assert event["type"] == "response.completed", event
        assert event["response"]["keepwarm"]["turn"] == 2
        await bench.close()

    run(scenario)


def test_an_owner_is_told_once_and_so_is_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(SqliteJournal, "tell", lambda _, __, server: told.append(server))
    a, b = (
        SqliteJournal(tmp_path / "j", fingerprint=b"f", owner=owner, shared=True)
        for owner in ("a", "b")
    )
    assert a.append([record("r1")]) == [True]
    assert a.ownership is not None
    a.ownership.beat()
    for _ in range(3):
        with pytest.raises(JournalBusy):
            b.claim("t", "s", 0.0)
    a.release("t", ["s"])
    assert told == ["a", "b"]
    a.close()
    b.close()


def test_what_is_claimed_and_not_yet_in_memory_is_not_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        await Client(bench).turn(keepwarm={"session": "s"})
        bench.service.store.tenant("acme").forget_session("s")
        recalled = await bench.desk.recall(bench.service.store.tenant("acme"), Wanted(session="s"))
        await sharing_of(bench).let_go([("acme", "s")])
        assert sharing_of(bench).kept
        bench.desk.remember(bench.service.store.tenant("acme"), recalled)
        await sharing_of(bench).let_go([("acme", "s")])
        assert bench.service.store.tenant("acme").known_session("s") is None
        await bench.close()

    run(scenario)


def test_lookups_go_on_while_others_wait_for_sessions_that_are_busy_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two readers for all tenants, and a session's owner may take ten seconds."""
    monkeypatch.setattr("sessions.journal.ownership.DEAD_MS", 10**9)

    async def scenario() -> None:
        ids = itertools.count(1)
        here, there = (Bench(tmp_path / "j", ids, owner, shared=True) for owner in "ab")
        for bench in (here, there):
            assert bench.journal.ownership is not None
            bench.journal.ownership.beat()
        names = ["x", "y"]
        heads = [
            (await Client(here).turn(keepwarm={"session": name}))["response"]["id"]
            for name in names
        ]
        busy = [here.service.store.tenant("acme").known_session(name) for name in names]
        assert all(each is not None and each.request_turn("somebody") for each in busy)
        pauses, over = list[float](), asyncio.Event()

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await over.wait()

        there.desk.pause = pause
        acme = there.service.store.tenant("acme")
        wanted = Wanted(session="x"), Wanted(responses=heads[1:], owns_first=True)
        waiting = [asyncio.create_task(there.desk.recall(acme, each)) for each in wanted]
        await until(lambda: len(pauses) == 2)
        async with asyncio.timeout(5):
            found = await there.desk.recall(
                there.service.store.tenant("acme"), Wanted(responses=heads[:1])
            )
        assert len(found.chains) == 1
        assert not any(task.done() for task in waiting)
        assert set(pauses) == {ownership.ASK_AGAIN_S}
        loads: list[str] = []
        turn = there.journal.turn
        monkeypatch.setattr(there.journal, "turn", lambda *a: loads.append(a[1]) or turn(*a))
        monkeypatch.setattr(there.desk, "pause", asyncio.sleep)
        over.set()
        for each in busy:
            assert each is not None
            each.withdraw("somebody")
        for task, name in zip(waiting, names, strict=True):
            assert (await task).claimed[0] == name
            assert owner_of(there.journal, name) == "b"
        assert loads == heads[1:], "not at every try"
        for bench in (here, there):
            await bench.close()

    run(scenario)


def test_a_session_that_its_owner_keeps_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.journal.ownership.DEAD_MS", 10**9)

    async def scenario() -> None:
        other = SqliteJournal(tmp_path / "j", fingerprint=b"f", owner="b", shared=True)
        assert other.append([record("r1")]) == [True]
        assert other.ownership is not None
        other.ownership.beat()
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)

        async def pause(_: float) -> None:
            monkeypatch.setattr(journal_desk, "CLAIM_WAIT_S", 0.0)

        bench.desk.pause = pause
        with pytest.raises(JournalBusy):
            await bench.desk.recall(bench.service.store.tenant("t"), Wanted(session="s"))
        assert journal_desk.CLAIM_WAIT_S == 0.0, "it was waited for"
        await bench.close()
        other.close()

    run(scenario)


def test_a_share_of_a_budget_goes_back_when_its_turn_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        budget = {"session": "s", "budget": {"scope": "tree", "output": 100_000}}
        event = await Client(bench).turn(keepwarm=budget)
        assert event["type"] == "response.completed", event

        def has_shares() -> bool:
            with bench.journal.reading() as cursor:
                return bool(shares.owners(cursor, "acme", [tree_account("s")]))

        await until(lambda: not has_shares())
        spent = bench.journal.account("acme", tree_account("s")).usage.output_tokens
        assert event["response"]["keepwarm"]["budget"]["tree"]["output"] == 100_000 - spent
        await bench.close()

    run(scenario)
