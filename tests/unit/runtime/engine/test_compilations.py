"""Grammars on their way: one compilation for all who want it, none for nobody."""

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.background import BackgroundTasks
from runtime.engine.compilations import Compilations
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.grammars import small_tokenizer
from tests.support.requests import make_request
from tools_api.grammar import GrammarSpec

LETTERS = GrammarSpec(lark="start: /[a-z]+/")
BROKEN = GrammarSpec(lark="start: (")


class Later(Executor):
    """Does what it was given when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, call: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, call, arguments))
        return future

    def work(self, most: int | None = None) -> None:
        now, self.calls = self.calls[:most], [] if most is None else self.calls[most:]
        for future, call, arguments in now:
            try:
                future.set_result(call(*arguments))
            except Exception as error:
                future.set_exception(error)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.workers = Later()
        background = BackgroundTasks(lambda: 0.0)
        background.begin_step()
        compiler = GrammarCompiler(small_tokenizer(folder), max_cache_bytes=10**8)
        self.compilations = Compilations(compiler, self.workers, background)

    def sequence(self, tenant: str = "t") -> Sequence:
        return Sequence(make_request(tenant=tenant), TokenBuffer(), arrival_s=0.0)

    def wants(self, tenant: str, text: str) -> Sequence:
        """A sequence of that tenant, and a grammar of that text."""
        sequence = self.sequence(tenant)
        self.compilations.want(sequence, GrammarSpec(lark=f'start: "{text}"'))
        return sequence

    def work_off(self) -> list[Sequence]:
        """Have one grammar after the other parsed; who is ready, in this order."""
        ready = []
        while self.workers.calls:
            self.workers.work(1)
            self.compilations.poll()
            ready += [sequence for sequence, _ in self.compilations.pop_ready()]
        return ready


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_all_who_want_a_grammar_share_one_compilation_and_are_handed_out_once(rig: Rig) -> None:
    wanting = [rig.sequence() for _ in range(3)]
    for sequence in wanting:
        rig.compilations.want(sequence, LETTERS)
    assert len(rig.workers.calls) == 1
    rig.compilations.poll()
    assert rig.compilations.pop_ready() == []
    rig.workers.work()
    rig.compilations.poll()
    assert rig.compilations.num_waiting == 3
    ready = rig.compilations.pop_ready()
    assert [sequence for sequence, _ in ready] == wanting
    assert all(isinstance(outcome, CompiledGrammar) for _, outcome in ready)
    assert (rig.compilations.num_waiting, rig.compilations.pop_ready()) == (0, [])


def test_a_remembered_grammar_is_ready_at_once(rig: Rig) -> None:
    for _ in range(2):
        rig.compilations.want(rig.sequence(), LETTERS)
        rig.workers.work()
        rig.compilations.poll()
        assert len(rig.compilations.pop_ready()) == 1
    assert not rig.workers.calls


def test_a_refused_grammar_comes_with_its_reason(rig: Rig) -> None:
    rig.compilations.want(rig.sequence(), BROKEN)
    rig.workers.work()
    rig.compilations.poll()
    ((_, outcome),) = rig.compilations.pop_ready()
    assert isinstance(outcome, GrammarRefused)


@pytest.mark.parametrize("when", ["parsing", "ready"])
def test_who_withdraws_is_not_handed_out(rig: Rig, when: str) -> None:
    leaves, stays = rig.sequence(), rig.sequence()
    rig.compilations.want(leaves, LETTERS)
    rig.compilations.want(stays, LETTERS)
    if when == "ready":
        rig.workers.work()
        rig.compilations.poll()
    rig.compilations.withdraw(leaves)
    rig.workers.work()
    rig.compilations.poll()
    assert [sequence for sequence, _ in rig.compilations.pop_ready()] == [stays]


def test_what_nobody_wants_any_more_is_not_finished(rig: Rig) -> None:
    sequence = rig.sequence()
    rig.compilations.want(sequence, LETTERS)
    rig.compilations.withdraw(sequence)
    rig.workers.work()
    rig.compilations.poll()
    assert (rig.compilations.num_waiting, rig.compilations.pop_ready()) == (0, [])


def test_who_wants_many_grammars_waits_behind_its_own(rig: Rig) -> None:
    many = [rig.wants("greedy", f"a{n}") for n in range(4)]
    few = [rig.wants("modest", f"b{n}") for n in range(2)]
    assert rig.work_off() == [many[0], few[0], many[1], few[1], many[2], many[3]]


def test_a_grammar_that_two_tenants_want_is_parsed_when_the_first_of_them_has_its_turn(
    rig: Rig,
) -> None:
    many = [rig.wants("greedy", f"a{n}") for n in range(4)]
    also = rig.wants("modest", "a3")
    assert rig.work_off() == [many[0], many[3], also, many[1], many[2]]
    assert rig.compilations.num_unparsed == 0


def test_what_is_withdrawn_before_it_was_begun_is_not_parsed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    parse = GrammarCompiler.parse
    monkeypatch.setattr(
        GrammarCompiler, "parse", lambda self, spec: parsed.append(spec) or parse(self, spec)
    )
    gone, goes, stays = [rig.wants("t", f"a{n}") for n in range(3)]
    rig.compilations.withdraw(gone)
    rig.compilations.withdraw(goes)
    again = rig.wants("t", "a1")
    assert rig.work_off() == [stays, again]
    assert [spec.lark for spec in parsed] == ['start: "a2"', 'start: "a1"']
