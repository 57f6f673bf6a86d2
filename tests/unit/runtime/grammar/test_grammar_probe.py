"""The probe: verdicts, memory of them, and a child that is killed and replaced."""

import asyncio
import errno
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtime.grammar.probe import GrammarProbe, Places, ProbeError, ProbeLimits, _Child, _read
from runtime.grammar.probe_process import LENGTH
from runtime.grammar.refusal import GrammarRefused
from sessions.fair_slots import FairSlots
from tests.support.architecture import ROOT
from tests.support.clock import FakeClock
from tests.support.grammars import schema_spec, small_tokenizer
from tools_api.grammar import GrammarSpec

SLOW = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string"} for i in range(8000)},
    "additionalProperties": False,
}
LARGE = {"enum": [f"value {i} of {i * 7919 % 10007}" for i in range(20_000)]}
ADVERSARIAL = ROOT.parent / "shared" / "structured" / "adversarial.jsonl"


LATER = 3600.0


async def other_tasks() -> None:
    """Return when those that run now have ended."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


def run(
    folder: Path,
    scenario: Callable[[GrammarProbe], Awaitable[None]],
    limits: ProbeLimits | None = None,
    clock: Callable[[], float] | None = None,
    num_processes: int = 1,
    places: Places | None = None,
) -> None:
    """``scenario`` with a probe all of whose children are there, unless ``limits`` says LATER."""
    limits = limits or ProbeLimits()
    if limits.others_after_s != LATER:
        limits = replace(limits, others_after_s=0.0)
    small_tokenizer(folder)
    probe = GrammarProbe(
        folder,
        model_type="qwen3",
        limits=limits,
        num_processes=num_processes,
        places=places,
        clock=clock or FakeClock(),
    )

    async def main() -> None:
        await probe.start()
        if limits.others_after_s != LATER:
            await other_tasks()
        try:
            await scenario(probe)
        finally:
            await probe.stop()

    asyncio.run(main())


def test_verdicts_are_remembered_and_a_refusal_only_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()

    async def scenario(probe: GrammarProbe) -> None:
        good, bad = schema_spec({"type": "integer"}), schema_spec({"not": {}})
        assert await probe.check(good) is None
        first = await probe.check(bad)
        assert isinstance(first, GrammarRefused)
        assert (first.keyword, first.path, first.block) == ("not", ("not",), 0)
        assert await probe.check(bad) is first
        clock.now_s = 31
        again = await probe.check(bad)
        assert again is not None
        assert again is not first
        await probe.stop()  # what has passed needs no child any more
        assert await probe.check(good) is None

    run(tmp_path, scenario, clock=clock)


def test_a_slow_grammar_is_killed_and_the_next_one_is_checked(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        refused = await probe.check(schema_spec(SLOW))
        assert refused is not None
        assert refused.message == "compiling it takes more than 0.5 s"
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario, ProbeLimits(seconds=0.5))


def test_a_child_that_does_not_get_to_run_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.grammar.probe._cpu_s", lambda _: 0.0)

    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None, "later than its limit"
        with pytest.raises(ProbeError, match="it did not get"):
            await probe.check(schema_spec(SLOW))
        assert not probe._refused
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario, ProbeLimits(seconds=0.1))


def test_a_grammar_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        refused = await probe.check(schema_spec(LARGE))
        assert refused is not None
        assert refused.message == "compiling it needs more than 8 MiB"
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario, ProbeLimits(seconds=60, memory_bytes=8 << 20))


OUT_OF_MEMORY_SLOWLY = """\
#!{python}
import os, struct, sys, time
hello = b'{{"ready": true}}'
os.write(1, struct.pack("<I", len(hello)) + hello)
sys.stdin.buffer.read(1)
os.close(1)
time.sleep(0.3)
os._exit(77)
"""


def test_a_child_that_is_slow_to_die_is_not_robbed_of_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe ends before the process does: killed in between it would not say why."""
    child = tmp_path / "child"
    child.write_text(OUT_OF_MEMORY_SLOWLY.format(python=sys.executable))
    child.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(child))

    async def scenario(probe: GrammarProbe) -> None:
        refused = await probe.check(schema_spec({"type": "integer"}))
        assert refused is not None
        assert refused.message == "compiling it needs more than 512 MiB"

    run(tmp_path / "tokenizer", scenario)


