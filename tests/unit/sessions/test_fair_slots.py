"""Who gets a place when there are fewer than wanted."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sessions.fair_slots import FairSlots


class Bench:
    """Workers that hold a place until they are told to let go."""

    def __init__(self, count: int) -> None:
        self.slots = FairSlots(count)
        self.began: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str) -> None:
        """``name`` is the tenant and a number: ``a1``."""
        self._gates[name] = asyncio.Event()
        self._tasks[name] = asyncio.get_running_loop().create_task(self._work(name))
        await self.settle()

    async def let_go(self, name: str) -> None:
        self._gates[name].set()
        await self.settle()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.slots.place(name[0]):
            self.began.append(name)
            await self._gates[name].wait()


def run(count: int, scenario: Callable[[Bench], Awaitable[None]]) -> list[str]:
    bench = Bench(count)

    async def main() -> None:
        await scenario(bench)

    asyncio.run(main())
    return bench.began


def test_nobody_waits_while_a_place_is_free() -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a1", "a2", "a3"):
            await bench.ask(name)
        await bench.let_go("a1")

    assert run(2, scenario) == ["a1", "a2", "a3"]


def test_tenants_take_turns_however_much_one_of_them_asks() -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            await bench.ask(name)
        for name in ("a1", "b1", "c1", "a2", "b2", "a3"):
            await bench.let_go(name)

    assert run(1, scenario) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_of_two_places_one_goes_to_who_has_none() -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a1", "b1", "b2", "c1", "b3"):
            await bench.ask(name)
        await bench.let_go("a1")
        await bench.let_go("c1")

    assert run(2, scenario) == ["a1", "b1", "c1", "b2"]


def test_who_gives_up_waiting_gets_nothing_and_who_holds_gives_back() -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a1", "b1", "c1"):
            await bench.ask(name)
        await bench.give_up("b1")
        await bench.give_up("a1")

    assert run(1, scenario) == ["a1", "c1"]


def test_a_place_given_to_who_leaves_at_that_moment_goes_on() -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a1", "b1", "c1"):
            await bench.ask(name)
        bench._gates["a1"].set()
        while bench.slots.waiting == {"b", "c"}:
            await asyncio.sleep(0)
        await bench.give_up("b1")

    assert run(1, scenario) == ["a1", "c1"]


def test_no_places_make_no_sense() -> None:
    with pytest.raises(ValueError, match="0 places"):
        FairSlots(0)


def test_a_tenant_whose_work_took_long_leaves_the_last_place_to_others() -> None:
    async def scenario(bench: Bench) -> None:
        bench.slots.judge("a", took_long=True)
        for name in ("a1", "a2", "b1"):
            await bench.ask(name)
        await bench.let_go("b1")
        await bench.ask("b2")
        await bench.let_go("a1")  # its own place, not the last one
        bench.slots.judge("a", took_long=False)
        await bench.ask("a3")
        await bench.let_go("b2")

    assert run(2, scenario) == ["a1", "b1", "b2", "a2", "a3"]


def test_the_only_place_is_for_everybody() -> None:
    async def scenario(bench: Bench) -> None:
        bench.slots.judge("a", took_long=True)
        await bench.ask("a1")

    assert run(1, scenario) == ["a1"]
