"""The watch on the servers' event loop sees what holds it up, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from keepwarm.demo.child_server import ChildServer
from tests.support.stolen_time import PRIORITY, stolen_s, told_file, watched_cores
from tests.support.watched_server import MOST_S, LoopWatch, long_callbacks


def hold_up(cpu_s: float) -> None:
    """Takes so much CPU time."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def play(report: str) -> None:
    """In a process of its own: a short callback, one that waits, one that computes."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(hold_up, MOST_S / 10)
        loop.call_soon(time.sleep, 3 * MOST_S)
        loop.call_soon(hold_up, 3 * MOST_S)
        for _ in range(3):
            await asyncio.sleep(0)

    LoopWatch(report).start()
    asyncio.run(scenario())


def test_only_a_callback_that_computes_for_long_is_told_with_its_stack(tmp_path: Path) -> None:
    report = tmp_path / "report"
    program = f"from tests.e2e.test_loop_watch import play; play({str(report)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (told,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert told["cpu_s"] > MOST_S
    assert "hold_up" in told["callback"]
    assert any("hold_up" in stack for stack in told["stacks"])


def test_what_was_stolen_from_its_core_is_no_work_of_a_callback(tmp_path: Path) -> None:
    report = tmp_path / "report"
    told_file(report, 0).write_text("0.5 0.9\n10.004 10.009\n10.020 10.030\n10.5")
    assert stolen_s(report, 0, 10.0, 10.025) == pytest.approx(0.010)
    assert stolen_s(report, 1, 10.0, 10.025) == 0.0
    callback = {"begun_s": 10.0, "ended_s": 10.025, "callback": "f", "stacks": []}
    callbacks = [
        callback | {"core": core, "cpu_s": cpu_s}
        for core, cpu_s in [(0, 0.025), (0, MOST_S + 0.0101), (1, 0.025)]
    ]
    report.write_text("".join(json.dumps(each) + "\n" for each in callbacks))
    assert long_callbacks(report, 0) == [
        "30.1 ms of CPU, 10.0 ms of it stolen, in f",
        "25.0 ms of CPU, 0.0 ms of it stolen, in f",
    ]


def take_core(core: int, seconds: float, priority: int | None) -> tuple[float, float]:
    """Compute on a core, with a priority of real time if any; returns begin and end."""
    os.sched_setaffinity(0, {core})
    if priority is not None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + seconds:
        pass
    return begun_s, time.monotonic()


def may_have_priority() -> bool:
    """Whether a process may have a priority of real time here."""
    program = f"import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param({PRIORITY}))"
    words = [sys.executable, "-c", program]
    return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(("priority", "least", "most"), [(PRIORITY + 1, 0.8, 1), (None, 0, 0.5)])
def test_a_core_is_away_only_while_something_above_has_it(
    priority: int | None, least: float, most: float, tmp_path: Path
) -> None:
    """What plays the host has a higher priority; other work takes the core from nobody."""
    if not may_have_priority():
        pytest.skip("processes may not have such a priority here")
    report, core = tmp_path / "report", max(os.sched_getaffinity(0))
    program = (
        "from tests.e2e.test_loop_watch import take_core; "
        f"print(*take_core({core}, 0.2, {priority}))"
    )
    with watched_cores(report):
        while not told_file(report, core).exists():
            time.sleep(0.01)
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
        )
    begun_s, ended_s = map(float, done.stdout.split())
    share = stolen_s(report, core, begun_s, ended_s) / (ended_s - begun_s)
    assert least <= share <= most


def test_whoever_watches_a_core_comes_before_all_other_work(tmp_path: Path) -> None:
    """Else work of others would count as stolen."""
    if not may_have_priority():
        pytest.skip("processes may not have such a priority here")
    report = tmp_path / "report"
    before = set(psutil.Process().children())
    with watched_cores(report):
        for core in os.sched_getaffinity(0):
            while not told_file(report, core).exists():
                time.sleep(0.01)
        made = set(psutil.Process().children()) - before
        assert {os.sched_getscheduler(each.pid) for each in made} == {os.SCHED_FIFO}
        assert sorted(each.cpu_affinity() for each in made) == [
            [core] for core in sorted(os.sched_getaffinity(0))
        ]


def test_nobody_watches_a_core_any_more_behind_the_tests(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with watched_cores(tmp_path / "report"):
        made = set(psutil.Process().children()) - before
        assert len(made) == len(os.sched_getaffinity(0))
    assert set(psutil.Process().children()) == before


@pytest.mark.skipif(os.environ.get("KEEPWARM_WATCH_LOOP") == "0", reason="nobody is to watch")
def test_the_servers_of_this_folder_are_watched(server: ChildServer) -> None:
    assert isinstance(server.process.args, list)
    assert "tests.support.watched_server" in server.process.args
