"""Leases follow from what a session's return costs, and that from what is below the device."""

import pytest

from radix_cache.counters import Counters
from radix_cache.ghosts import MissCause
from radix_cache.restoring import RestoreCost
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


def cost(counters: Counters, *, reload_s: float = 0.001) -> RestoreCost:
    return RestoreCost(lambda tokens: tokens * 0.1, lambda tokens: tokens * reload_s, counters)


def test_a_session_that_comes_back_from_below_costs_its_way_up() -> None:
    assert cost(Counters()).seconds(1000) == pytest.approx(1.0)


def test_a_way_up_that_is_slower_than_computing_is_not_gone() -> None:
    assert cost(Counters(), reload_s=5.0).seconds(1000) == pytest.approx(100.0)


def test_what_is_forgotten_below_has_to_be_computed_again() -> None:
    counters = Counters()
    counters.miss_tokens[MissCause.EVICTED] = 65_536 + 1_000_000
    counters.restored_tokens = 1_000_000
    assert cost(counters).seconds(1000) == pytest.approx((1.0 + 100.0) / 2)
    counters.miss_tokens[MissCause.EVICTED] = 10**12
    assert cost(counters).seconds(1000) == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize(("host_blocks", "lease_s"), [(0, 20.0), (16, 2.0)])
def test_a_lease_is_shorter_where_there_is_host_memory(host_blocks: int, lease_s: float) -> None:
    class Mover:
        def move(self, move: object) -> None:
            raise AssertionError("nothing has to move")

    now = [0.0]
    cache = make_cache(
        16,
        clock=lambda: now[0],
        kappa=10.0,
        restore_cost=lambda tokens: tokens / 10,
        reload_cost=lambda tokens: tokens / 100,
        mover=Mover(),
        host_blocks=host_blocks,
    )
    run_turn(cache, transcript(21), lease_s=None)
    for at, leased in ((lease_s - 0.1, 5), (lease_s + 0.1, 0)):
        now[0] = at
        cache.available_blocks()
        assert cache.stats().leased == leased
