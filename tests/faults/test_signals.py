"""SIGKILL, SIGSTOP and SIGTERM to each process and to all, in each phase of a turn."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from sessions.wire.read_process import READ_LIMIT_S
from tests.support.faults import (
    HUNG_AFTER_S,
    PAD,
    PATIENCE_S,
    PHASES,
    SPARE_S,
    Faulty,
    Outcome,
    Turn,
    play,
    until,
)

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
CHECK_S = 2.0
"""A check that takes longer is given up: only then is a stopped probe noticed."""
CYCLES = int(os.environ.get("KEEPWARM_FAULT_CYCLES", "16"))
LONGEST_S = float(os.environ.get("KEEPWARM_FAULT_SPARE_S", f"{SPARE_S:g}"))
SEED = int(os.environ.get("KEEPWARM_FAULT_SEED", "1"))

RUN = [phase for phase in PHASES if phase != "read"]
"""Phases that need no reader."""
CASES: list[tuple[str, signal.Signals, str]] = [
    *(("engine", KILL, phase) for phase in RUN),
    *(("engine", STOP, phase) for phase in ("idle", "prefill", "decode")),
    *(("engine", TERM, phase) for phase in ("prefill", "decode")),
    *(("one probe", KILL, phase) for phase in ("grammar", "decode")),
    *(("both probes", KILL, phase) for phase in RUN),
    *(("both probes", STOP, phase) for phase in ("grammar",)),
    *(("both probes", TERM, phase) for phase in ("grammar",)),
    *(("server", STOP, phase) for phase in ("prefill", "decode")),
    *(("reader", KILL, phase) for phase in ("read", "decode")),
    *(("reader", STOP, phase) for phase in ("read",)),
]


def harm(who: str, number: signal.Signals) -> Callable[[Faulty], None]:
    def do(faulty: Faulty) -> None:
        targets = {
            "engine": lambda: [faulty.engine],
            "one probe": lambda: faulty.probes[:1],
            "both probes": lambda: faulty.probes,
            "server": lambda: [faulty.process],
            "reader": lambda: faulty.readers,
        }[who]()
        for process in targets:
            process.send_signal(number)
        if who == "server":  # stopped, and let go on
            until(lambda: faulty.process.status() == psutil.STATUS_STOPPED)
            faulty.process.send_signal(signal.SIGCONT)

    return do


def check(faulty: Faulty, who: str, number: signal.Signals, phase: str, outcome: Outcome) -> None:
    """What this fault should look like from outside."""
    died = who == "engine" and number != TERM
    noticed_s = {"engine": HUNG_AFTER_S, "both probes": CHECK_S, "reader": READ_LIMIT_S}.get(
        who, 0.0
    )
    noticed_s *= number == STOP
    # Beside other work everything takes longer, as the load itself tells.
    spare_s = max(LONGEST_S, outcome.load_s / 4)
    assert outcome.recovery_s - outcome.load_s <= spare_s + noticed_s, outcome
    causes = [line for line in outcome.lines if "engine died" in line]
    assert len(causes) == died, outcome.lines
    if died:
        assert ("killed by SIGKILL" if number == KILL else "it hung") in causes[0]
        assert 503 in outcome.ready, "it was never said that no turn can run"
        assert outcome.ready[-1] == 200
    else:
        lost_reader = who == "reader" and number != TERM
        assert set(outcome.ready) <= ({200, 503} if lost_reader else {200})
        assert outcome.ready[-1] == 200
        failed = outcome.terminal is not None and outcome.terminal["type"] == "response.failed"
        assert not failed, outcome.terminal
    if phase == "read":
        assert outcome.terminal is not None
        assert outcome.terminal.get("error", {}).get("code") == "request_not_read", outcome.terminal
        assert len([line for line in outcome.lines if "reader lost" in line]) == 1, outcome.lines
    if who != "engine" and phase == "grammar":
        assert outcome.terminal is not None
        assert outcome.terminal["type"] != "error", "a good grammar was refused"


@pytest.mark.parametrize(
    ("who", "number", "phase"), CASES, ids=[f"{w}-{n.name}-{p}" for w, n, p in CASES]
)
def test_a_turn_ends_once_and_the_next_one_runs(
    faulty: Faulty, who: str, number: signal.Signals, phase: str
) -> None:
    check(faulty, who, number, phase, play(faulty, phase, harm(who, number)))


@pytest.mark.parametrize("number", [KILL, STOP])
def test_a_reader_that_is_harmed_takes_one_frame_along(
    faulty: Faulty, number: signal.Signals
) -> None:
    """What waits behind the frame, large or small, is answered, and so are others meanwhile."""

    async def runs(turn: Turn) -> bool:
        return (await turn.terminal())["type"] in {"response.completed", "response.incomplete"}

    async def scenario() -> None:
        async with faulty.socket() as client, faulty.socket() as other, faulty.socket() as third:
            lost = Turn(client)
            await PHASES["read"](faulty, lost)
            behind, meanwhile, waiting = Turn(client), Turn(other), Turn(third)
            await behind.send(input="behind it", max_output_tokens=4)
            await waiting.send(input="large too", max_output_tokens=4, pad=PAD)
            await meanwhile.send(input="beside it", max_output_tokens=4)
            assert await runs(meanwhile)
            harm("reader", number)(faulty)
            assert (await lost.terminal())["error"]["code"] == "request_not_read"
            assert await runs(behind)
            assert await runs(waiting)

    faulty.lines()
    asyncio.run(scenario())
    assert len([line for line in faulty.lines() if "reader lost" in line]) == 1


@pytest.mark.timeout(0 if CYCLES > 100 else 240)
def test_all_is_where_it_was_after_many_faults(quick: Faulty) -> None:
    """KEEPWARM_FAULT_CYCLES sets how many, KEEPWARM_FAULT_SEED which."""
    rng = random.Random(SEED)
    kinds: set[str] = set()
    slowest, began = (0.0, ""), time.monotonic()
    for cycle in range(1, CYCLES + 1):
        who, number, phase = rng.choice(CASES)
        kind = f"{number.name} to {who} in {phase}"
        try:
            outcome = play(quick, phase, harm(who, number))
            check(quick, who, number, phase, outcome)
        except AssertionError as error:
            raise AssertionError(f"seed {SEED}, cycle {cycle}: {kind}: {error}") from error
        kinds.add(kind)
        slowest = max(slowest, (outcome.recovery_s - outcome.load_s, kind))
        if cycle % 100 == 0 or cycle == CYCLES:
            play(quick, "grammar", lambda _: None)  # probes that were killed while idle are back
            play(quick, "grammar", lambda _: None)
            until(lambda: back(quick), max(20, PATIENCE_S))
            print(
                f"seed {SEED}: {cycle} cycles of {len(kinds)} kinds in "
                f"{time.monotonic() - began:.0f} s, slowest recovery beyond loading "
                f"{slowest[0]:.2f} s ({slowest[1]}); before {quick.at_rest}, now {quick.rest()}",
                flush=True,
            )


def back(faulty: Faulty) -> bool:
    now, before = faulty.rest(), faulty.at_rest
    # An engine that was replaced, or a thread made at first need, may differ by a few for good.
    return all(now[name] <= before[name] + (2 if "threads" in name else 0) for name in before)
