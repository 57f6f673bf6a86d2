"""A child process stands behind its parent, by no more than there is."""

import os
import subprocess
import sys

import pytest

from runtime.niceness import stand_behind

NICEST = 19


@pytest.mark.parametrize("steps", [0, 1, 5, 100])
def test_a_child_is_that_much_nicer(steps: int) -> None:
    words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        stand_behind(child.pid, steps)
        seen = os.getpriority(os.PRIO_PROCESS, child.pid)
        assert child.stdin is not None
        child.stdin.close()
    assert seen == min(NICEST, os.getpriority(os.PRIO_PROCESS, 0) + steps)


def test_one_that_has_ended_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    stand_behind(child.pid, 5)
