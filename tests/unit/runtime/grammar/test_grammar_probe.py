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

import pytest

from runtime.grammar.probe import GrammarProbe, Places
from runtime.grammar.probe_child import ProbeError, ProbeLimits, start_process
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


class Children:
    """Starts the processes of a probe: held up, or refused, where a test says so."""

    def __init__(self, faults: dict[int, str] | None = None) -> None:
        """``faults``: by the number of the start, from 0 on."""
        self.faults = faults or {}
        self.started: list[asyncio.subprocess.Process] = []
        self.asked = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self._changed = asyncio.Condition()

    async def start(self, arguments: list[str]) -> asyncio.subprocess.Process:
        number, self.asked = self.asked, self.asked + 1
        await self._tell()
        if number in self.faults:
            raise ProbeError(self.faults[number])
        await self.may_start.wait()
        self.started.append(await start_process(arguments))
        await self._tell()
        return self.started[-1]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(true)
        for _ in range(5):
            await asyncio.sleep(0)  # whoever waits for the start goes on

    @property
    def alive(self) -> int:
        return sum(process.returncode is None for process in self.started)


def run(
    folder: Path,
    scenario: Callable[[GrammarProbe], Awaitable[None]],
    limits: ProbeLimits | None = None,
    clock: Callable[[], float] | None = None,
    num_processes: int = 1,
    places: Places | None = None,
    children: Children | None = None,
) -> None:
    """``scenario`` with a probe all of whose children are there, unless ``limits`` says LATER."""
    limits, children = limits or ProbeLimits(), children or Children()
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
            ready = num_processes - len(children.faults)
            await children.until(lambda: len(children.started) >= ready)
        try:
            await scenario(probe)
        finally:
            await probe.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.grammar.probe_child.start_process", children.start)
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


@pytest.mark.tail
def test_a_child_that_does_not_get_to_run_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.grammar.probe_child._cpu_s", lambda _: 0.0)

    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None, "later than its limit"
        with pytest.raises(ProbeError, match="it did not get"):
            await probe.check(schema_spec(SLOW))
        with pytest.raises(ProbeError, match="it did not get"):
            await probe.check(schema_spec(SLOW))  # no refusal is remembered
        assert await probe.check(schema_spec({"type": "integer"})) is None

    run(tmp_path, scenario, ProbeLimits(seconds=0.05))


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


@pytest.mark.tail
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


@pytest.mark.tail
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


