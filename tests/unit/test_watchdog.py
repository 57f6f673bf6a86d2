"""When a process counts as hung, and when it does not however long it takes."""

import os
import queue
import threading

import pytest

from runtime.messages import Beat
from runtime.watchdog import ProcessWork, Pulse, Watch, period_s, process_work
from tests.support.clock import FakeClock

HUNG_AFTER_S = 10.0
STEP_LIMIT_S = 100.0


class Process:
    """A process as its watcher knows it: what it says, and what work it has been given."""

    def __init__(self) -> None:
        self.clock = FakeClock()
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
