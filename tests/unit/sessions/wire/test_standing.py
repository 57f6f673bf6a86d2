"""What a server says of itself in its cluster, before it serves, while it does, and at its end."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from sessions.journal.errors import AddressTaken, ClusterRefused, JournalUnavailable
from sessions.journal.members import Heard, MemberLoad, MemberState, Presence
from sessions.quotas import Draw, Drawn, Quotas
from sessions.tenants import ApiKey, TenantPolicy, Tenants
from sessions.wire import standing as module
from sessions.wire.standing import Standing, answers
from tests.support.clock import FakeClock

SAID = Presence(cluster="c", address="127.0.0.1:1", identity="m", state=MemberState.STARTING)


class FakeOwner:
    """The journal's side."""

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.joined = 0
        self.beats: list[tuple[Presence | None, bool]] = []
        self.told = False
        self.draws: list[Draw] = []
        self.away = False

    def join(self, presence: Presence) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.joined += 1

    def beat(self, presence: Presence | None = None, *, changed: bool = False) -> Heard:
        self.beats.append((presence, changed))
        return Heard(now_ms=0, told=self.told, num_ready=3)

    def draw(self, tenant: str, draws: Sequence[Draw]) -> tuple[Drawn, ...]:
        if self.away:
            raise JournalUnavailable("away")
        self.draws += draws
        return tuple(Drawn(kind=each.kind, amount=0, left=0, wait_s=0) for each in draws)


@contextlib.asynccontextmanager
async def health(status: int) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"GET /health HTTP/1.1" in await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def beat(standing: Standing, owner: FakeOwner) -> None:
    standing.heard(standing.beating(owner)())  # type: ignore[arg-type]


async def test_it_is_ready_when_its_engine_is_and_somebody_could_reach_it() -> None:
    owner, engine, usage = FakeOwner(), [False], [250]
    async with health(200) as address:
        standing = Standing(
            Presence(cluster="c", address=address, identity="m", state=MemberState.READY),
            notice_s=1,
        )
        assert standing.presence.state is MemberState.STARTING
        standing.serves(
            engine_ready=lambda: engine[0], load=lambda: MemberLoad(kv_permille=usage[0])
        )
        engine[0] = True
        async with asyncio.timeout(10):
            while standing.presence.state is not MemberState.READY:
                await asyncio.sleep(0)
        assert standing.due
        beat(standing, owner)
        assert not standing.due
        assert owner.joined == 1
        assert owner.beats[-1][0] is not None
        assert (owner.beats[-1][0].load.kv_permille, owner.beats[-1][1]) == (250, True)
        engine[0] = False
        assert standing.presence.state is MemberState.STARTING
        assert standing.due
        await standing.close()


async def test_an_address_that_nobody_reaches_is_told_once_and_never_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REACH_S", 0.01)
    caplog.set_level(logging.ERROR)
    async with health(505) as address:
        assert not await answers(address)
    standing = Standing(SAID, notice_s=1)
    standing.serves(engine_ready=lambda: True, load=MemberLoad)
    tried = 0

    async def no(address: str) -> bool:
        nonlocal tried
        tried += 1
        return False

    monkeypatch.setattr(module, "answers", no)
    async with asyncio.timeout(10):
        while tried < 5:
            await asyncio.sleep(0.001)
    assert standing.presence.state is MemberState.STARTING
    assert [each.message for each in caplog.records] == [
        "nobody is reached at --advertise 127.0.0.1:1: not ready"
    ]
    await standing.close()


async def test_an_address_of_a_server_that_died_a_moment_ago_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.001)
    owner = FakeOwner()
    owner.refusals = [AddressTaken("taken"), AddressTaken("taken")]
    standing = Standing(SAID, notice_s=1)
    await standing.join(owner)  # type: ignore[arg-type]
    assert owner.joined == 1
    await standing.close()
    clock = FakeClock(0.0, tick_s=10.0)
    owner.refusals = [AddressTaken("taken")]
    with pytest.raises(AddressTaken):
        await Standing(SAID, notice_s=1, clock=clock).join(owner)  # type: ignore[arg-type]


async def test_the_heart_beats_while_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.001)
    owner = FakeOwner()
    standing = Standing(SAID, notice_s=1)
    await standing.join(owner)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while len(owner.beats) < 3:
            await asyncio.sleep(0.001)
    await standing.close()
    assert {said.state for said, _ in owner.beats if said} == {MemberState.STARTING}


async def test_a_database_that_is_away_is_joined_later_and_may_refuse_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = FakeOwner()
    owner.refusals = [JournalUnavailable("away"), ClusterRefused("other")]
    standing = Standing(SAID, notice_s=1)
    await standing.join(owner)  # type: ignore[arg-type]
    await standing.close()
    beat(standing, owner)
    assert owner.beats == [(None, False)]  # it lives, and is no member
    assert "no member of its cluster reason=other" in caplog.text
    beat(standing, owner)
    assert (owner.joined, owner.beats[-1][0]) == (1, standing.presence)


@pytest.mark.parametrize("heard", [True, False])
async def test_it_leaves_when_the_balancer_has_heard_or_had_the_time_to(heard: bool) -> None:
    owner, clock = FakeOwner(), FakeClock(0.0, tick_s=0.0 if heard else 0.3)
    standing = Standing(SAID, notice_s=2, clock=clock)
    beat(standing, owner)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        owner.told = heard and looks == 3
        assert standing.due
        beat(standing, owner)

    await standing.leave(look)
    assert looks == 3 if heard else looks > 1
    assert owner.beats[-1][0] is not None
    assert owner.beats[-1][0].state is MemberState.DRAINING
    assert [changed for _, changed in owner.beats[1:]] == [True] + [False] * (looks - 1)


async def test_debts_are_paid_soon_and_the_clusters_size_is_known() -> None:
    tenants = Tenants(
        [ApiKey.of("key-of-acme", tenant="acme")], {"acme": TenantPolicy(tokens_per_minute=60)}
    )
    owner, quotas = FakeOwner(), Quotas(tenants, FakeClock(0.0), cluster="c")
    standing = Standing(SAID, notice_s=1)
    standing.quotas = quotas
    await standing.join(owner)  # type: ignore[arg-type]
    standing.serves(engine_ready=lambda: True, load=MemberLoad)
    beat(standing, owner)
    assert quotas.servers.count == 3
    assert quotas.part_of(10) == 4
    assert quotas.part_of(None) is None
    owner.away = True
    quotas.for_tenant("acme").spend(12)
    await asyncio.sleep(0.02)
    owner.away = False
    async with asyncio.timeout(10):
        while not owner.draws:
            await asyncio.sleep(0.01)
    assert [each.debt for each in owner.draws] == [12]
    await standing.close()


async def test_when_it_is_closed_no_thread_asks_the_journal_any_more() -> None:
    inside, may_end = threading.Event(), threading.Event()

    class Slow(FakeOwner):
        asks = False

        def beat(self, presence: Presence | None = None, *, changed: bool = False) -> Heard:
            self.asks = True
            inside.set()
            may_end.wait(10)
            self.asks = False
            return Heard(now_ms=0)

    owner, standing = Slow(), Standing(SAID, notice_s=1)
    await standing.join(owner)  # type: ignore[arg-type]
    await asyncio.to_thread(inside.wait, 10)
    closing = asyncio.ensure_future(standing.close())
    await asyncio.sleep(0)
    assert not closing.done()
    may_end.set()
    await closing
    assert not owner.asks