@pytest.mark.tail
def test_what_nobody_waits_for_any_more_is_withdrawn_before_it_begins(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        first = asyncio.create_task(probe.check(slow_spec(0), "wild"))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(probe.check(slow_spec(n), "wild")) for n in range(1, 50)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await probe.check(schema_spec({"type": "integer"}), "wild") is None
        assert await first is not None
        assert children.asked == 2, "each that had begun would have cost a process"

    children = Children()
    run(tmp_path, scenario, ProbeLimits(seconds=0.4), places=FairSlots(1), children=children)


@pytest.mark.tail
def test_one_that_has_begun_goes_on_and_its_verdict_is_kept(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        begun = asyncio.create_task(probe.check(slow_spec(0), "wild"))
        await asyncio.sleep(0.05)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        assert await probe.check(schema_spec({"type": "integer"}), "wild") is None
        assert await probe.check(slow_spec(0), "wild") is not None
        assert children.asked == 2, "it was tried once"

    children = Children()
    run(tmp_path, scenario, ProbeLimits(seconds=0.3), places=FairSlots(1), children=children)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended by SIGKILL"), (signal.SIGSTOP, "it was stopped")],
)
@pytest.mark.tail
def test_a_probe_that_somebody_kills_or_stops_refuses_no_grammar(
    number: signal.Signals, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        checking = asyncio.create_task(probe.check(schema_spec({"type": "integer"})))
        await asyncio.sleep(0)
        os.kill(children.started[0].pid, number)
        assert await checking is None

    children = Children()
    run(tmp_path, scenario, ProbeLimits(seconds=0.5), children=children)
    assert [said in line for line in caplog.messages] == [True]


def test_one_that_is_killed_while_it_waits_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        (process,) = children.started
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        assert await probe.check(schema_spec({"type": "integer"})) is None

    children = Children()
    run(tmp_path, scenario, children=children)
    assert caplog.messages == ["grammar probe had ended status=-9"]


def test_the_child_is_renewed_after_its_share_of_checks(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None

    run(tmp_path, scenario, ProbeLimits(checks_per_process=2))


@pytest.mark.tail
def test_nobody_waits_for_the_child_that_takes_over(tmp_path: Path) -> None:
    """It took a second and more, three and a half beside sixty-four clients with new grammars."""

    async def scenario(probe: GrammarProbe) -> None:
        (first,) = children.started
        children.may_start.clear()
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None
        assert children.asked == 2
        assert first.returncode is None
        children.may_start.set()
        await children.until(lambda: len(children.started) == 2)
        assert await probe.check(schema_spec({"const": "more"})) is None
        assert first.returncode is not None

    children = Children()
    run(tmp_path, scenario, ProbeLimits(checks_per_process=2), children=children)


def test_one_that_cannot_take_over_leaves_the_old_child_at_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        children.faults = dict.fromkeys(range(1, 9), "no memory")
        for number in range(3):
            assert await probe.check(schema_spec({"const": number})) is None
            await asyncio.sleep(0)

    children = Children()
    run(tmp_path, scenario, ProbeLimits(checks_per_process=1), children=children)
    assert set(caplog.messages) == {"grammar probe not renewed reason=no memory"}


@pytest.mark.tail
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
            children.started[0].kill()
            await children.started[0].wait()
            with pytest.raises(ProbeError, match="Too many open files"):
                await probe.check(schema_spec({"const": "more"}))
        assert await probe.check(schema_spec({"const": "more"})) is None
        monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
        assert await probe.check(schema_spec({"const": "last"})) is None
        await asyncio.sleep(0)  # where a child is due it does not start; `run` stops it like this

    children = Children()
    run(tmp_path, scenario, ProbeLimits(checks_per_process=checks), children=children)


@pytest.mark.parametrize(
    "told", [[], [0.0], [0.0, None, 0.1]], ids=["never", "at first", "by turns"]
)
@pytest.mark.tail
def test_a_slow_grammar_is_killed_though_the_system_does_not_always_say_what_it_used(
    told: list[float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted from the start of the machine when no file could be opened."""
    used = itertools.chain(told, itertools.repeat(0.5 if len(told) > 1 else None))
    monkeypatch.setattr("runtime.grammar.probe_child._cpu_s", lambda _: next(used))

    async def scenario(probe: GrammarProbe) -> None:
        if len(told) == 1:
            with pytest.raises(ProbeError, match="it did not get"):
                await probe.check(schema_spec(SLOW))
            return
        refused = await probe.check(schema_spec(SLOW))
        assert refused is not None
        assert refused.message == "compiling it takes more than 0.05 s"

    run(tmp_path, scenario, ProbeLimits(seconds=0.05))  # many times that on any processor


@pytest.mark.tail
def test_who_costs_a_child_holds_its_place_until_the_next_is_ready(tmp_path: Path) -> None:
    """Its next grammar does not take the child that is left to others, and its verdict is told
    at once."""

    async def scenario(probe: GrammarProbe) -> None:
        children.may_start.clear()
        assert await probe.check(slow_spec(0), "wild") is not None
        more = asyncio.create_task(probe.check(slow_spec(1), "wild"))
        for number in range(3):
            mild = probe.check(schema_spec({"const": number}), "mild")
            assert await asyncio.wait_for(mild, 10) is None, "no start ends meanwhile"
        assert not more.done()
        assert children.asked == 3
        children.may_start.set()
        assert await more is not None

    limits, places, children = ProbeLimits(seconds=0.2), FairSlots(2), Children()
    run(tmp_path, scenario, limits, time.monotonic, 2, places, children)


def test_a_start_waits_for_one_child(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        for number in range(5):
            assert await probe.check(schema_spec({"const": number})) is None
        assert children.asked == 1

    children, limits = Children(), ProbeLimits(others_after_s=LATER, lasts_s=LATER)
    run(tmp_path, scenario, limits, num_processes=3, children=children)


def test_the_others_are_started_when_a_check_lasts(tmp_path: Path) -> None:
    """Who comes next waits for a child that starts, and not until the check is over."""

    async def scenario(probe: GrammarProbe) -> None:
        slow = asyncio.create_task(probe.check(schema_spec(SLOW)))
        assert await probe.check(schema_spec({"type": "integer"})) is None
        assert not slow.done()
        slow.cancel()

    limits = ProbeLimits(seconds=20.0, others_after_s=LATER, lasts_s=0.01)
    run(tmp_path, scenario, limits, num_processes=2)


def test_the_others_are_started_when_a_check_costs_the_only_child(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        children.may_start.clear()
        assert await probe.check(schema_spec(SLOW)) is not None
        await children.until(lambda: children.asked == 3)  # its own successor and the other
        children.may_start.set()
        assert await probe.check(schema_spec({"type": "integer"})) is None

    limits, children = ProbeLimits(seconds=0.1, others_after_s=LATER, lasts_s=LATER), Children()
    run(tmp_path, scenario, limits, num_processes=2, children=children)


def test_another_that_does_not_start_is_tried_again_by_a_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        await children.until(lambda: children.asked == 2)
        assert children.alive == 1
        assert await probe.check(schema_spec({"type": "integer"})) is None
        assert children.alive == 2

    children = Children({1: "no memory"})
    run(tmp_path, scenario, ProbeLimits(lasts_s=LATER), num_processes=2, children=children)
    assert caplog.messages == ["grammar probe not started reason=no memory"]


def test_stopping_while_the_others_start_leaves_no_child_and_no_task(tmp_path: Path) -> None:
    async def scenario(probe: GrammarProbe) -> None:
        children.may_start.clear()
        await probe.check(schema_spec({"type": "integer"}))
        await children.until(lambda: children.asked == 2)
        await probe.stop()
        assert children.alive == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    children, limits = Children(), ProbeLimits(others_after_s=LATER, lasts_s=0.0)
    run(tmp_path, scenario, limits, num_processes=2, children=children)


def test_the_child_gives_way_to_its_parent_and_hears_no_interrupt(tmp_path: Path) -> None:
    """Niceness counts among processes of one session only, on Linux with its usual settings."""

    async def scenario(probe: GrammarProbe) -> None:
        process_id = children.started[0].pid
        assert os.getpriority(os.PRIO_PROCESS, process_id) >= os.getpriority(os.PRIO_PROCESS, 0) + 5
        assert os.getsid(process_id) == os.getsid(0)
        assert os.getpgid(process_id) != os.getpgid(0)

    children = Children()
    run(tmp_path, scenario, children=children)


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
