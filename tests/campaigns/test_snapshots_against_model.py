"""Random turns of models with recurrent layers: where they resume, what is kept and what goes, the
cache beside a plain list of prefixes; on the device alone, and with host memory and disk below it.

KEEPWARM_SNAPSHOT_OPERATIONS sets how many operations are played, KEEPWARM_SNAPSHOT_SEED where the
seeds begin.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from radix_cache.handle import Snapshot
from radix_cache.kept_states import KeptStates
from radix_cache.lower_states import LowerStates
from radix_cache.nodes import Owner, Tier
from radix_cache.retention import Retention
from radix_cache.snapshot_order import SnapshotOrder
from radix_cache.snapshots import SnapshotKind, StateContent
from radix_cache.transfers import TierBlocks
from radix_cache.tree import RadixTree
from tests.support.snapshot_driver import SnapshotDriver

OPERATIONS = int(os.environ.get("KEEPWARM_SNAPSHOT_OPERATIONS", "20000"))
SEED = int(os.environ.get("KEEPWARM_SNAPSHOT_SEED", "0"))
PER_RUN = 250
CHECK_EVERY = 50
LANES = 12
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
ON_THE_WAY = {"device to host", "host to device", "host to disk", "disk to host"} | {
    "running to host",
    "interval kept",
    "interval not kept",
    "restored",
    "prefetched",
    "failed to move",
    "restarted",
    "found states again",
    "found none again",
    "came back after a restart",
}
"""What happens with tiers below the device."""
ENOUGH = 20_000
"""Operations of which every kind occurs."""


def below(rng: random.Random, *, exact: bool) -> dict[str, int]:
    """Sizes of tiers below the device: a disk where blocks are few."""
    sizes = {
        "host_states": rng.randint(1, 10),
        "host_blocks": 4000 if exact else rng.randint(8, 40),
    }
    if not exact and rng.random() < 0.9:
        sizes |= {"disk_blocks": rng.randint(10, 80), "disk_states": rng.randint(1, 10)}
    return sizes


def play(lane: int, *, exact: bool, tiers: bool = False) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in range(max(1, OPERATIONS // (LANES * PER_RUN))):
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
            below=below(rng, exact=exact) if tiers else None,
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
    monkeypatch.setattr(KeptStates, "_cut", lambda slots, kept: None)


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


def _stays_above_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptStates, "_placed", lambda slots, node: None)


def _used_again_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TierBlocks, "use", lambda blocks, ids: None)
    monkeypatch.setattr(TierBlocks, "used", lambda blocks, ids: None)


def _found_again_without_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(**content: Any) -> StateContent:
        return StateContent(**content | {"tail": content["tail"][:0]})

    monkeypatch.setattr("radix_cache.lower_states.StateContent", cut)


def _begun_before_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshot, "ready", property(lambda kept: kept.slot >= 0 or kept.host >= 0))


def _interval_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody comes back to goes for one that nobody is known to."""

    def has_room(lower: LowerStates, owner: Owner) -> bool:
        slots, kept = lower.slots[Tier.HOST], lower.kept[Tier.HOST]
        while not slots.num_free:
            oldest = min(kept.values(), key=lambda each: each.used)
            lower.drop(oldest, Tier.HOST)
        return True

    monkeypatch.setattr(LowerStates, "has_room", has_room)


def _interval_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = SnapshotOrder.is_wanted

    def as_any(order: SnapshotOrder, snapshot: Snapshot) -> bool:
        return snapshot.kind is SnapshotKind.INTERVAL or wanted(order, snapshot)

    monkeypatch.setattr(SnapshotOrder, "is_wanted", as_any)


def _named_but_kept_as_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        KeptStates, "known", lambda kept, handle, tokens, _: kept.same(handle, tokens)
    )


@pytest.mark.parametrize(
    ("mutant", "exact", "tiers"),
    [
        (_outlives_its_blocks, False, False),
        (_junction_of_another_tenant, True, False),
        (_tail_not_compared, True, False),
        (_lease_outlives_its_end, True, False),
        (_lease_outlives_its_end, True, True),
        (_outlives_its_blocks, False, True),
        (_stays_above_its_blocks, False, True),
        (_used_again_before_it_is_read, False, True),
        (_found_again_without_its_tail, False, True),
        (_begun_before_it_has_arrived, False, True),
        (_interval_in_the_way, True, True),
        (_interval_for_ever, True, True),
        (_named_but_kept_as_an_interval, True, True),
    ],
)
def test_a_fault_in_what_is_kept_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None],
    exact: bool,
    tiers: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, AttributeError, ValueError)):  # noqa: PT012
        for lane in range(40):
            play(lane, exact=exact, tiers=tiers)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(4))
def test_resume_points_are_those_of_a_plain_list(lane: int) -> None:
    counts = play(lane, exact=True)
    print(counts)
    assert counts.keys() >= KINDS_OF_OPERATION, sorted(KINDS_OF_OPERATION - counts.keys())


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(4, 8))
def test_no_snapshot_outlives_its_keys_and_values(lane: int) -> None:
    """So few blocks that they are evicted below snapshots all the time."""
    counts = play(lane, exact=False)
    assert counts["dropped"] > 0
    assert counts["resumed"] > 0


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(8, 10))
def test_copies_in_host_memory_are_those_of_a_plain_list(lane: int) -> None:
    counts = play(lane, exact=True, tiers=True)
    assert counts.keys() >= KINDS_OF_OPERATION | {
        "device to host",
        "host to device",
        "running to host",
        "interval not kept",
    }


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(10, 12))
def test_a_state_comes_back_with_the_keys_and_values_before_it_or_not_at_all(lane: int) -> None:
    """From host memory, from the disk and after a restart, in order or not."""
    counts = play(lane, exact=False, tiers=True)
    print(counts)
    if OPERATIONS >= ENOUGH:
        assert counts.keys() >= ON_THE_WAY, sorted(ON_THE_WAY - counts.keys())
