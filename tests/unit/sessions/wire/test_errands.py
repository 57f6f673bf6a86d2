"""Errands: each question is answered once to who asked, one that is withdrawn not at all."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from runtime.grammar.refusal import GrammarRefused
from sessions.pages.metrics import Metrics
from sessions.turns.effects import Effects, Question, Work
from sessions.wire.errands import Errands, LongWork
from sessions.wire.links import NOBODY, Call, Link
from tests.support.clock import FakeClock
from tests.support.reading import inline_reading
from tests.support.tenants import make_tenant
from tools_api.grammar import GrammarSpec


class Bench:
    """Errands whose outcomes are noted as (link, method, arguments)."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.begun: list[asyncio.Future[None]] = []
        """Plans that wait for the test, where it works them out ``by_hand``."""
        self.noted: list[tuple[str, str, tuple[Any, ...]]] = []
        self.verdicts: dict[str, GrammarRefused | RuntimeError | None] = {}
        self.may_end = asyncio.Event()
        self.tried: list[tuple[str, str]] = []
        self.errands = Errands(
            LongWork(
                check_grammar=self._check,
                reading=inline_reading(),
                in_thread=self._in_thread if by_hand else asyncio.to_thread,
            ),
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

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        self.begun.append(asyncio.get_running_loop().create_future())
        await self.begun[-1]
        return work()

    def plan(self, id_: str, link: Link, work: Callable[[], Any]) -> None:
        self.errands.run(link, Effects(questions=(Question(id_, Work(work)),)))

    def _run(self, calls: Iterable[Call]) -> None:
        for _, call in calls:
            call()

    def link(self, name: str) -> Link:
        tenant = make_tenant(f"tenant of {name}")
        return Link(name, tenant, _Noting(name, self.noted), NOBODY)  # type: ignore[arg-type]

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


def check(name: str) -> Question:
    return Question(name, GrammarSpec(lark=name))


def test_a_verdict_comes_back_to_who_asked_and_a_withdrawn_check_to_nobody() -> None:
    async def scenario() -> None:
        bench = Bench()
        bad, odd = GrammarRefused("no"), RuntimeError("the child is gone")
        bench.verdicts = {"bad": bad, "odd": odd}
        first, second = bench.link("a"), bench.link("b")
        bench.errands.run(first, Effects(questions=(check("good"), check("odd"))))
        bench.errands.run(second, Effects(questions=(check("bad"), check("late"))))
        await bench.settle()
        assert ("bad", "tenant of b") in bench.tried
        bench.errands.run(second, Effects(withdrawn=("late", "unknown")))
        bench.may_end.set()
        await bench.settle()
        assert sorted(bench.noted, key=str) == [
            ("a", "answer", ("good", None)),
            ("a", "answer", ("odd", odd)),
            ("b", "answer", ("bad", bad)),
        ]

    asyncio.run(scenario())


def test_a_plan_comes_back_and_so_does_its_failure() -> None:
    async def scenario() -> None:
        bench = Bench()
        fault = ValueError("no plan")

        def fails() -> Any:
            raise fault

        bench.plan("a", bench.link("a"), fails)
        while not bench.noted:
            await asyncio.sleep(0)
        assert bench.noted == [("a", "answer", ("a", fault))]

    asyncio.run(scenario())


def test_plans_of_a_connection_are_worked_out_one_by_one_and_others_in_between() -> None:
    async def scenario() -> None:
        bench = Bench(by_hand=True)
        one, other = bench.link("a"), bench.link("b")
        for id_ in ("1", "2"):
            bench.plan(id_, one, lambda id_=id_: id_)
        bench.plan("3", other, lambda: "3")
        for expected in ("1", "3", "2"):
            await bench.settle()
            assert len(bench.begun) == 1
            bench.begun.pop().set_result(None)
            await bench.settle()
            assert bench.noted[-1][2] == (expected, expected)

    asyncio.run(scenario())


def test_a_withdrawn_plan_is_dropped_but_one_that_has_begun_keeps_the_next_waiting() -> None:
    async def scenario() -> None:
        bench = Bench(by_hand=True)
        link = bench.link("a")
        for id_ in ("1", "2", "3"):
            bench.plan(id_, link, lambda id_=id_: id_)
        await bench.settle()
        bench.errands.run(link, Effects(withdrawn=("1", "2")))
        await bench.settle()
        assert len(bench.begun) == 1
        for _ in range(2):
            bench.begun.pop().set_result(None)
            await bench.settle()
        assert [arguments for _, _, arguments in bench.noted] == [("1", "1"), ("3", "3")]

    asyncio.run(scenario())


def test_all_plans_are_given_up_with_their_client() -> None:
    async def scenario() -> None:
        bench = Bench(by_hand=True)
        link = bench.link("a")
        for id_ in ("1", "2"):
            bench.plan(id_, link, dict)
        await bench.settle()
        link.gone = True
        bench.errands.run(link, Effects(withdrawn=("1", "2")))
        await bench.settle()
        assert bench.begun[0].cancelled()
        assert (len(bench.begun), bench.noted) == (1, [])

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
        bench.plan("p", link, fails)
        await bench.settle()
        while not bench.noted:
            await asyncio.sleep(0)
        bench.noted.clear()
        await bench.settle()

    gc.disable()
    try:
        asyncio.run(scenario())
        assert made[0]() is None
    finally:
        gc.enable()
