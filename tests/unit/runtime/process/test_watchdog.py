"""When a process counts as hung, and when it does not however long it takes."""

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import Beat, Loading
from runtime.process.watchdog import (
    READING_FOLDER,
    READING_TOKENIZER,
    STARTING,
    LoadPulse,
    LoadWatch,
    ProcessWork,
    Pulse,
    Watch,
    group_is_busy,
    load_period_s,
    period_s,
    process_work,
    ranks_work,
)
from tests.support.clock import FakeClock

HUNG_AFTER_S = 10.0
STEP_LIMIT_S = 100.0


class Process:
    """A process as its watcher knows it: what it says, and what work it has been given."""

    def __init__(self) -> None:
        self.clock = FakeClock(1000.0)
        self.processor_s = 0.0
        self.page_reads = 0
        self.told = True
        self.watch = Watch(
            hung_after_s=HUNG_AFTER_S,
            step_limit_s=STEP_LIMIT_S,
            work=self._work,
            clock=self.clock,
        )

    def _work(self) -> ProcessWork | None:
        if not self.told:
            return None
        return ProcessWork(processor_s=self.processor_s, page_reads=self.page_reads)

    def goes_on(
        self, seconds: int, beat: Beat | None = None, *, load: float = 0.0, reads: int = 0
    ) -> str | None:
        """Let whole seconds pass, with one beat in each; the first reason given, if any."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.processor_s += load
            self.page_reads += reads
            if beat is not None:
                self.watch.heard(beat)
            reason = self.watch.tick()
            if reason is not None:
                return reason
        return None


STEP = Beat(turn=3, working=True)


def test_a_process_that_rests_and_says_so_is_never_hung() -> None:
    assert Process().goes_on(10_000, Beat(turn=3, working=False)) is None


def test_a_silent_process_that_does_nothing_is_hung() -> None:
    process = Process()
    assert process.goes_on(9) is None
    assert process.goes_on(1) == "no sign of life for 10.0 s"


def test_a_silent_process_is_hung_where_nobody_can_tell_whether_it_works() -> None:
    process = Process()
    process.told = False
    assert process.goes_on(10, load=1.0) is not None


def test_a_step_that_waits_for_ever_is_hung_though_the_process_answers() -> None:
    process = Process()
    assert process.goes_on(9, STEP, load=0.001) is None
    assert process.goes_on(2, STEP, load=0.001) == "no sign of life for 10.0 s"


@pytest.mark.parametrize("beat", [STEP, None], ids=["answering", "silent"])
def test_a_step_that_computes_may_take_long_but_not_for_ever(beat: Beat | None) -> None:
    process = Process()
    assert process.goes_on(99, beat, load=0.9) is None
    assert process.goes_on(3, beat, load=0.9) is not None


def test_a_step_that_waits_for_pages_of_its_weights_is_not_hung() -> None:
    assert Process().goes_on(90, STEP, reads=1) is None


def test_steps_that_follow_each_other_are_no_long_step() -> None:
    process = Process()
    for turn in range(50):
        assert process.goes_on(9, Beat(turn=turn, working=True)) is None


def test_the_outcome_of_a_step_is_a_sign_of_life() -> None:
    process = Process()
    for _ in range(50):
        assert process.goes_on(9) is None
        process.watch.heard(None)


def test_a_rest_after_a_long_step_ends_the_count() -> None:
    process = Process()
    assert process.goes_on(9, STEP) is None
    assert process.goes_on(1, Beat(turn=3, working=False)) is None
    assert process.goes_on(9, STEP) is None


def test_time_in_which_the_watcher_stood_still_does_not_count() -> None:
    process = Process()
    process.goes_on(1)
    process.clock.advance(3600.0)
    assert process.watch.tick() is None


@pytest.mark.parametrize(("hung_after_s", "expected"), [(0, 1.0), (1, 0.25), (60, 1.0)])
def test_signs_are_asked_for_several_times_before_the_verdict(
    hung_after_s: float, expected: float
) -> None:
    assert period_s(hung_after_s) == expected


def test_the_system_knows_what_this_process_has_worked() -> None:
    before = process_work(os.getpid())
    if before is None:
        pytest.skip("this system has no /proc")
    while os.times().user + os.times().system < before.processor_s + 0.05:
        pass
    after = process_work(os.getpid())
    assert after is not None
    assert after.processor_s > before.processor_s
    assert after.page_reads >= before.page_reads


def test_of_a_process_that_does_not_exist_nothing_is_known() -> None:
    assert process_work(2**22 + 1) is None


def test_a_pulse_tells_of_the_loop_until_it_is_ended() -> None:
    beats: queue.Queue[Beat] = queue.Queue()
    pulse = Pulse(beats.put, 0.001)
    assert beats.get(timeout=20) == Beat(turn=0, working=False)
    pulse.works()
    while (beat := beats.get(timeout=20)).turn != 1 or not beat.working:
        pass
    pulse.rests()
    while beats.get(timeout=20).working:
        pass
    pulse.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "pulse"]


def test_a_pulse_stops_when_nobody_listens() -> None:
    calls: queue.Queue[None] = queue.Queue()

    def send(_: Beat) -> None:
        calls.put(None)
        raise BrokenPipeError

    pulse = Pulse(send, 0.001)
    calls.get(timeout=20)
    pulse.end()
    assert calls.empty()
    assert not [thread for thread in threading.enumerate() if thread.name == "pulse"]


class Loader:
    """A process that loads, as its watcher knows it."""

    def __init__(self, *, hung_after_s: int = 10, limit_s: int = 100, told: bool = True) -> None:
        self.clock = FakeClock(1000.0)
        self.given = ProcessWork(processor_s=0.0, page_reads=0) if told else None
        self.busy = False
        self.watch = LoadWatch(
            hung_after_s=hung_after_s,
            limit_s=limit_s,
            work=lambda: self.given,
            busy=lambda: self.busy,
            clock=self.clock,
        )

    def goes_on(
        self,
        seconds: int,
        says: Loading | None = None,
        *,
        processor_s: float = 0.0,
        page_reads: int = 0,
        bytes_read: int = 0,
    ) -> str | None:
        """Let whole seconds pass, each with that much work; the first reason given, if any."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            if self.given is not None:
                self.given = ProcessWork(
                    processor_s=self.given.processor_s + processor_s,
                    page_reads=self.given.page_reads + page_reads,
                    bytes_read=self.given.bytes_read + bytes_read,
                )
            if says is not None:
                self.watch.heard(says)
            reason = self.watch.tick()
            if reason is not None:
                return reason
        return None


