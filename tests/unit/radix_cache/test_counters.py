"""The totals of a cache that has done nothing."""

from dataclasses import astuple

from radix_cache.counters import Counters
from radix_cache.ghosts import MissCause


def test_every_cause_has_a_total_that_begins_at_zero() -> None:
    counters = Counters()
    assert counters.miss_tokens == dict.fromkeys(MissCause, 0)
    assert counters.evicted_tokens == {MissCause.EVICTED: 0, MissCause.EXPIRED: 0}
    assert not any(total for total in astuple(counters) if isinstance(total, int))


def test_two_caches_do_not_count_together() -> None:
    one, other = Counters(), Counters()
    one.miss_tokens[MissCause.FORKED] += 3
    assert other.miss_tokens[MissCause.FORKED] == 0
