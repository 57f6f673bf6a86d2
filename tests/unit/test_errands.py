"""Errands: each ends in one call on the connection that asked, a withdrawn check in none."""

import asyncio
import gc
import weakref
from collections.abc import Iterable
from typing import Any

from runtime.grammar.refusal import GrammarRefused
from sessions.pages.metrics import Metrics
from sessions.turns.effects import Effects, GrammarCheck, Planning
from sessions.wire.errands import Errands, LongWork
from sessions.wire.links import NOBODY, Call, Link
from tests.support.clock import FakeClock
from tests.support.reading import inline_reading
from tools_api.grammar import GrammarSpec


class Bench:
    """Errands whose outcomes are noted as (link, method, arguments)."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, tuple[Any, ...]]] = []
        self.verdicts: dict[str, GrammarRefused | RuntimeError | None] = {}
        self.may_end = asyncio.Event()
        self.tried: list[tuple[str, str]] = []
        self.errands = Errands(
            LongWork(check_grammar=self._check, reading=inline_reading()),
            run=self._run,
            metrics=Metrics(),
            clock=FakeClock(),
        )

    async def _check(self, spec: GrammarSpec, tenant: str) -> GrammarRefused | None:
        self.tried.append((spec.lark, tenant))
        await self.may_end.wait()
        verdict = self.verdicts.get(spec.lark)
        if isinstance(verdict, RuntimeError):
            raise verdict
        return verdict

    def _run(self, calls: Iterable[Call]) -> None:
        for _, call in calls:
            call()

    def link(self, name: str) -> Link:
        return Link(name, f"tenant of {name}", _Noting(name, self.noted), NOBODY)  # type: ignore[arg-type]

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


class _Noting:
    """A connection that notes which of its methods are called."""

    def __init__(self, name: str, noted: list[tuple[str, str, tuple[Any, ...]]]) -> None:
        self._name, self._noted = name, noted

    def __getattr__(self, method: str) -> Any:
        def note(*arguments: Any, **more: Any) -> Effects:
            self._noted.append((self._name, method, (*arguments, *more.values())))
            return Effects()

        return note


def check(name: str) -> GrammarCheck:
    return GrammarCheck(check_id=name, spec=GrammarSpec(lark=name))


def test_a_verdict_comes_back_to_who_asked_and_a_withdrawn_check_to_nobody() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.verdicts = {"bad": GrammarRefused("no"), "odd": RuntimeError("the child is gone")}
        first, second = bench.link("a"), bench.link("b")
        bench.errands.begin(first, Effects(grammar_checks=(check("good"), check("odd"))))
        bench.errands.begin(second, Effects(grammar_checks=(check("bad"), check("late"))))
        await bench.settle()
        assert ("bad", "tenant of b") in bench.tried
        bench.errands.begin(second, Effects(withdrawn_checks=("late", "unknown")))
        bench.may_end.set()
        await bench.settle()
        assert sorted(bench.noted) == [
            ("a", "grammar_checked", ("good", None)),
            ("a", "grammar_unchecked", ("odd",)),
            ("b", "grammar_checked", ("bad", "no", None, None)),
        ]

    asyncio.run(scenario())


def test_a_plan_comes_back_and_so_does_its_failure() -> None:
    async def scenario() -> None:
        bench = Bench()
        link, fault = bench.link("a"), ValueError("no plan")

        def fails() -> Any:
            raise fault

        bench.errands.begin(link, Effects(plannings=(Planning(planning_id="p", work=fails),)))
        assert link.planning is not None
        await link.planning
        assert bench.noted == [("a", "planned", ("p", fault))]

    asyncio.run(scenario())


def test_what_a_failed_plan_worked_on_is_gone_with_it() -> None:
    class Prompt:
        """Long."""

    made: list[weakref.ref[Prompt]] = []

    def fails() -> Any:
        prompt = Prompt()
        made.append(weakref.ref(prompt))
        raise ValueError("too long")

    async def scenario() -> None:
        bench = Bench()
        link = bench.link("a")
        bench.errands.begin(link, Effects(plannings=(Planning(planning_id="p", work=fails),)))
        await bench.settle()
        while not bench.noted:
            await asyncio.sleep(0)
        bench.noted.clear()
        link.planning = None
        await bench.settle()

    gc.disable()
    try:
        asyncio.run(scenario())
        assert made[0]() is None
    finally:
        gc.enable()