WEIGHTS = Loading(stage="loading the model", memory_bytes=1 << 30)


def test_a_loader_that_falls_silent_is_hung_after_the_time_for_that_and_not_before() -> None:
    loader = Loader()
    assert loader.goes_on(1, WEIGHTS) is None
    assert loader.goes_on(10) is None
    reason = loader.goes_on(1)
    assert reason == ("no sign of life for 11.0 s while loading the model (--load-hung-after-s 10)")


@pytest.mark.parametrize("stage", [READING_FOLDER, READING_TOKENIZER])
def test_reading_a_folder_may_not_take_a_processor_for_long(stage: str) -> None:
    """What a model's folder holds is somebody else's: it may be made to take hours."""
    loader = Loader(hung_after_s=0, limit_s=0)
    loader.goes_on(100, WEIGHTS, processor_s=1.0)
    reading = Loading(stage=stage, memory_bytes=0)
    assert loader.goes_on(31, reading, processor_s=1.0) is None
    reason = loader.goes_on(1, reading, processor_s=1.0)
    assert reason == (f"{stage} has taken 31 s of processor time; no published model takes 30")
    slow = Loader(hung_after_s=0, limit_s=0)
    assert slow.goes_on(500, reading, processor_s=0.05) is None, "a slow disk is no fault"
    assert slow.goes_on(500, WEIGHTS, processor_s=1.0) is None, "weights may take their time"


def test_a_loader_that_never_spoke_is_hung_as_well() -> None:
    loader = Loader()
    assert loader.goes_on(10) is None
    assert loader.goes_on(1) == f"no sign of life for 11.0 s while {STARTING} " + (
        "(--load-hung-after-s 10)"
    )


def test_loading_ends_at_its_limit_whatever_the_process_does() -> None:
    loader = Loader()
    assert loader.goes_on(100, WEIGHTS, processor_s=1.0) is None
    assert loader.goes_on(1, WEIGHTS, processor_s=1.0) == (
        "not ready after 101.0 s, still loading the model (--load-limit-s 100)"
    )


@pytest.mark.parametrize(
    "work",
    [{"processor_s": 0.02}, {"page_reads": 1}, {"bytes_read": 1}],
    ids=["computes a little", "reads a page", "reads a byte"],
)
def test_a_slow_loader_is_not_hung(work: dict[str, Any]) -> None:
    assert Loader(limit_s=0).goes_on(10_000, **work) is None


def test_one_that_waits_for_its_disk_or_for_a_compiler_is_not_hung() -> None:
    loader = Loader(limit_s=0)
    loader.busy = True
    assert loader.goes_on(10_000, WEIGHTS) is None
    loader.busy = False
    assert loader.goes_on(20, WEIGHTS) is not None


def test_what_has_come_into_memory_since_is_a_sign_of_life() -> None:
    loader = Loader(limit_s=0)
    for n in range(1000):
        beat = Loading(stage="loading the model", memory_bytes=n)
        assert loader.goes_on(9) is None
        assert loader.goes_on(1, beat) is None