def test_others_do_not_wait_for_a_slow_grammar(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        slow = asyncio.create_task(probe.check(schema_spec(SLOW)))
        for number in range(20):
            assert await probe.check(schema_spec({"const": number})) is None
        assert not slow.done()
        assert await slow is not None

    run(tmp_path, scenario, ProbeLimits(seconds=1.5), num_processes=2)


def test_callers_of_one_grammar_share_a_try_and_one_may_leave(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        spec = schema_spec({"not": {}})
        callers = [asyncio.create_task(probe.check(spec)) for _ in range(5)]
        await asyncio.sleep(0)
        callers[0].cancel()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert isinstance(found[1], GrammarRefused)
        assert all(verdict is found[1] for verdict in found[2:])

    run(tmp_path, scenario)


def slow_spec(number: int) -> GrammarSpec:
    return schema_spec({"type": "object", "properties": {f"p{number}": SLOW}})


def test_a_tenant_does_not_wait_behind_the_slow_grammars_of_another(tmp_path: Path) -> None:
    """By arrival it would wait for all of them: 20 s in the audit."""
    began: list[str] = []

    async def check(probe: GrammarProbe, spec: GrammarSpec, tenant: str) -> None:
        await probe.check(spec, tenant)
        began.append(tenant)

    async def scenario(probe: GrammarProbe) -> None:
        tasks = [asyncio.create_task(check(probe, slow_spec(n), "wild")) for n in range(6)]
        await asyncio.sleep(0)
        await check(probe, schema_spec({"type": "integer"}), "mild")
        assert began.count("wild") <= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(tmp_path, scenario, ProbeLimits(seconds=0.4), places=FairSlots(1))


def test_what_nobody_waits_for_any_more_is_withdrawn_before_it_begins(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        first = asyncio.create_task(probe.check(slow_spec(0), "wild"))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(probe.check(slow_spec(n), "wild")) for n in range(1, 50)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(probe._running) == 1
        assert await probe.check(schema_spec({"type": "integer"}), "wild") is None
        assert await first is not None

    run(tmp_path, scenario, ProbeLimits(seconds=0.4), places=FairSlots(1))


def test_one_that_has_begun_goes_on_and_its_verdict_is_kept(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        begun = asyncio.create_task(probe.check(slow_spec(0), "wild"))
        await asyncio.sleep(0.05)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        assert len(probe._running) == 1
        assert await probe.check(schema_spec({"type": "integer"}), "wild") is None
        assert probe._refused

    run(tmp_path, scenario, ProbeLimits(seconds=0.3), places=FairSlots(1))


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended by SIGKILL"), (signal.SIGSTOP, "it was stopped")],
)
def test_a_probe_that_somebody_kills_or_stops_refuses_no_grammar(
    number: signal.Signals, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        checking = asyncio.create_task(probe.check(schema_spec({"type": "integer"})))
        await asyncio.sleep(0)
        (child,) = probe._children
        assert child._process is not None
        os.kill(child._process.pid, number)
        assert await checking is None

    run(tmp_path, scenario, ProbeLimits(seconds=0.5))
    assert [said in line for line in caplog.messages] == [True]


def test_one_that_is_killed_while_it_waits_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        (child,) = probe._children
        assert child._process is not None
        os.kill(child._process.pid, signal.SIGKILL)
        await child._process.wait()
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario)
    assert caplog.messages == ["grammar probe had ended status=-9"]


def test_the_child_is_renewed_after_its_share_of_checks(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None

    run(tmp_path, scenario, ProbeLimits(checks_per_process=2))


def hold_up_starts(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, list[object]]:
    """From now on a child starts when the event is set, and is noted when it is asked for."""
    may_start, asked = asyncio.Event(), list[object]()
    started = _Child._started

    async def held_up(child: _Child) -> asyncio.subprocess.Process:
        asked.append(child)
        await may_start.wait()
        return await started(child)

    monkeypatch.setattr(_Child, "_started", held_up)
    return may_start, asked


def test_nobody_waits_for_the_child_that_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a second and more, three and a half beside sixty-four clients with new grammars."""

    async def scenario(probe: GrammarProbe) -> None:
        may_start, asked = hold_up_starts(monkeypatch)
        (child,) = probe._children
        first = child._process
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None
        assert asked == [child]
        assert child._process is first
        may_start.set()
        await child.until_ready()
        assert await probe.check(schema_spec({"const": "more"})) is None
        assert child._process is not first
        assert first is not None
        assert first.returncode is not None

    run(tmp_path, scenario, ProbeLimits(checks_per_process=2))


def test_one_that_cannot_take_over_leaves_the_old_child_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        async def broken(_: _Child) -> asyncio.subprocess.Process:
            raise ProbeError("no memory")

        monkeypatch.setattr(_Child, "_started", broken)
        for number in range(3):
            assert await probe.check(schema_spec({"const": number})) is None
            await asyncio.sleep(0)

    run(tmp_path, scenario, ProbeLimits(checks_per_process=1))
    assert set(caplog.messages) == {"grammar probe not renewed reason=no memory"}


@pytest.mark.parametrize("checks", [1, 500])
def test_a_machine_without_descriptors_refuses_no_grammar(
    checks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        async def none_left(*_: Any, **__: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as broken:
            broken.setattr(asyncio, "create_subprocess_exec", none_left)
            for number in range(3):
                assert await probe.check(schema_spec({"const": number})) is None
                await asyncio.sleep(0)
            await probe._children[0]._end_process()
            with pytest.raises(ProbeError, match="Too many open files"):
                await probe.check(schema_spec({"const": "more"}))
        assert await probe.check(schema_spec({"const": "more"})) is None
        monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
        probe._children[0]._prepare()
        await probe._children[0].until_ready()  # `run` stops it like this

    run(tmp_path, scenario, ProbeLimits(checks_per_process=checks))


@pytest.mark.parametrize(
    "told", [[], [0.0], [0.0, None, 0.1]], ids=["never", "at first", "by turns"]
)
def test_a_slow_grammar_is_killed_though_the_system_does_not_always_say_what_it_used(
    told: list[float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted from the start of the machine when no file could be opened."""
    used = itertools.chain(told, itertools.repeat(0.5 if len(told) > 1 else None))
    monkeypatch.setattr("runtime.grammar.probe._cpu_s", lambda _: next(used))

    async def scenario(probe: GrammarProbe) -> None:
        if len(told) == 1:
            with pytest.raises(ProbeError, match="it did not get"):
                await probe.check(schema_spec(SLOW))
            return
        refused = await probe.check(schema_spec(SLOW))
        assert refused is not None
        assert refused.message == "compiling it takes more than 0.05 s"

    run(tmp_path, scenario, ProbeLimits(seconds=0.05))  # many times that on any processor


def test_who_costs_a_child_holds_its_place_until_the_next_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next grammar does not take the child that is left to others, and its verdict is told
    at once."""

    async def scenario(probe: GrammarProbe) -> None:
        may_start, _ = hold_up_starts(monkeypatch)
        assert await probe.check(slow_spec(0), "wild") is not None
        more = asyncio.create_task(probe.check(slow_spec(1), "wild"))
        for number in range(3):
            assert await probe.check(schema_spec({"const": number}), "mild") is None
        assert not probe._begun
        assert not more.done()
        may_start.set()
        assert await more is not None

    limits, places = ProbeLimits(seconds=0.2), FairSlots(2)
    run(tmp_path, scenario, limits, time.monotonic, places=places, num_processes=2)


def processes(probe: GrammarProbe) -> int:
    return sum(child._process is not None for child in probe._children)


def test_a_start_waits_for_one_child(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None
        assert processes(probe) == 1

    run(tmp_path, scenario, ProbeLimits(others_after_s=LATER, lasts_s=LATER), num_processes=3)


def test_the_others_are_started_when_a_check_lasts(tmp_path: Path) -> None:
    """Who comes next waits for a child that starts, and not until the check is over."""

    async def scenario(probe: GrammarProbe) -> None:
        slow = asyncio.create_task(probe.check(schema_spec(SLOW)))
        assert await probe.check(schema_spec({"type": "integer"})) is None
        assert not slow.done()
        slow.cancel()

    limits = ProbeLimits(seconds=20.0, others_after_s=LATER, lasts_s=0.01)
    run(tmp_path, scenario, limits, num_processes=2)


def test_the_others_are_started_when_a_check_costs_the_only_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        may_start, asked = hold_up_starts(monkeypatch)
        assert await probe.check(schema_spec(SLOW)) is not None
        while len(asked) < 2:
            await asyncio.sleep(0)
        assert {*asked} == {*probe._children}
        may_start.set()
        assert await probe.check(schema_spec({"type": "integer"})) is None

    limits = ProbeLimits(seconds=0.1, others_after_s=LATER, lasts_s=LATER)
    run(tmp_path, scenario, limits, num_processes=2)


def test_another_that_does_not_start_is_tried_again_by_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        async def broken(_: _Child) -> asyncio.subprocess.Process:
            raise ProbeError("no memory")

        with monkeypatch.context() as patched:
            patched.setattr(_Child, "_started", broken)
            probe.start_others()
            await other_tasks()
        assert processes(probe) == 1
        assert await probe.check(schema_spec({"type": "integer"})) is None
        assert processes(probe) == 2

    run(tmp_path, scenario, ProbeLimits(others_after_s=LATER, lasts_s=LATER), num_processes=2)
    assert caplog.messages == ["grammar probe not started reason=no memory"]


def test_stopping_while_the_others_start_leaves_no_child_and_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        _, asked = hold_up_starts(monkeypatch)
        probe.start_others()
        while not asked:
            await asyncio.sleep(0)
        await probe.stop()
        assert processes(probe) == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(tmp_path, scenario, ProbeLimits(others_after_s=LATER, lasts_s=LATER), num_processes=2)


def test_the_child_gives_way_to_its_parent_and_hears_no_interrupt(tmp_path: Path) -> None:
    """Niceness counts among processes of one session only, on Linux with its usual settings."""

    async def scenario(probe: GrammarProbe) -> None:
        (child,) = probe._children
        assert child._process is not None
        process_id = child._process.pid
        assert os.getpriority(os.PRIO_PROCESS, process_id) >= os.getpriority(os.PRIO_PROCESS, 0) + 5
        assert os.getsid(process_id) == os.getsid(0)
        assert os.getpgid(process_id) != os.getpgid(0)

    run(tmp_path, scenario)


def test_stopping_in_mid_check_leaves_no_child_and_no_task(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        slow = asyncio.create_task(probe.check(schema_spec(SLOW)))
        await asyncio.sleep(0)
        await probe.stop()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(tmp_path, scenario)


def test_a_tokenizer_that_cannot_be_read_is_reported_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        probe = GrammarProbe(tmp_path, num_processes=1)
        with pytest.raises(ProbeError, match=r"tokenizer.json: file not found"):
            await probe.start()
        await probe.stop()

    asyncio.run(main())


@pytest.mark.skipif(not ADVERSARIAL.exists(), reason="the hostile schemas are not at hand")
def test_every_hostile_schema_is_settled(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [json.loads(line) for line in ADVERSARIAL.read_text().splitlines()]

    async def scenario(probe: GrammarProbe) -> None:
        for row in rows:
            spec = GrammarSpec(lark=f"start: value\nvalue: %json {row['schema_text']}")
            verdict = await asyncio.wait_for(probe.check(spec), timeout=30)
            assert verdict is None or verdict.message
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario)


def test_an_answer_that_is_too_long_is_not_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.grammar.probe._MAX_FRAME_BYTES", 4)

    async def scenario() -> None:
        said = asyncio.StreamReader()
        said.feed_data(LENGTH.pack(5) + b"null ")
        with pytest.raises(asyncio.IncompleteReadError):
            await _read(Mock(stdout=said))

    asyncio.run(scenario())
