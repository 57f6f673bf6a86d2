"""Random turns of models with recurrent layers: where they resume, what is kept and what goes, the
cache beside a plain list of prefixes.

KEEPWARM_SNAPSHOT_OPERATIONS sets how many operations are played, KEEPWARM_SNAPSHOT_SEED where the
seeds begin.
"""

import os
import random
from collections.abc import Callable

import pytest

from radix_cache.retention import Retention
from radix_cache.state_slots import StateSlots
from radix_cache.tree import RadixTree
from tests.support.snapshot_driver import SnapshotDriver

OPERATIONS = int(os.environ.get("KEEPWARM_SNAPSHOT_OPERATIONS", "20000"))
SEED = int(os.environ.get("KEEPWARM_SNAPSHOT_SEED", "0"))
PER_RUN = 250
CHECK_EVERY = 50
KINDS_OF_OPERATION = {
    "continued",
    "rewound",
    "forked",
    "resent",
    "resumed",
    "kept",
    "not kept",
    "released",
    "out of slots",
    "end",
    "pause",
    "error",
}


def play(lane: int, *, exact: bool) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in range(max(1, OPERATIONS // (8 * PER_RUN))):
        seed = SEED + lane * 1_000_000 + run
        rng = random.Random(seed)
        running = rng.randint(1, 4)
        driver = SnapshotDriver(
            rng.randrange,
            slots=running + rng.randint(0, 5),
            running=running,
            blocks=4000 if exact else rng.randint(12, 30),
            block=rng.choice([2, 3, 4]),
            leasing=rng.random() < 0.8,
            exact=exact,
        )
        operation = -1
        try:
            for operation in range(PER_RUN):
                driver.step()
                if operation % CHECK_EVERY == 0:
                    driver.check()
            driver.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {operation}: {error}") from error
        for what, count in driver.counts.items():
            counts[what] = counts.get(what, 0) + count
    return counts


def _outlives_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateSlots, "_cut", lambda slots, kept: None)


def _junction_of_another_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tree shows a tenant's path to another one."""
    monkeypatch.setattr(RadixTree, "start", lambda tree, owner: tree.owner("red").root)
    monkeypatch.setattr(
        RadixTree,
        "child",
        lambda tree, node, owner, tokens, at: next(
            (
                child
                for child in tree.children(node)
                if child.edge.starts_with(
                    tokens[at * tree.block_size : (at + 1) * tree.block_size].tobytes()
                )
            ),
            None,
        ),
    )


def _tail_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radix_cache.resume_points.has_tail", lambda *anything: True)


def _lease_outlives_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "break_one", lambda retention, handle: None)


@pytest.mark.parametrize(
    ("mutant", "exact"),
    [
        (_outlives_its_blocks, False),
        (_junction_of_another_tenant, True),
        (_tail_not_compared, True),
        (_lease_outlives_its_end, True),
    ],
)
def test_a_fault_in_what_is_kept_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, AttributeError, ValueError)):  # noqa: PT012
        for lane in range(40):
            play(lane, exact=exact)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(4))
def test_resume_points_are_those_of_a_plain_list(lane: int) -> None:
    counts = play(lane, exact=True)
    assert counts.keys() >= KINDS_OF_OPERATION, sorted(KINDS_OF_OPERATION - counts.keys())


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(4, 8))
def test_no_snapshot_outlives_its_keys_and_values(lane: int) -> None:
    """So few blocks that they are evicted below snapshots all the time."""
    counts = play(lane, exact=False)
    assert counts["dropped"] > 0
    assert counts["resumed"] > 0
