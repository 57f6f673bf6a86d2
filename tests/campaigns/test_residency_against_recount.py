"""Random turns of many branches: what each is charged for the device, against a recount of every
block at every moment.

KEEPWARM_CACHE_OPERATIONS sets how many operations are played.
"""

import os
import random

import pytest

from tests.support.cache_driver import CacheDriver
from tests.support.residency_recount import Recount
from tests.support.tiered_driver import TieredDriver

OPERATIONS = int(os.environ.get("KEEPWARM_CACHE_OPERATIONS", "100000"))
PER_RUN = 500
COMPARE_EVERY = 10
LANES = 4
RUNS = max(1, OPERATIONS // (10 * LANES * PER_RUN))


def driver_of(rng: random.Random, *, tiered: bool) -> CacheDriver | TieredDriver:
    if not tiered:
        return CacheDriver(rng.randrange, num_blocks=rng.randint(6, 24), leasing=rng.random() < 0.8)
    return TieredDriver(
        rng.randrange,
        num_blocks=rng.randint(8, 24),
        host_blocks=rng.choice([rng.randint(1, 40), 10_000]),
        disk_blocks=rng.choice([0, rng.randint(1, 60)]),
        failures=rng.random() < 0.3,
    )


@pytest.mark.parametrize("tiered", [False, True], ids=["device alone", "lower tiers"])
@pytest.mark.parametrize("lane", range(LANES))
def test_each_branch_is_charged_for_its_share_of_every_block(lane: int, tiered: bool) -> None:
    shared = 0
    for run in range(RUNS):
        seed = lane * 1_000_000 + run
        rng = random.Random(seed)
        driver = driver_of(rng, tiered=tiered)
        recount = Recount(driver.cache)
        try:
            for operation in range(PER_RUN):
                driver.step()
                if tiered and rng.random() < 0.1:
                    driver.cache.drop_branch(f"s{rng.randint(0, driver.counter)}")
                recount.pass_time(rng.randint(0, 20))
                if rng.random() < 0.3:
                    recount.take()
                if operation % COMPARE_EVERY == 0:
                    recount.compare()
                    driver.cache.check()
            driver.close()
            recount.compare()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {operation}: {error}") from error
        recount.take()
        assert sum(recount.told.values()) == recount.total, f"seed {seed}: something was not told"
        assert not recount.handles()
        shared += recount.shared
    assert shared > 200 * RUNS, "the campaign does not share"


@pytest.mark.parametrize("lane", range(LANES))
def test_nothing_is_lost_where_time_does_not_divide(lane: int) -> None:
    for run in range(RUNS):
        seed = lane * 1_000_000 + run
        rng = random.Random(seed)
        driver = driver_of(rng, tiered=run % 2 == 0)
        recount = Recount(driver.cache)
        meter = driver.cache.tree.meter
        for _ in range(PER_RUN):
            driver.step()
            recount.pass_time(rng.randint(0, 100_000), unit_us=1)
            charged = sum(meter.charged(handle) for handle in recount.expected)
            assert charged + meter.undivided == recount.total, f"seed {seed}"
            assert 0 <= meter.undivided < 16
