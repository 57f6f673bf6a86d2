"""Turns outside of steps: taken in, compiled, cancelled, ended; one finish each."""

from pathlib import Path

import numpy as np
import pytest

from runtime.config import EngineConfig
from runtime.engine.background import BackgroundTasks
from runtime.engine.branch_tokens import BranchTokens
from runtime.engine.compilations import Compilations
from runtime.engine.open_requests import OpenRequests, RequestLimits
from runtime.grammar.compiler import GrammarCompiler
from runtime.messages import (
    ErrorKind,
    FinishReason,
    ReleaseBranch,
    SequenceOutput,
)
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import Sequence, SequenceState
from tests.support.caches import make_cache
from tests.support.executors import AtOnce
from tests.support.grammars import small_tokenizer
from tests.support.requests import make_request
from tools_api.grammar import GrammarSpec

BLOCK = 4


class Rig:
    """Turns over a real scheduler and cache; steps are played by hand."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.now = 0.0
        config = EngineConfig(num_blocks=64, block_size=BLOCK, **settings)  # type: ignore[arg-type]
        self.cache = make_cache(64, clock=lambda: self.now, restore_cost=lambda _: 3.2, debug=False)
        self.scheduler = Scheduler(self.cache, config, StepCosts())
        self.tokenizer = small_tokenizer(folder)
        self.background = BackgroundTasks(lambda: self.now)
        self.background.begin_step()
        self.turns = OpenRequests(
            limits=RequestLimits(
                vocab_size=1 << 20,
                max_waiting=config.max_waiting,
                max_context_tokens=100,
                first_token_limit_s=config.first_token_limit_s,
                adapters={"red": (0, "d1"), "blue": (1, "d2")},
            ),
            scheduler=self.scheduler,
            cache=self.cache,
            branches=BranchTokens(max_bytes=10_000),
            compilations=Compilations(
                GrammarCompiler(self.tokenizer, max_cache_bytes=10**8), AtOnce(), self.background
            ),
            tokenizer=self.tokenizer,
            drafter=None,
            clock=lambda: self.now,
        )
        self.outputs = self.turns.outputs

    def open(self, name: str, length: int = 9, limit: int = 8, **more: object) -> None:
        self.turns.open(
            make_request(
                length,
                request_id=name,
                branch_id=str(more.pop("session", name)),
                base_branch_id=more.pop("base", None),
                base_offset=more.pop("offset", 0),
                max_new_tokens=limit,
                **more,
            )
        )

    def compile(self) -> None:
        """What the beginning of a step does for grammars."""
        self.turns.compilations.poll()
        self.turns.queue_compiled()

    def admit(self) -> list[Sequence]:
        """One step of prefill."""
        schedule = self.scheduler.schedule(self.now)
        for sequence in schedule.admitted:
            self.turns.started(sequence)
        for chunk in schedule.chunks:
            self.scheduler.advance(chunk)
        return list(self.scheduler.queues.running)

    def told(self) -> dict[str, SequenceOutput]:
        return {output.request_id: output for output in self.outputs.collect()}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_turn_runs_from_its_request_to_one_finish(rig: Rig) -> None:
    rig.open("a")
    (sequence,) = rig.admit()
    start = rig.told()["a"].start
    assert start is not None
    assert start.input_tokens == 9
    rig.turns.finish(sequence, FinishReason.LENGTH)
    assert rig.told()["a"].finish is FinishReason.LENGTH
    assert not rig.scheduler.queues.has_work
    rig.cache.check()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"length": 0}, ErrorKind.TOO_LARGE),
        ({"length": 101}, ErrorKind.TOO_LARGE),
        ({"deadline_s": 0.0}, ErrorKind.OVERLOADED),
    ],
)
def test_a_refused_turn_leaves_its_session_free(
    rig: Rig, wrong: dict[str, object], error: ErrorKind
) -> None:
    rig.open("a", **wrong)  # type: ignore[arg-type]
    assert rig.told()["a"].error is error
    rig.open("a")
    assert rig.told() == {}
    assert len(rig.scheduler.queues.waiting) == 1


def test_a_session_has_one_turn_at_a_time(rig: Rig) -> None:
    rig.open("a")
    rig.open("b", session="a")
    assert rig.told()["b"].error is ErrorKind.INTERNAL


def test_an_unknown_base_is_said(rig: Rig) -> None:
    rig.open("a", base="gone", offset=3)
    assert rig.told()["a"].finish is FinishReason.UNKNOWN_BASE


def test_a_grammar_is_compiled_before_its_turn_is_queued(rig: Rig) -> None:
    rig.open("a", grammar=GrammarSpec(lark="start: /[a-z]+/"))
    assert (rig.turns.compilations.num_waiting, len(rig.scheduler.queues.waiting)) == (1, 0)
    rig.compile()
    assert (rig.turns.compilations.num_waiting, len(rig.scheduler.queues.waiting)) == (0, 1)
    assert rig.scheduler.queues.waiting[0].grammar is not None


@pytest.mark.parametrize(
    ("lark", "error"),
    [("start: (", ErrorKind.GRAMMAR), ('start: "0123456789"', ErrorKind.BUDGET_TOO_SMALL)],
)
def test_a_turn_that_its_grammar_forbids_is_never_queued(
    rig: Rig, lark: str, error: ErrorKind
) -> None:
    rig.open("a", limit=2, grammar=GrammarSpec(lark=lark))
    rig.compile()
    assert rig.told()["a"].error is error
    assert not rig.scheduler.queues.has_work


@pytest.mark.parametrize(("limit", "known"), [(3, False), (7, True)])
def test_a_turn_is_told_whether_its_limit_holds_an_ending_that_is_known(
    rig: Rig, limit: int, known: bool
) -> None:
    rig.open("a", limit=limit, grammar=GrammarSpec(lark='start: "z"? /[0-9]{5}/'))
    rig.compile()
    rig.admit()
    start = rig.told()["a"].start
    assert start is not None
    assert start.ending_known is known


def test_a_turn_without_a_grammar_can_end_anywhere(rig: Rig) -> None:
    rig.open("a", limit=1)
    rig.admit()
    start = rig.told()["a"].start
    assert start is not None
    assert start.ending_known


def test_a_cancelled_turn_ends_wherever_it_is(rig: Rig) -> None:
    rig.open("running")
    rig.admit()
    rig.open("waiting")
    rig.open("compiling", grammar=GrammarSpec(lark="start: /[a-z]+/"))
    for name in ("running", "waiting", "compiling", "unknown"):
        rig.turns.cancel(name)
    told = rig.told()
    assert {name: output.finish for name, output in told.items()} == dict.fromkeys(
        ("running", "waiting", "compiling"), FinishReason.CANCELLED
    )
    assert (rig.turns.compilations.num_waiting, rig.scheduler.queues.has_work) == (0, False)
    rig.cache.check()


@pytest.mark.parametrize(
    ("reason", "more", "leased"),
    [
        (FinishReason.STOP, {"expects_tool_call": True, "expected_tool_s": 50.0}, 50),
        (FinishReason.STOP, {}, 19),
        (FinishReason.LENGTH, {}, 0),
    ],
)
def test_a_session_is_held_for_its_tool_or_a_short_while_or_not(
    rig: Rig, reason: FinishReason, more: dict[str, object], leased: int
) -> None:
    rig.open("a", **more)  # type: ignore[arg-type]
    (sequence,) = rig.admit()
    rig.turns.finish(sequence, reason)
    for second in (leased, leased + 4):
        rig.now = float(second)
        rig.cache.available_blocks()  # lets go of what is over
        assert (rig.cache.stats().leased > 0) is (0 < second <= leased)


def test_a_released_session_is_unknown(rig: Rig) -> None:
    rig.open("a")
    (sequence,) = rig.admit()
    rig.turns.finish(sequence, FinishReason.LENGTH)
    rig.turns.forget_branch(ReleaseBranch(branch_id="a"))
    rig.told()
    rig.open("b", session="a", base="a", offset=9)
    assert rig.told()["b"].finish is FinishReason.UNKNOWN_BASE


def test_waiting_turns_hear_of_their_places_when_they_change(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_running=1)
    rig.open("a")
    rig.admit()
    rig.open("b")
    rig.open("c")
    rig.told()
    rig.turns.report_positions(rig.now)
    assert sorted(o.queue_position for o in rig.told().values()) == [0, 1]  # type: ignore[type-var]
    rig.turns.report_positions(rig.now + 10)
    assert rig.told() == {}


def test_a_tenant_that_fills_the_queue_keeps_no_other_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_waiting=4)

    def refused(tenant: str, count: int) -> list[bool]:
        names = [f"{tenant}{len(rig.scheduler.queues.waiting)}-{n}" for n in range(count)]
        for name in names:
            rig.open(name, tenant=tenant)
        told = rig.told()
        errors = [told[name].error if name in told else None for name in names]
        assert set(errors) <= {None, ErrorKind.OVERLOADED}
        return [error is not None for error in errors]

    assert refused("greedy", 5) == [False] * 4 + [True]
    assert refused("other", 3) == [False, False, True]
    assert refused("greedy", 1) == [True]
    for sequence in list(rig.scheduler.queues.waiting):
        rig.turns.cancel(sequence.request.request_id)
    rig.told()
    assert refused("other", 5) == [False] * 4 + [True], "alone"
    rig.admit()
    admitted = len(rig.scheduler.queues.running)
    assert admitted
    assert refused("other", admitted + 1) == [False] * admitted + [True], "only what waits counts"


def test_an_adapter_that_the_engine_has_not_is_an_error(rig: Rig) -> None:
    rig.open("a", adapter="green")
    told = rig.told()["a"]
    assert (told.finish, told.error) == (FinishReason.ERROR, ErrorKind.INTERNAL)
    assert "no adapter 'green'" in told.error_message
    assert not rig.scheduler.queues.has_work


def test_a_branch_goes_on_under_another_adapter_without_its_kv(rig: Rig) -> None:
    """Its tokens are known, its old KV is found again when it comes back, and a fork that waits
    finds what is of its own adapter."""
    for name, adapter, cached in (
        ("a", "red", 0),
        ("b", "blue", 0),
        ("c", "red", 8),
        ("d", None, 0),
    ):
        base = {"base": "s", "offset": 9} if name != "a" else {}
        rig.open(name, length=1 if base else 9, session="s", adapter=adapter, **base)
        (sequence,) = rig.admit()
        assert (sequence.adapter, sequence.adapter_key) == {
            "red": (0, "d1"),
            "blue": (1, "d2"),
            None: (-1, ""),
        }[adapter]
        start = rig.told()[name].start
        assert start is not None
        assert start.cached_tokens == cached
        rig.turns.finish(sequence, FinishReason.LENGTH)
        while rig.scheduler.queues.has_work:
            rig.admit()
        rig.cache.check()
    rig.open("f", length=1, session="fork", base="s", offset=9, adapter="blue")
    rig.admit()
    start = rig.told()["f"].start
    assert start is not None
    assert start.cached_tokens == 8


def test_a_tail_that_is_still_written_is_given_up_under_another_adapter(rig: Rig) -> None:
    rig.open("a", length=9, session="s", adapter="red")
    (sequence,) = rig.admit()
    sequence.buffer.extend(np.arange(7, dtype=np.int32))
    rig.turns.finish(sequence, FinishReason.LENGTH)
    assert sequence.state is SequenceState.FLUSHING
    rig.open("b", length=1, session="s", base="s", offset=16, adapter="blue")
    assert sequence.state is SequenceState.DONE
    (second,) = rig.admit()
    assert second.adapter == 1
    rig.cache.check()
