"""The hub carries messages, batches them, and outlives engines and broken connections."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import (
    CancelRequest,
    DropBranch,
    FinishReason,
    GenerationRequest,
    ReleaseBranch,
    Residency,
    StepStats,
)
from sessions.durable.account import Budget
from sessions.durable.ledger import Ledger, PriceTable, TurnReport
from sessions.durable.residents import Residents
from sessions.durable.session import Session
from sessions.durable.tenant import Tenant
from sessions.pages.metrics import Metrics
from sessions.pages.watcher import Watcher
from sessions.turns.effects import Effects
from sessions.turns.turn_plan import TurnPlan
from sessions.wire.errands import LongWork
from sessions.wire.hub import AT_ONCE, MAX_PAUSE_S, STEADY_S, SWEEP_EVERY_TICKS, Hub
from sessions.wire.links import Link
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import (
    INFO,
    EchoConnection,
    HandEngine,
    not_started,
    play,
    tokens,
)
from tests.support.reading import inline_reading
from tests.support.tenants import make_tenant
from tools_api.grammar import GrammarSpec


class Client:
    """An outlet that keeps what it is given, each delivery by itself."""

    def __init__(self, bench: "Bench", tenant: str = "acme") -> None:
        self.deliveries: list[list[bytes]] = []
        self.closed: int | None = None
        self._bench = bench
        self.link: Link = bench.hub.open(tenant, self)
        assert isinstance(self.link.connection, EchoConnection)
        self.connection = self.link.connection

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        assert self.closed is None, "delivered after a close"
        if frames:
            self.deliveries.append(list(frames))
        if close is not None:
            self.closed = close
            self._bench.hub.disconnected(self.link)

    @property
    def frames(self) -> list[str]:
        return [frame.decode() for delivery in self.deliveries for frame in delivery]

    def send(self, text: str) -> None:
        self._bench.hub.receive(self.link, text)

    def leave(self) -> None:
        self._bench.hub.disconnected(self.link)


class _Running(dict[tuple[str, str], str]):
    """Connections by tenant and response id."""

    def connection_of(self, tenant: str, response_id: str) -> str | None:
        return self.get((tenant, response_id))


class Store:
    def __init__(self) -> None:
        self.losses = 0
        self.sweeps = 0
        self.running = _Running()
        self.residents = Residents(lambda session: session)

    def engine_lost(self) -> None:
        self.losses += 1

    def tenant(self, name: str) -> Tenant:
        return make_tenant(name)

    def sweep(self) -> tuple[ReleaseBranch, ...]:
        self.sweeps += 1
        return (ReleaseBranch(branch_id="old"),)


class Bench:
    def __init__(self) -> None:
        self.engine = HandEngine()
        self.store = Store()
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self.specs: list[GrammarSpec] = []
        self.verdict: Callable[[], GrammarRefused | None] = lambda: None
        self.in_thread: Callable[[Callable[[], TurnPlan]], Awaitable[TurnPlan]] = asyncio.to_thread
        self.gate = asyncio.Event()
        """Pauses and grammar checks wait for it."""
        self.gate.set()
        self.hub = Hub(
            engine=self.engine,
            store=self.store,  # type: ignore[arg-type]
            connect=EchoConnection,  # type: ignore[arg-type]
            long_work=LongWork(
                check_grammar=self._check, reading=inline_reading(), in_thread=self._in_thread
            ),
            metrics=self.metrics,
            dashboard=make_dashboard(self.clock),
            clock=self.clock,
            pause=self._pause,
        )
        self.hub.engine_ready(INFO)
        self.task = asyncio.get_running_loop().create_task(self.hub.run())

    async def _check(self, spec: GrammarSpec, tenant: str) -> GrammarRefused | None:
        self.specs.append(spec)
        await self.gate.wait()
        return self.verdict()

    async def _in_thread(self, work: Callable[[], TurnPlan]) -> TurnPlan:
        return await self.in_thread(work)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.gate.wait()

    async def settle(self) -> None:
        """Let everything happen that needs no more input."""
        for _ in range(30):
            await asyncio.sleep(0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"keepwarm_{name}", labels)


def run(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    play(Bench, scenario)


def test_requests_of_one_turn_of_the_loop_reach_the_engine_in_one_batch() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = Client(bench), Client(bench)
        first.send("go a b")
        second.send("go c")
        assert bench.engine.batches == []
        await bench.settle()
        assert len(bench.engine.batches) == 1
        assert bench.engine.sent_ids(GenerationRequest) == ["a", "b", "c"]

    run(scenario)


def test_outputs_find_their_connection_and_arrive_in_one_delivery_per_step() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = Client(bench), Client(bench)
        first.send("go a b")
        second.send("go c")
        bench.engine.say(tokens("a"), tokens("c", 2), tokens("b", finish=FinishReason.STOP))
        await bench.settle()
        assert first.deliveries == [
            [b"created a", b"created b"],
            [b"a +1", b"b +1", b"done b"],
        ]
        assert second.frames == ["created c", "c +2"]

    run(scenario)


async def most_at_once(bench: Bench, count: Callable[[], float | None]) -> float:
    """By how much the count grows in one turn of the event loop, at most, until all is done."""
    most, before = 0.0, count() or 0.0
    for _ in range(60):
        await asyncio.sleep(0)
        now = count() or 0.0
        most, before = max(most, now - before), now
    return most


@pytest.mark.parametrize("number", [1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE])
def test_sockets_are_served_between_the_outputs_of_a_large_step(number: int) -> None:
    async def scenario(bench: Bench) -> None:
        clients = [Client(bench) for _ in range(number)]
        for index, client in enumerate(clients):
            client.send(f"go r{index}")
        leaving = clients[-1] if number > AT_ONCE else None
        bench.engine.say(*[tokens(f"r{index}") for index in range(number)])
        while leaving is not None and len(clients[0].deliveries) < 2:
            await asyncio.sleep(0)
        if leaving is not None:
            leaving.leave()
        most = await most_at_once(bench, lambda: sum(len(each.deliveries) for each in clients))
        assert most <= AT_ONCE
        for index, client in enumerate(clients):
            heard = [f"created r{index}", f"r{index} +1"]
            assert client.frames == (heard[:1] if client is leaving else heard)

    run(scenario)


@pytest.mark.parametrize("how", ["told", "died", "drained"])
def test_sockets_are_served_between_sessions_that_are_settled(how: str) -> None:
    async def scenario(bench: Bench) -> None:
        names = [f"b{index}" for index in range(4 * AT_ONCE)]
        residents = bench.store.residents
        for name in names:
            session = Session(name=name, tenant="acme", ledger=Ledger(PriceTable()), now=0.0)
            residents.writes(name, session)
        gone = how == "told"
        rows = [Residency(branch_id=name, block_us=7, gone=gone) for name in names]
        drained = None
        bench.engine.tell_of(*rows)
        if not gone:
            await bench.settle()
        if how == "died":
            bench.engine.die()
        elif how == "drained":
            drained = asyncio.create_task(bench.hub.drain(0))

        def settled() -> float | None:
            return bench.value("kv_residency_block_microseconds_total")

        assert 0 < await most_at_once(bench, settled) <= 7 * AT_ONCE
        assert settled() == 7 * len(names)
        assert drained is None or drained.done()

    run(scenario)


def test_a_session_that_runs_a_turn_again_is_settled_by_that_turn() -> None:
    async def scenario(bench: Bench) -> None:
        sessions = []
        for index in range(2 * AT_ONCE):
            session = Session(name=f"s{index}", tenant="acme", ledger=Ledger(PriceTable()), now=0.0)
            bench.store.residents.writes(session.name, session)
            sessions.append(session)
        rows = [Residency(branch_id=each.name, block_us=7, gone=True) for each in sessions]
        bench.engine.tell_of(*rows)
        while not bench.value("kv_residency_block_microseconds_total"):
            await asyncio.sleep(0)
        assert sessions[-1].request_turn("a turn")
        await bench.settle()
        count = bench.value("kv_residency_block_microseconds_total")
        assert count == 7 * (len(sessions) - 1)
        assert sessions[-1].ledger.settle_residency().block_us == 7

    run(scenario)


def test_a_finished_request_is_routed_no_more() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        bench.engine.say(tokens("a", finish=FinishReason.STOP))
        bench.engine.say(tokens("a"))
        await bench.settle()
        assert client.frames == ["created a", "a +1", "done a"]
        assert bench.value("turns_total", status="completed") == 1

    run(scenario)


def test_who_asked_is_told_of_every_turn_that_ends_from_then_on() -> None:
    async def scenario(bench: Bench) -> None:
        told: list[str] = []

        class Told(Watcher):
            def turn_finished(self, report: TurnReport) -> None:
                told.append(report.status)

        client = Client(bench)
        for name in "ab":
            client.send(f"go {name}")
            bench.engine.say(tokens(name, finish=FinishReason.STOP))
            await bench.settle()
            bench.hub.watch(Told())
        assert told == ["completed"]

    run(scenario)


def test_a_request_sent_again_after_an_unknown_base_is_routed_again() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        bench.engine.say(tokens("a", 0, finish=FinishReason.UNKNOWN_BASE))
        bench.engine.say(tokens("a", 2))
        await bench.settle()
        assert bench.engine.sent_ids(GenerationRequest) == ["a", "a"]
        assert client.frames == ["created a", "a +2"]

    run(scenario)


def test_a_client_that_leaves_has_its_turns_cancelled_and_hears_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        client, other = Client(bench), Client(bench)
        client.send("go a")
        other.send("go b")
        await bench.settle()
        client.leave()
        client.leave()
        client.send("go ignored")
        bench.engine.say(tokens("a", 0, FinishReason.CANCELLED), tokens("b"))
        await bench.settle()
        assert bench.engine.sent_ids(CancelRequest) == ["a"]
        assert client.connection.calls == ["go a", "close"]
        assert client.frames == ["created a"]
        assert other.frames == ["created b", "b +1"]
        assert bench.hub.num_connections == 1
        assert bench.value("connections") == 1

    run(scenario)


def test_what_a_call_costs_does_not_grow_with_the_turns_of_those_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []

    def num_active(connection: EchoConnection) -> int:
        looks.append(connection.id)
        return len(connection.running)

    monkeypatch.setattr(EchoConnection, "num_active", property(num_active))
    monkeypatch.setattr(EchoConnection, "close", lambda _: Effects())  # its turns go on

    async def scenario(bench: Bench) -> None:
        others = [Client(bench) for _ in range(20)]
        for number, other in enumerate(others):
            other.send(f"go {number}")
            other.leave()
        client = Client(bench)
        looks.clear()
        client.send("say hello")
        assert looks == []
        bench.engine.say(tokens("7", finish=FinishReason.STOP))
        await bench.settle()
        assert looks == [others[7].link.id]
        looks.clear()
        bench.engine.die()
        await bench.settle()
        told = [other.connection.calls.count("engine_died") for other in others]
        assert told == [int(number != 7) for number in range(20)]
        assert looks == [other.link.id for other in others if other is not others[7]]

    run(scenario)


def test_the_gap_between_steps_of_a_turn_is_measured() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        for _ in range(3):
            bench.clock.advance(0.5)
            bench.engine.say(tokens("a"))
            await bench.settle()
        bench.engine.say(tokens("a", 0))
        await bench.settle()
        assert bench.value("inter_token_seconds_count") == 2
        assert bench.value("inter_token_seconds_sum") == 1.0

    run(scenario)


def test_a_connection_that_raises_is_closed_alone() -> None:
    async def scenario(bench: Bench) -> None:
        broken, other = Client(bench), Client(bench)
        broken.send("go a")
        other.send("go b")
        await bench.settle()
        broken.send("boom")
        bench.engine.say(tokens("a"), tokens("b"))
        await bench.settle()
        assert broken.closed == 1011
        assert broken.frames == ["created a"]
        assert other.frames == ["created b", "b +1"]
        assert "a" in bench.engine.sent_ids(CancelRequest)

    run(scenario)


def test_a_closing_code_follows_the_frames() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("end 1001")
        assert client.frames == ["bye"]
        assert client.closed == 1001
        assert bench.hub.num_connections == 0

    run(scenario)


def test_sessions_that_are_free_are_told_of_if_who_waits_is_still_there() -> None:
    async def scenario(bench: Bench) -> None:
        first, second, third = Client(bench), Client(bench), Client(bench)
        third.leave()
        first.send(f"wake {second.link.id} {third.link.id} {first.link.id}")
        assert second.frames == first.frames == ["turn: None"]
        assert "answer turn" not in third.connection.calls

    run(scenario)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (None, "None"),
        (GrammarRefused("unknown keyword", block=2), "unknown keyword 2 None"),
        (GrammarRefused("no", "not", ("items", 0, "not"), 1), "not: no 1 ('items', 0, 'not')"),
        (GrammarRefused("not is unknown", "not"), "not is unknown None None"),
    ],
)
def test_a_grammar_is_checked_and_the_verdict_handed_back(
    refusal: GrammarRefused | None, told: str
) -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        bench.verdict = lambda: refusal
        client.send("check x")
        assert client.frames == []
        await bench.settle()
        assert bench.specs == [GrammarSpec(lark="start: x")]
        assert client.frames == [f"x: {told}"]
        refusals = bench.value("grammar_errors_total", stage="compile")
        assert refusals == (None if refusal is None else 1)
        assert bench.value("grammar_check_seconds_count") == 1

    run(scenario)


def test_a_check_that_is_withdrawn_is_given_up() -> None:
    async def scenario(bench: Bench) -> None:
        bench.gate.clear()
        client = Client(bench)
        for frame in ("check a", "check b"):
            client.send(frame)
        await bench.settle()
        for frame in ("withdraw a", "withdraw unknown"):
            client.send(frame)
        await bench.settle()
        bench.gate.set()
        await bench.settle()
        assert client.frames == ["b: None"]

    run(scenario)


def test_a_check_that_breaks_is_no_fault_of_the_grammar() -> None:
    def broken() -> GrammarRefused | None:
        raise OSError("no more processes")

    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        bench.verdict = broken
        client.send("check x")
        await bench.settle()
        assert client.frames == ["x: OSError('no more processes')"]

    run(scenario)


def test_others_are_served_while_a_long_plan_is_worked_out() -> None:
    async def scenario(bench: Bench) -> None:
        slow, other = Client(bench), Client(bench)
        until, told = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> TurnPlan:
            loop.call_soon_threadsafe(told.set)
            assert until.wait(20)
            raise ValueError("worked out")

        slow.connection.work = work
        slow.send("plan p")
        await told.wait()
        other.send("go a")
        await bench.settle()
        bench.engine.say(tokens("a", 1, FinishReason.STOP))
        await bench.settle()
        assert other.frames[-1] == "done a"
        assert slow.frames == []
        until.set()
        while not slow.frames:
            await asyncio.sleep(0)
        assert slow.frames == ["p: ValueError('worked out')"]

    run(scenario)


def test_a_plan_that_waits_is_given_up_with_its_client() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        called: list[bool] = []

        async def never(work: Callable[[], TurnPlan]) -> TurnPlan:
            await asyncio.Event().wait()
            called.append(True)
            return work()

        bench.in_thread = never
        client.send("plan p")
        await bench.settle()
        client.leave()
        await bench.settle()
        assert not bench.hub.errands.open
        assert (client.frames, called) == ([], [])

    run(scenario)


def test_plans_wait_for_a_planner() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = Client(bench), Client(bench)
        gate = asyncio.Event()
        begun: list[Callable[[], TurnPlan]] = []

        async def slow(work: Callable[[], TurnPlan]) -> TurnPlan:
            begun.append(work)
            await gate.wait()
            return work()

        bench.in_thread = slow
        first.send("plan a")
        second.send("plan b")
        await bench.settle()
        assert len(begun) == 1
        gate.set()
        await bench.settle()
        assert len(begun) == 2

    run(scenario)


def test_a_dead_engine_is_replaced_and_every_open_turn_is_told() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = Client(bench), Client(bench)
        first.send("go a")
        second.send("go b")
        await bench.settle()
        bench.clock.advance(STEADY_S)
        bench.engine.die()
        await bench.settle()
        assert first.frames == ["created a", "failed a"]
        assert second.frames == ["created b", "failed b"]
        assert (bench.store.losses, bench.engine.restarts, bench.pauses) == (1, 1, [0.0])
        assert bench.hub.ready
        assert bench.value("engine_restarts_total") == 1
        first.send("go c")
        bench.engine.say(tokens("a"), tokens("c"))
        await bench.settle()
        assert first.frames[2:] == ["created c", "c +1"]

    run(scenario)


def test_a_step_that_cannot_be_taken_counts_as_the_engines_death() -> None:
    """Nothing that an engine says ends the server: here figures that no metric can hold."""

    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        await bench.settle()
        bench.clock.advance(STEADY_S)
        absurd: Any = StepStats(steps_s=["long"])  # type: ignore[list-item]
        bench.engine.say(tokens("a"), stats=absurd)
        await bench.settle()
        assert client.frames == ["created a", "failed a"]
        assert (bench.store.losses, bench.engine.restarts) == (1, 1)
        client.send("go b")
        bench.engine.say(tokens("b"))
        await bench.settle()
        assert client.frames[2:] == ["created b", "b +1"]

    run(scenario)


def test_a_client_that_left_before_the_engine_died_does_not_hold_its_route() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        client.leave()
        await bench.settle()
        bench.engine.die()
        await bench.settle()
        assert client.connection.calls == ["go a", "close", "engine_died"]

    run(scenario)


def test_what_is_asked_while_the_engine_is_away_waits_for_the_next_one() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        bench.gate.clear()
        bench.engine.die()
        await bench.settle()
        assert not bench.hub.ready
        client.send("go a")
        await bench.settle()
        assert bench.engine.batches == []
        bench.gate.set()
        await bench.settle()
        assert bench.engine.sent_ids(GenerationRequest) == ["a"]

    run(scenario)


def test_an_engine_that_does_not_start_is_tried_again_with_growing_pauses() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        bench.engine.start_errors = [not_started("no memory") for _ in range(7)]
        bench.engine.die()
        await bench.settle()
        assert bench.pauses == [1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
        assert bench.engine.restarts == 8
        assert bench.store.losses == 8
        assert bench.hub.ready
        assert client.closed is None

    run(scenario)


def test_ticks_reach_every_connection_and_now_and_then_the_store() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        for _ in range(SWEEP_EVERY_TICKS):
            bench.hub.tick()
        await bench.settle()
        assert client.connection.calls == ["tick"] * SWEEP_EVERY_TICKS
        assert bench.store.sweeps == 1
        assert bench.engine.sent == [ReleaseBranch(branch_id="old")]

    run(scenario)


def test_kv_beyond_a_budget_is_dropped_and_what_it_cost_is_counted() -> None:
    async def scenario(bench: Bench) -> None:
        prices = PriceTable(residency=10**9)
        session = Session(name="s", tenant="acme", ledger=Ledger(prices), now=0.0)
        session.ledger.account.budget = Budget(residency=2_500_000)
        bench.store.residents.writes("b", session)
        bench.engine.tell_of(Residency(branch_id="b", block_us=2_000_000))
        await bench.settle()
        assert bench.engine.sent == []
        assert bench.value("kv_residency_block_microseconds_total") == 0
        bench.engine.tell_of(Residency(branch_id="b", block_us=2_000_000))
        await bench.settle()
        assert bench.engine.sent == [DropBranch(branch_id="b")]
        assert bench.value("kv_residency_drops_total") == 1
        assert bench.value("kv_residency_block_microseconds_total") == 2_500_000
        assert bench.value("cost_nanodollars_total") == 2_500
        assert bench.hub.dashboard.totals({"acme"}).cost == 2_500, "as in the ledger"

    run(scenario)


def test_what_kv_cost_is_counted_when_its_engine_dies_and_when_the_server_ends() -> None:
    async def scenario(bench: Bench) -> None:
        session = Session(name="s", tenant="acme", ledger=Ledger(PriceTable()), now=0.0)
        for count in (1, 2):
            bench.store.residents.writes("b", session)
            bench.engine.tell_of(Residency(branch_id="b", block_us=7))
            await bench.settle()
            if count == 1:
                bench.engine.die()
                await bench.settle()
            else:
                await bench.hub.drain(0)
            assert bench.value("kv_residency_block_microseconds_total") == 7 * count

    run(scenario)


def test_error_events_are_counted_by_code() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("error invalid_json")
        assert bench.value("errors_total", code="invalid_json") == 1

    run(scenario)


def test_draining_closes_idle_clients_at_once_and_busy_ones_at_their_turns_end() -> None:
    async def scenario(bench: Bench) -> None:
        idle, busy = Client(bench), Client(bench)
        busy.send("go a")
        drained = asyncio.get_running_loop().create_task(bench.hub.drain(60))
        await bench.settle()
        assert (idle.closed, busy.closed) == (1012, None)
        assert not bench.hub.ready
        assert not drained.done()
        bench.engine.say(tokens("a", finish=FinishReason.STOP))
        await drained
        assert busy.frames == ["created a", "a +1", "done a"]
        assert busy.closed == 1012

    run(scenario)


def test_turns_that_outlast_the_drain_time_fail_before_their_socket_closes() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        await bench.hub.drain(0.01)
        assert client.frames == ["created a", "failed a"]
        assert client.closed == 1012

    run(scenario)


def test_a_turn_is_cancelled_on_whichever_connection_it_runs() -> None:
    async def scenario(bench: Bench) -> None:
        runs, asks = Client(bench), Client(bench)
        runs.send("go a")
        bench.store.running = _Running({("acme", "a"): runs.link.id})
        bench.hub.cancel("acme", "a")
        assert runs.frames == ["created a", "cancelled a"]
        await bench.settle()
        assert bench.engine.sent_ids(CancelRequest) == ["a"]
        runs.send("go b")
        bench.store.running = _Running({("acme", "b"): runs.link.id})
        asks.send(f"stop {runs.link.id} b")
        assert runs.frames[-1] == "cancelled b"

    run(scenario)


def test_nothing_is_cancelled_of_others_nor_where_nothing_runs() -> None:
    async def scenario(bench: Bench) -> None:
        client = Client(bench)
        client.send("go a")
        bench.store.running = _Running({("acme", "a"): client.link.id, ("acme", "b"): "conn_99"})
        assert not bench.hub.cancel("another", "a")
        assert not bench.hub.cancel("acme", "unknown")
        assert not bench.hub.cancel("acme", "b"), "its connection has gone"
        client.send("stop conn_99 b")
        assert client.frames == ["created a"]

    run(scenario)
