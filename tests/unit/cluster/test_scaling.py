"""How many servers there are to be: soon up, late down, and never fewer than keep sessions warm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling import DOWN_S, UP_S, ScaleBounds, ScaleMemory, needed, wanted, warm
from sessions.journal.members import MemberLoad

BOUNDS = ScaleBounds(least=2, most=8, turns_per_server=4)
BUSY = MemberLoad(running=4, waiting=2)
IDLE = MemberLoad()


@pytest.mark.parametrize(
    ("loads", "count"),
    [
        ([], 2),
        ([IDLE] * 5, 2),
        ([MemberLoad(running=4)] * 3, 3),
        ([BUSY] * 2, 3),
        ([MemberLoad(kv_permille=700)] * 3, 3),
        ([MemberLoad(kv_permille=701)] * 3, 4),
        ([MemberLoad(waiting=1000)], 8),
    ],
)
def test_as_many_as_turns_or_kv_call_for_within_the_bounds(
    loads: list[MemberLoad], count: int
) -> None:
    assert needed(loads, BOUNDS) == count


def play(loads: list[MemberLoad], current: int, seconds: float) -> tuple[int, float]:
    """The first other count, and after how many seconds it was said."""
    memory, now = ScaleMemory(), 1000.0
    while now <= 1000.0 + seconds:
        found, memory = wanted(loads, current, BOUNDS, memory, now)
        if found != current:
            return found, now - 1000.0
        now += 1.0
    return current, seconds


def test_more_come_when_they_are_wanted_for_a_while() -> None:
    assert play([BUSY] * 2, 2, 1000) == (3, UP_S)


def test_fewer_come_only_when_none_was_needed_for_long() -> None:
    assert play([IDLE] * 4, 4, 1000) == (2, DOWN_S)
    memory, now = ScaleMemory(), 0.0
    for at in range(0, 1200, 10):
        loads = [BUSY] * 4 if at == 590 else [IDLE] * 4
        found, memory = wanted(loads, 4, BOUNDS, memory, now + at)
        assert found == (2 if at >= 600 + DOWN_S else 4)


def test_of_what_was_wanted_meanwhile_the_most_is_kept() -> None:
    memory = ScaleMemory()
    for at in range(0, 601, 10):
        loads = [MemberLoad(running=3)] * 4 if at == 300 else [IDLE] * 4
        found, memory = wanted(loads, 4, BOUNDS, memory, float(at))
    assert found == 3


def test_it_never_goes_below_the_number_whose_kv_holds_the_sessions_that_were_active() -> None:
    full = [MemberLoad(active_permille=800)] * 4
    assert warm(full) == 4
    assert play(full, 4, 2000) == (4, 2000)
    assert play([MemberLoad(active_permille=600)] * 4, 4, 2000) == (3, DOWN_S)
    assert play([MemberLoad(active_permille=3000)] * 2, 2, 2000) == (2, 2000)  # nor up for it


def test_nobody_is_let_go_while_one_starts() -> None:
    assert play([IDLE] * 3, 4, 2000) == (4, 2000)


def test_other_bounds_hold_at_once() -> None:
    assert wanted([IDLE] * 9, 9, BOUNDS, ScaleMemory(), 0.0)[0] == 8
    assert wanted([], 1, BOUNDS, ScaleMemory(), 0.0)[0] == 2


@pytest.mark.parametrize("bad", [(0, 1, 1), (3, 2, 1), (1, 1, 0)])
def test_bounds_that_are_none_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not 1 <= least"):
        ScaleBounds(least=bad[0], most=bad[1], turns_per_server=bad[2])


LOADS = st.builds(
    MemberLoad,
    running=st.integers(0, 100),
    waiting=st.integers(0, 100),
    kv_permille=st.integers(0, 1000),
    active_permille=st.integers(0, 5000),
)


@given(st.lists(st.tuples(st.lists(LOADS, max_size=8), st.integers(1, 700)), max_size=30))
def test_whatever_is_said_it_stays_within_its_bounds_and_goes_up_soon(
    told: list[tuple[list[MemberLoad], int]],
) -> None:
    memory, now, current, above_s = ScaleMemory(), 0.0, 2, 0.0
    for loads, seconds in told:
        for _ in range(2):
            found, memory = wanted(loads, current, BOUNDS, memory, now)
            assert BOUNDS.least <= found <= BOUNDS.most
            if found < current:
                assert found >= min(warm(loads), current)
            current = found
        now += seconds
        found, memory = wanted(loads, current, BOUNDS, memory, now)
        above_s = seconds if needed(loads, BOUNDS) > current else 0.0
        if above_s >= UP_S:
            assert found >= needed(loads, BOUNDS)
        current = found