def test_each_stage_is_a_sign_of_life() -> None:
    loader = Loader(limit_s=0)
    for n in range(1000):
        assert loader.goes_on(9, Loading(stage=f"{n}", memory_bytes=0)) is None


def test_a_loader_that_answers_and_gets_nowhere_is_hung() -> None:
    assert Loader().goes_on(12, WEIGHTS) is not None


def test_where_the_system_tells_nothing_an_answer_is_a_sign_of_life_and_silence_is_none() -> None:
    loader = Loader(told=False, limit_s=0)
    assert loader.goes_on(10_000, WEIGHTS) is None
    assert loader.goes_on(11) is not None


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"hung_after_s": 0}, "--load-limit-s 100"),
        ({"limit_s": 0}, "--load-hung-after-s 10"),
        ({"hung_after_s": 0, "limit_s": 0}, None),
    ],
)
def test_either_bound_can_be_turned_off(bounds: dict[str, Any], reason: str | None) -> None:
    found = Loader(**bounds).goes_on(10_000)
    assert found is None if reason is None else reason in (found or "")


def test_time_in_which_the_watcher_stood_still_counts_against_no_loader() -> None:
    loader = Loader()
    loader.goes_on(1)
    loader.clock.advance(3600.0)
    assert loader.watch.tick() is None
    assert loader.watch.took_s == 3.0


@pytest.mark.parametrize(
    ("hung_after_s", "limit_s", "expected"),
    [(0, 0, 1.0), (1, 0, 0.25), (0, 2, 0.5), (300, 1, 0.25), (300, 21600, 1.0)],
)
def test_a_loader_is_looked_at_several_times_before_the_verdict(
    hung_after_s: float, limit_s: float, expected: float
) -> None:
    assert load_period_s(hung_after_s, limit_s) == expected


def _leader(program: str) -> subprocess.Popen[bytes]:
    """A Python process at the head of a group of its own, once it has written a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, process_group=0
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


_SLEEPS = "print(flush=True); import time; time.sleep(600)"
_HELPED = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', 'print(flush=True)\\nwhile True: pass']); "
    "time.sleep(600)"
)


@pytest.mark.parametrize(("program", "busy"), [(_SLEEPS, False), (_HELPED, True)])
def test_a_process_is_busy_through_its_helpers(program: str, busy: bool) -> None:
    if process_work(os.getpid()) is None:
        pytest.skip("this system has no /proc")
    with _leader(program) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            while stat.read_text().rpartition(")")[2].split()[0] != "S":
                assert process.poll() is None  # on its way to sleep
            assert group_is_busy(process.pid) is busy
            os.killpg(process.pid, signal.SIGSTOP)
            assert any(not group_is_busy(process.pid) for _ in range(2_000))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_bytes_that_a_process_reads_are_known() -> None:
    before = process_work(os.getpid())
    if before is None or not before.bytes_read:
        pytest.skip("this system does not tell")
    with open(__file__, "rb", buffering=0) as file:
        size = len(file.read())
    after = process_work(os.getpid())
    assert after is not None
    assert after.bytes_read >= before.bytes_read + size


def test_a_load_pulse_tells_each_stage_at_once_and_again_until_it_is_ended() -> None:
    said: queue.Queue[Loading] = queue.Queue()
    pulse = LoadPulse(said.put, 3600.0)
    pulse.enters("one")
    pulse.enters("two")
    assert [said.get_nowait().stage for _ in range(2)] == ["one", "two"]
    pulse.end()
    pulse = LoadPulse(said.put, 0.001)
    assert said.get(timeout=20).stage == STARTING
    pulse.enters("three")
    while said.get(timeout=20).stage != "three":
        pass
    assert said.get(timeout=20).memory_bytes > 1 << 20
    pulse.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "load-pulse"]


def test_a_load_pulse_stops_when_nobody_listens_and_the_next_stage_is_not_begun() -> None:
    def send(_: Loading) -> None:
        raise BrokenPipeError

    pulse = LoadPulse(send, 0.001)
    with pytest.raises(BrokenPipeError):
        pulse.enters("a stage")
    pulse.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "load-pulse"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's processes")
def test_the_work_of_ranks_is_that_of_all_their_processes() -> None:
    """And a process that has ended takes its share with it, and breaks nothing."""
    program = "import time; time.process_time_ns()\nwhile time.process_time() < 0.4: pass\ninput()"
    before = ranks_work(os.getpid())
    assert before is not None
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as child:
        while True:
            own, alone = ranks_work(os.getpid()), process_work(child.pid)
            assert own is not None
            assert alone is not None
            if alone.processor_s >= 0.3:
                break
        assert own.processor_s - before.processor_s >= 0.2
        assert child.stdin is not None
        child.stdin.close()
    assert ranks_work(os.getpid()) is not None
    assert ranks_work(2**22 + 1) is None
