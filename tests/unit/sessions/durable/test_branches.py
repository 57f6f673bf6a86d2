"""Branches: append, fork, whole; released exactly once."""

import random
from dataclasses import dataclass

import pytest

from sessions.durable.branches import Branches, Claim


@dataclass(frozen=True, eq=False)
class Entry:
    name: str


def first_turn(branches: Branches, num_tokens: int = 10) -> tuple[Entry, Claim]:
    entry, claim = Entry("first"), branches.claim(None)
    branches.place(claim, entry, num_tokens)
    return entry, claim


def released(branches: Branches) -> list[str]:
    return [release.branch_id for release in branches.pop_releases()]


def test_a_first_turn_sends_its_whole_transcript() -> None:
    claim = Branches().claim(None)
    assert (claim.base_branch_id, claim.base_offset) == (None, 0)


def test_the_head_of_a_branch_is_continued_in_place() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    second = branches.claim(entry)
    assert second.branch_id == second.base_branch_id == first.branch_id
    assert second.base_offset == 10


def test_an_older_entry_is_forked() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    branches.place(branches.claim(entry), Entry("second"), 20)
    fork = branches.claim(entry)
    assert fork.branch_id != first.branch_id
    assert (fork.base_branch_id, fork.base_offset) == (first.branch_id, 10)


def test_a_fork_leaves_the_branch_to_who_goes_on_from_its_head() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    fork = branches.claim(entry, forks=True)
    assert (fork.base_branch_id, fork.base_offset) == (first.branch_id, 10)
    assert fork.branch_id != first.branch_id
    branches.place(fork, Entry("fork"), 12)
    assert branches.claim(entry).branch_id == first.branch_id


def test_a_head_that_is_being_continued_is_forked() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    branches.claim(entry)
    fork = branches.claim(entry)
    assert fork.branch_id != first.branch_id
    assert (fork.base_branch_id, fork.base_offset) == (first.branch_id, 10)


def test_a_rebuilt_transcript_is_a_new_branch_that_names_the_old_one() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    claim = branches.claim(entry, rebuilt=True)
    assert claim.branch_id != first.branch_id
    assert (claim.base_branch_id, claim.base_offset) == (first.branch_id, 0)


def test_after_a_failed_turn_the_parent_is_continued_in_place() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    branches.abandon(branches.claim(entry))
    again = branches.claim(entry)
    assert (again.branch_id, again.base_offset) == (first.branch_id, 10)
    assert released(branches) == []


def test_a_failed_first_turn_releases_its_branch() -> None:
    branches = Branches()
    claim = branches.claim(None)
    branches.abandon(claim)
    assert released(branches) == [claim.branch_id]
    assert released(branches) == []


def test_a_branch_is_released_with_its_last_entry_and_not_while_a_turn_runs() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    running = branches.claim(entry)
    branches.drop(entry)
    assert released(branches) == []
    second = Entry("second")
    branches.place(running, second, 30)
    branches.drop(second)
    branches.drop(second)
    assert released(branches) == [first.branch_id]


def test_after_the_engine_died_nothing_is_released_and_all_start_anew() -> None:
    branches = Branches()
    entry, _ = first_turn(branches)
    running = branches.claim(None)
    branches.engine_lost()
    branches.drop(entry)
    branches.place(running, Entry("late"), 5)
    branches.abandon(branches.claim(None))
    assert len(released(branches)) == 1
    assert branches.claim(entry).base_branch_id is None
    assert len(branches) == 1


def test_a_session_the_engine_forgot_is_no_base_and_is_released_at_once() -> None:
    branches = Branches()
    entry, first = first_turn(branches)
    branches.forgotten(first.branch_id)
    assert branches.claim(entry).base_branch_id is None
    assert released(branches) == [first.branch_id]
    branches.forgotten(first.branch_id)
    branches.drop(entry)
    assert released(branches) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_branch_is_released_once_under_random_use(seed: int) -> None:
    rng, branches = random.Random(seed), Branches()
    known: set[str] = set()
    entries: list[Entry] = []
    claims: list[Claim] = []
    for step in range(400):
        action = rng.choice(["claim", "claim", "place", "abandon", "drop", "lost"])
        if action == "claim":
            claim = branches.claim(rng.choice([None, *entries]))
            assert claim.base_branch_id is None or claim.base_branch_id in known
            assert claim.branch_id not in {c.branch_id for c in claims}
            known.add(claim.branch_id)
            claims.append(claim)
        elif action in {"place", "abandon"} and claims:
            claim = claims.pop(rng.randrange(len(claims)))
            if action == "place":
                entries.append(Entry(f"{step}"))
                branches.place(claim, entries[-1], claim.base_offset + rng.randint(1, 9))
            else:
                branches.abandon(claim)
        elif action == "drop" and entries:
            branches.drop(entries.pop(rng.randrange(len(entries))))
        elif action == "lost" and rng.random() < 0.05:
            branches.engine_lost()
            known.clear()
        for branch_id in released(branches):
            known.remove(branch_id)
        assert len(branches) == len(known)
    for claim in claims:
        branches.abandon(claim)
    for entry in entries:
        branches.drop(entry)
    for branch_id in released(branches):
        known.remove(branch_id)
    assert not known
