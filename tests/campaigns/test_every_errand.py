"""Requests that are ended while others work for them leave no errand, place or route behind.

A running hub, whose planner and probe are held. ``test_every_place`` ends requests at every
question; here it is what the hub does of it: tasks, places at the planners, the order of one
client's plans, routes of engine requests, links of clients that have left.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import EngineInfo
from sessions.fair_slots import FairSlots
from sessions.wire.errands import Errands
from sessions.wire.hub import Hub
from sessions.wire.links import Link
from tests.support.fake_engine import play
from tests.support.hub_bench import HubBench
from tests.support.speaking_engine import SpeakingEngine
from tools_api.grammar import GrammarSpec
from tools_api.limits import Limits

LONG = "word " * 240
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
PLACES: dict[str, dict[str, Any]] = {
    "a long plan": {"input": LONG},
    "its grammar": {"input": "hi", "text": FORMAT},
    "the engine": {"input": "hi"},
}
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


class Outlet:
    """A client's socket."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        types = [json.loads(frame)["type"] for frame in frames]
        self.ends += [type_ for type_ in types if type_ in TERMINAL]


class Engine(SpeakingEngine):
    """One that comes back with nothing of what it was asked before."""

    async def restart(self) -> EngineInfo:
        self.scripted.restart()
        self.waiting.clear()
        return await super().restart()


class Bench(HubBench):
    """Whose planner, probe and engine wait for the test."""

    def __init__(self) -> None:
        engine, limits = Engine(holds=True), Limits(max_inline_bytes=1000)
        super().__init__(engine, limits=limits, in_thread=self._in_thread, pause=_at_once)
        self.may_end = asyncio.Event()
        self.fails: Exception | None = None
        """What the next answer is."""
        self.place = ""
        self.draining: asyncio.Task[None] | None = None

    async def check_grammar(self, _: GrammarSpec, tenant: str) -> GrammarRefused | None:
        await self._held()
        return None

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        await self._held()
        return work()

    async def _held(self) -> None:
        await self.may_end.wait()
        error, self.fails = self.fails, None
        if error is not None:
            raise error

    def client(self) -> tuple[Link, Outlet]:
        outlet = Outlet()
        return self.hub.open("acme", outlet), outlet

    def send(self, link: Link, **fields: Any) -> None:
        frame = {"type": "response.create", "max_output_tokens": 50} | fields
        self.hub.receive(link, json.dumps(frame))

    async def play_out(self) -> None:
        """Let all end, but for an engine that is drained in vain."""
        self.may_end.set()
        self.engine.holds = False
        await self.settle()
        while self.engine.waiting:
            request = self.engine.waiting[0]
            if request.request_id in self.engine.scripted.open:
                self.engine.speak()
            else:
                self.engine.waiting.popleft()
        await self.settle()

    def orphans(self) -> list[str]:
        """What is done for nobody. (A plan that has begun is, while its client is there.)"""
        hub = self.hub
        jobs = [job for link in (*hub.links, *hub.left_running) for job in link.connection.jobs]
        waited = {job.question.id for job in jobs if job.question is not None}
        begun = {link.planned for link in hub.links}
        return [id_ for id_ in hub.errands.open if id_ not in waited | begun]

    def held(self) -> dict[str, Any]:
        hub = self.hub
        found = {
            "tasks": hub.errands.open,
            "planners": hub.errands.held,
            "plans": [link.id for link in hub.links if link.planner.locked()],
            "turns at the engine": hub.held,
            "turns": self.service.store.running.held,
            "memory": self.service.store.held.total,
        }
        return {what: each for what, each in found.items() if each}


async def _at_once(_: float) -> None: ...


async def answered(bench: Bench, link: Link) -> None: ...


async def gone(bench: Bench, link: Link) -> None:
    bench.hub.disconnected(link)


async def cancelled(bench: Bench, link: Link) -> None:
    bench.send(link, type="response.cancel")


async def newer_id(bench: Bench, link: Link) -> None:
    newer, _ = bench.client()
    bench.send(newer, keepwarm=OPTIONS, **PLACES[bench.place])


async def drained(bench: Bench, link: Link) -> None:
    bench.draining = asyncio.get_running_loop().create_task(bench.hub.drain(60.0))


async def drained_in_vain(bench: Bench, link: Link) -> None:
    await bench.hub.drain(0.0)


async def engine_lost(bench: Bench, link: Link) -> None:
    bench.engine.die()


async def failed(bench: Bench, link: Link) -> None:
    bench.fails = RuntimeError("told to")
    bench.may_end.set()


OPTIONS = {"request_id": "r", "session": "s"}
WAYS: dict[str, Callable[[Bench, Link], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        answered,
        gone,
        cancelled,
        newer_id,
        drained,
        drained_in_vain,
        engine_lost,
        failed,
    )
}


async def end_there(bench: Bench, place: str, way: str) -> None:
    bench.place = place
    link, outlet = bench.client()
    behind, other = bench.client()
    bench.send(link, keepwarm=OPTIONS, **PLACES[place])
    bench.send(link, **PLACES[place])
    bench.send(behind, keepwarm={"session": "s"}, **PLACES[place])
    await bench.settle()
    await WAYS[way](bench, link)
    await bench.settle()
    assert bench.orphans() == []
    await bench.play_out()
    assert bench.held() == {}
    if bench.draining is not None:
        await asyncio.wait_for(bench.draining, 5)
    drains = way.startswith("drained")
    assert len(other.ends) == 1, other.ends
    assert drains or other.ends == ["response.completed"] or way == "engine_lost"
    if way != "gone":
        assert len(outlet.ends) == 2, outlet.ends
        assert drains or outlet.ends[1] == "response.completed" or way == "engine_lost"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_done_for_a_request_that_has_ended(place: str, way: str) -> None:
    async def scenario(bench: Bench) -> None:
        await asyncio.wait_for(end_there(bench, place, way), 60)

    play(Bench, scenario)


@pytest.mark.parametrize(
    ("owner", "name", "instead", "place", "way"),
    [
        (Errands, "_give_up", lambda *_: None, "its grammar", "gone"),
        (Errands, "_over", lambda *_: None, "a long plan", "answered"),
        (FairSlots, "_release", lambda *_: None, "a long plan", "cancelled"),
        (Hub, "_note_quiet", lambda *_: None, "the engine", "drained"),
    ],
)
def test_a_release_of_the_hub_left_out_is_noticed(
    owner: Any, name: str, instead: Any, place: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, instead)

    async def scenario(bench: Bench) -> None:
        with pytest.raises((AssertionError, TimeoutError)):
            await asyncio.wait_for(end_there(bench, place, way), 10)

    play(Bench, scenario)
