"""The server stays off the core of an engine that works, and takes every core where it rests."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.process.core_choice import CoreChoice, MainThread, main_thread, own_cores, run_on

ENGINE = 7
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="affinities are Linux's")


class Machine:
    """A machine with some cores, and what is told of the engine on it."""

    def __init__(self, *cores: int) -> None:
        self.thread: MainThread | None = MainThread(core=cores[0], processor_s=0.0)
        self.set: list[frozenset[int]] = []
        self.choice = CoreChoice(
            frozenset(cores), look=lambda process_id: self.thread, run_on=self.set.append
        )

    def look(self, now_s: float, core: int, processor_s: float, engine: int = ENGINE) -> None:
        self.thread = MainThread(core, processor_s)
        self.choice.tend(engine, now_s)


def test_it_stays_off_the_core_of_an_engine_that_works_and_follows_it() -> None:
    machine = Machine(0, 1, 2)
    machine.look(0.0, core=1, processor_s=5.0)
    assert not machine.set, "one look tells nothing of what the engine does"
    machine.look(0.5, core=1, processor_s=5.5)
    machine.look(1.0, core=1, processor_s=6.0)
    machine.look(1.5, core=2, processor_s=6.25)
    assert machine.set == [{0, 2}, {0, 1}], "once for each core that the engine is on"


def test_an_engine_that_rests_leaves_all_cores() -> None:
    machine = Machine(0, 1)
    machine.look(0.0, core=1, processor_s=5.0)
    machine.look(0.5, core=1, processor_s=5.25)
    machine.look(1.0, core=1, processor_s=5.49)
    assert machine.set == [{0}, {0, 1}]


@pytest.mark.parametrize("cores", [(3,), ()])
def test_where_no_other_core_is_nothing_is_asked_for(cores: tuple[int, ...]) -> None:
    asked: list[frozenset[int]] = []
    thread = [MainThread(3, 0.0), MainThread(3, 1.0)]
    choice = CoreChoice(frozenset(cores), look=lambda _: thread.pop(0), run_on=asked.append)
    choice.tend(ENGINE, 0.0)
    choice.tend(ENGINE, 1.0)
    assert not asked


def test_another_engine_is_not_taken_for_the_last_one() -> None:
    machine = Machine(0, 1)
    machine.look(0.0, core=1, processor_s=1.0)
    machine.look(0.5, core=1, processor_s=1.5)
    machine.look(1.0, core=1, processor_s=90.0, engine=ENGINE + 1)
    assert machine.set == [{0}, {0, 1}]


def test_an_engine_that_is_gone_leaves_all_cores() -> None:
    machine = Machine(0, 1)
    machine.look(0.0, core=1, processor_s=1.0)
    machine.look(0.5, core=1, processor_s=1.5)
    machine.thread = None
    machine.choice.tend(ENGINE, 1.0)
    machine.choice.back()
    assert machine.set == [{0}, {0, 1}]
    machine.look(1.5, core=1, processor_s=9.0)
    assert machine.set == [{0}, {0, 1}], "its seconds from before are not compared with"


@LINUX
def test_the_system_tells_of_a_main_thread() -> None:
    before = main_thread(os.getpid())
    assert before is not None
    assert before.core in own_cores()
    while main_thread(os.getpid()).processor_s < before.processor_s + 0.02:  # type: ignore[union-attr]
        pass  # works until the system has counted it


@LINUX
def test_of_a_process_that_is_none_nothing_is_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert main_thread(child.pid) is None


@LINUX
def test_all_threads_move_and_those_of_others_do_not() -> None:
    cores = own_cores()
    some = frozenset({min(cores)})
    waits, seen = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (seen.set(), waits.wait()))
    thread.start()
    seen.wait()
    try:
        run_on(some)
        threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
        assert len(threads) >= 2
        assert {frozenset(os.sched_getaffinity(number)) for number in threads} == {some}
    finally:
        run_on(cores)
        waits.set()
        thread.join()
    assert own_cores() == cores
