"""A body on its way to its answer: small ones at once, large ones beside, none for who is gone."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.wire.fair_reading import Reading
from sessions.wire.http_api import HttpApi
from sessions.wire.http_dialects import Body
from sessions.wire.read_process import ReaderLost, ReadResult
from tests.support.exchange import KeptExchange, make_call
from tests.support.fake_engine import play
from tests.support.hub_bench import HubBench
from tests.support.speaking_engine import SpeakingEngine

SMALL = orjson.dumps({"model": "m", "input": "hi"})


class Api(HubBench):
    """The handlers, over an engine that says hello unless it ``holds``."""

    def __init__(self, *, holds: bool = False) -> None:
        super().__init__(SpeakingEngine(holds=holds))
        self.api = HttpApi(hub=self.hub, service=self.service)

    def post(self, path: str = "/v1/responses", body: bytes = SMALL) -> KeptExchange:
        (handler,) = (route.calls["POST"] for route in self.api.routes() if route.path == path)
        exchange = KeptExchange()
        call = make_call(method="POST", body=body, exchange=exchange)
        return exchange.play(handler(call))  # type: ignore[arg-type]

    def read_beside(
        self, read: Callable[[bytes | Body], Awaitable[ReadResult]] | None = None
    ) -> Reading:
        """From now on every body is large."""
        reading = replace(self.hub.reading, max_inline_bytes=5)
        self.hub.reading = reading if read is None else replace(reading, read=read)
        return self.hub.reading


def run(scenario: Callable[[Api], Coroutine[Any, Any, None]], *, holds: bool = False) -> None:
    play(lambda: Api(holds=holds), scenario)


def test_small_bodies_are_read_in_their_tenants_turns() -> None:
    async def scenario(bench: Api) -> None:
        exchanges = [bench.post() for _ in range(3)]
        assert bench.hub.num_connections == 1, "the others wait for their turns"
        await bench.settle()
        assert [exchange.body["status"] for exchange in exchanges] == ["completed"] * 3
        assert bench.hub.num_connections == 0

    run(scenario)


def test_who_leaves_before_its_body_is_read_leaves_nothing_behind() -> None:
    async def scenario(bench: Api) -> None:
        first, second = bench.post(), bench.post()
        second.leave()
        await bench.settle()
        assert first.over
        assert not second.over
        assert len(bench.engine.scripted.requests) == 1

        reading = bench.read_beside()
        async with reading.slots.place("b"):
            gone = bench.post()
            await bench.settle()
            gone.leave()
        await bench.settle()
        assert not gone.over
        assert len(bench.engine.scripted.requests) == 1

    run(scenario)


@pytest.mark.parametrize("late", [False, True])
def test_who_leaves_while_its_turn_runs_takes_it_along(late: bool) -> None:
    async def scenario(bench: Api) -> None:
        others = [bench.post() for _ in range(1 if late else 0)]
        exchange = bench.post()
        await bench.settle()
        assert bench.hub.num_connections == 1 + late
        exchange.leave()
        await bench.settle()
        assert bench.hub.num_connections == late
        assert len(bench.engine.scripted.cancelled) == 1
        assert not any(other.over for other in others)

    run(scenario, holds=True)


def test_a_large_body_is_read_beside_the_event_loop() -> None:
    async def scenario(bench: Api) -> None:
        bench.read_beside()
        turn, count = bench.post(), bench.post("/v1/responses/input_tokens")
        assert not turn.over
        await bench.settle()
        assert turn.body["status"] == "completed"
        assert count.body["input_tokens"] > 0

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_what_cannot_be_read_is_answered(path: str) -> None:
    async def scenario(bench: Api) -> None:
        assert bench.post(path, b'{"model": "other"}').status == 404
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.post(path, b"{").status == 400

        async def fails(_: bytes | Body) -> ReadResult:
            raise ReaderLost("gone")

        bench.read_beside(fails)
        lost = bench.post(path)
        await bench.settle()
        assert lost.status == 500

    run(scenario)
