"""Whose frame is next: one of a tenant in a turn of the loop, CPU time by the bucket."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sessions.command.serve import _reading
from sessions.fair_slots import FairSlots
from sessions.turns.reading import Read
from sessions.wire.fair_reading import CpuAllowance, Reading, TenantTurns
from sessions.wire.http_dialects import Body, ReadBody
from sessions.wire.read_process import NoText, ReadConfig, ReaderLost, ReadProcess, ReadResult
from tests.support.clock import FakeClock
from tests.support.reading import inline_reading
from tests.support.sessions_rig import make_service
from tools_api.errors import ApiError
from tools_api.limits import Limits

ANSWER = ReadBody(read=Read(content=ApiError("no", code=None)), style=None)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_each_tenant_has_one_call_in_a_turn_of_the_loop() -> None:
    async def scenario() -> None:
        turns, made = TenantTurns(), list[str]()
        for number in range(3):
            turns.run("a", lambda number=number: made.append(f"a{number}"))  # type: ignore[misc]
        turns.run("b", lambda: made.append("b0"))
        assert made == ["a0", "b0"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turns.run("b", lambda: made.append("b1"))
        assert made[2:] in (["a1", "b1"], ["b1"]), "who comes later does not wait for the flood"
        for _ in range(6):
            await asyncio.sleep(0)
        assert [each for each in made if each[0] == "a"] == ["a0", "a1", "a2"]

    run(scenario())


def test_no_turn_of_the_loop_has_two_calls_of_a_tenant() -> None:
    async def scenario() -> None:
        turns, made, now = TenantTurns(), list[int](), 0
        for _ in range(50):
            turns.run("a", lambda: made.append(now))
        for now in range(1, 200):  # noqa: B007
            await asyncio.sleep(0)
        assert len(made) == len(set(made)) == 50

    run(scenario())


def test_a_tenants_calls_go_on_in_a_turn_of_the_loop_until_its_time_is_over() -> None:
    async def scenario() -> None:
        clock, made = FakeClock(0.0), list[tuple[int, str]]()
        turns, now = TenantTurns(budget_s=0.005, clock=clock), 0

        def call(name: str, seconds: float) -> None:
            def make() -> None:
                made.append((now, name))
                clock.advance(seconds)

            turns.run(name, make)

        for _ in range(4):
            call("a", 0.003)
        call("b", 0.02)
        assert made == [(0, "a"), (0, "a"), (0, "b")]
        for now in range(1, 10):  # noqa: B007
            await asyncio.sleep(0)
        assert len(made) == 5
        assert made[3][0] == made[4][0] > 0
        turns.run("a", lambda: turns.run("a", lambda: call("nested", 0)))
        assert len(made) == 5, "no call is made inside another of its tenant"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert made[-1][1] == "nested"

    run(scenario())


def test_a_tenant_goes_on_when_it_has_paid_back_what_is_over_the_burst() -> None:
    clock = FakeClock(10.0)
    allowance = CpuAllowance(share=0.5, burst_s=2.0, clock=clock)
    assert allowance.wait_s("a") == 0
    allowance.spend("a", 2.0)
    assert allowance.wait_s("a") == 0, "a burst may be used up"
    allowance.spend("a", 1.0)
    assert allowance.wait_s("a") == 2.0
    assert allowance.wait_s("b") == 0
    clock.advance(2.0)
    assert allowance.wait_s("a") == 0
    allowance.spend("a", 0.5)
    assert allowance.wait_s("a") == 1.0
    clock.advance(100)
    allowance.spend("a", 2.0)
    assert allowance.wait_s("a") == 0, "no more than a burst is saved up"


def test_a_tenant_may_read_what_the_limits_say_and_waits_for_what_is_beyond() -> None:
    clock = FakeClock(10.0)
    limits = Limits(read_cpu_burst_s=3.0, read_cpu_share=0.25)
    config = ReadConfig(limits=limits, models=frozenset(), model_type="qwen3", specials=frozenset())
    allowance = _reading(make_service(clock, limits=limits), ReadProcess(config)).allowance
    allowance.spend("a", 3.0)
    assert allowance.wait_s("a") == 0
    allowance.spend("a", 0.5)
    assert allowance.wait_s("a") == 2.0
    clock.advance(2.0)
    assert allowance.wait_s("a") == 0


class Bench:
    """Jobs that take as long as the test says."""

    def __init__(self) -> None:
        self.clock = FakeClock(0.0)
        self.read: list[bytes] = []
        self.may_end = asyncio.Event()
        self.reading = Reading(
            read=self._read,
            slots=FairSlots(1),
            allowance=CpuAllowance(share=0.5, burst_s=1.0, clock=self.clock),
            turns=TenantTurns(),
            max_inline_bytes=10,
            clock=self.clock,
            pause=self._pause,
        )

    async def _read(self, job: bytes | Body) -> ReadResult:
        assert isinstance(job, bytes)
        self.read.append(job)
        await self.may_end.wait()
        return ReadResult(body=ANSWER, cpu_s=1.5)

    async def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def test_tenants_take_turns_and_a_spender_waits_until_it_is_paid_back() -> None:
    async def scenario() -> None:
        bench = Bench()
        jobs = [("a", b"a0"), ("a", b"a1"), ("a", b"a2"), ("b", b"b0")]
        tasks = [asyncio.create_task(bench.reading.beside(*job)) for job in jobs]
        await bench.settle()
        assert bench.read == [b"a0"]
        bench.may_end.set()
        assert await asyncio.gather(*tasks) == [ANSWER] * 4
        assert bench.read[:2] == [b"a0", b"b0"]
        assert bench.clock() == pytest.approx(1.0 + 3.0), "paid back after a0 and after a1"

    run(scenario())


def test_a_caller_that_gives_up_withdraws_what_has_not_begun_and_pays_for_what_has() -> None:
    async def scenario() -> None:
        bench = Bench()
        tasks = [asyncio.create_task(bench.reading.beside("a", job)) for job in (b"0", b"1")]
        await bench.settle()
        for task in tasks:
            task.cancel()
        await bench.settle()
        bench.may_end.set()
        await bench.settle()
        assert bench.read == [b"0"]
        assert bench.reading.allowance.wait_s("a") == 1.0

    run(scenario())


@pytest.mark.parametrize("fault", [ReaderLost("it hangs"), NoText()])
def test_an_attempt_without_an_outcome_costs_its_tenant_the_time_it_took(fault: Exception) -> None:
    async def scenario() -> None:
        bench = Bench()

        async def fails(_: bytes | Body) -> ReadResult:
            bench.clock.advance(10.0)
            raise fault

        reading = replace(bench.reading, read=fails)
        with pytest.raises(type(fault)):
            await reading.beside("a", b"x")
        assert reading.allowance.wait_s("a") == pytest.approx((10.0 - 1.0) / 0.5)
        assert reading.allowance.wait_s("b") == 0

    run(scenario())


def test_a_lost_reader_is_the_callers_to_tell_and_the_place_is_free_again() -> None:
    async def scenario() -> None:
        async def lost(_: bytes | Body) -> ReadResult:
            raise ReaderLost("gone")

        reading = replace(inline_reading(), read=lost)
        for _ in range(2):
            with pytest.raises(ReaderLost):
                await reading.beside("a", b"x")

    run(scenario())
