"""A rank that is killed or stopped while turns run: told at once, every session goes on.

A server with two ranks, and one with four where that is asked for.
"""

import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.faults import HUNG_AFTER_S, Faulty, Outcome, faulty_server, play, until

KILLS = int(os.environ.get("KEEPWARM_RANK_KILLS", "1"))
STOPS = int(os.environ.get("KEEPWARM_RANK_STOPS", "1"))
SEED = int(os.environ.get("KEEPWARM_RANK_SEED", "1"))
RANKS = int(os.environ.get("KEEPWARM_RANKS", "2"))
PHASES = ("idle", "sent", "prefill", "decode", "tool")
TOLD_S = 5.0


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks make the folders that they meet in."""
    return tmp_path_factory.mktemp("meeting")


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory, meeting: Path) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("ranked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(meeting))
        options = ["--tensor-parallel", str(RANKS), "--host-kv-mib", "8"]
        options += ["--disk-kv-mib", "32", "--disk-kv-folder", str(folder / "kv")]
        with faulty_server(folder, *options) as server:
            yield server


def others(faulty: Faulty) -> list[psutil.Process]:
    return faulty.children("runtime.process.rank")


def harm_one(faulty: Faulty, rng: random.Random, number: signal.Signals, phase: str) -> Outcome:
    """One of the other ranks is harmed; what must hold of processes whatever was done."""
    harmed = others(faulty)
    assert len(harmed) == RANKS - 1
    outcome = play(faulty, phase, lambda _: rng.choice(harmed).send_signal(number))
    until(lambda: not any(_lives(process) for process in harmed))
    assert len(others(faulty)) == RANKS - 1
    assert len([line for line in outcome.lines if "engine died" in line]) == 1, outcome.lines
    return outcome


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_rank_that_is_killed_ends_the_engine_and_every_session_goes_on(
    ranked: Faulty, meeting: Path
) -> None:
    """KEEPWARM_RANK_KILLS times, at random phases of a turn; KEEPWARM_RANKS: so many ranks."""
    rng = random.Random(SEED)
    for number in range(KILLS):
        phase = rng.choice(PHASES)
        outcome = harm_one(ranked, rng, signal.SIGKILL, phase)
        (told,) = [line for line in outcome.lines if "engine ends, to be replaced" in line]
        assert re.search(r"rank \d+ was killed by SIGKILL", told), (SEED, number, phase, told)
        assert outcome.recovery_s - outcome.load_s <= TOLD_S, (SEED, number, phase, outcome)
        assert not list(meeting.iterdir())


def test_a_rank_that_is_stopped_is_found_as_a_hung_engine_is(ranked: Faulty, meeting: Path) -> None:
    """KEEPWARM_RANK_STOPS times. One that nobody waits for hangs nobody, so a turn runs."""
    rng = random.Random(SEED)
    for number in range(STOPS):
        phase = rng.choice(("prefill", "decode"))
        outcome = harm_one(ranked, rng, signal.SIGSTOP, phase)
        assert [line for line in outcome.lines if "it hung: no sign of life" in line], outcome
        spare_s = outcome.recovery_s - outcome.load_s - HUNG_AFTER_S
        assert spare_s <= TOLD_S, (SEED, number, phase, outcome)
        assert not list(meeting.iterdir())
