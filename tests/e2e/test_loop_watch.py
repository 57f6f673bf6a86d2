"""The watch on the servers' event loop sees what holds it up, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.support.watched_server import MOST_S, LoopWatch


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
    assert told["ms"] > MOST_S * 1000
    assert "hold_up" in told["callback"]
    assert any("hold_up" in stack for stack in told["stacks"])


@pytest.mark.skipif(os.environ.get("KEEPWARM_WATCH_LOOP") == "0", reason="nobody is to watch")
def test_the_servers_of_this_folder_are_watched(server: ChildServer) -> None:
    assert isinstance(server.process.args, list)
    assert "tests.support.watched_server" in server.process.args
