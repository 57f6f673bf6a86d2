"""Random turns of many sessions: the cache against the reference model, step by step, and the
cache with host memory and disk against what its blocks ought to hold.

KEEPWARM_CACHE_OPERATIONS sets how many operations each of the two seeded campaigns plays.
"""

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from radix_cache.edge import TokenArray
from radix_cache.tree import hash_tokens
from tests.support.cache_driver import CacheDriver
from tests.support.tiered_driver import TieredDriver

OPERATIONS = int(os.environ.get("KEEPWARM_CACHE_OPERATIONS", "100000"))
PER_RUN = 500
CHECK_EVERY = 50


def one_hash(tokens: TokenArray, seed: int) -> int:
    """Every child collides with every other."""
    return 7


def two_hashes(tokens: TokenArray, seed: int) -> int:
    return int(tokens[0]) & 1


HASHES: list[Callable[[TokenArray, int], int]] = [hash_tokens, one_hash, two_hashes]


@pytest.mark.parametrize("lane", range(8))
def test_agrees_with_the_model_over_random_operations(lane: int) -> None:
    runs = max(1, OPERATIONS // (8 * PER_RUN))
    for run in range(runs):
        seed = lane * 1_000_000 + run
        rng = random.Random(seed)
        driver = CacheDriver(
            rng.randrange,
            num_blocks=rng.randint(6, 24),
            leasing=rng.random() < 0.8,
            hash_block=HASHES[rng.randrange(3)],
        )
        try:
            for operation in range(PER_RUN):
                driver.step()
                if operation % CHECK_EVERY == 0:
                    driver.cache.check()
            driver.close()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {operation}: {error}") from error


@pytest.mark.parametrize("lane", range(8))
def test_content_survives_any_order_of_moves_between_tiers(lane: int) -> None:
    """Evict, demote, promote, prefetch, write to the disk, fail to: half of the operations of
    the campaign above, which do as much each."""
    runs = max(1, OPERATIONS // (16 * PER_RUN))
    restored = 0
    for run in range(runs):
        seed = lane * 1_000_000 + run
        rng = random.Random(seed)
        driver = TieredDriver(
            rng.randrange,
            num_blocks=rng.randint(8, 24),
            host_blocks=rng.choice([rng.randint(1, 40), 10_000]),
            disk_blocks=rng.choice([0, rng.randint(1, 60)]),
            failures=rng.random() < 0.3,
        )
        try:
            for operation in range(PER_RUN):
                driver.step()
                if operation % CHECK_EVERY == 0:
                    driver.cache.check()
            driver.close()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {operation}: {error}") from error
        restored += driver.restored
    assert restored > runs, "the campaign does not promote"


class CacheMachine(RuleBasedStateMachine):
    """The same operations chosen by hypothesis, so that a failure shrinks."""

    @initialize(
        data=st.data(),
        num_blocks=st.integers(6, 20),
        leasing=st.booleans(),
        hash_block=st.sampled_from(HASHES),
    )
    def start(
        self,
        data: st.DataObject,
        num_blocks: int,
        leasing: bool,
        hash_block: Callable[[TokenArray, int], int],
    ) -> None:
        self.driver = CacheDriver(
            choose_from(data), num_blocks=num_blocks, leasing=leasing, hash_block=hash_block
        )

    @rule(data=st.data(), operation=st.sampled_from(sorted(set(CacheDriver.OPERATIONS))))
    def operate(self, data: st.DataObject, operation: str) -> None:
        self.driver.choose = choose_from(data)
        getattr(self.driver, operation)()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "driver"):
            self.driver.compare()
            self.driver.cache.check()


class TieredMachine(RuleBasedStateMachine):
    """The same with lower tiers: demote, promote, to the disk and back."""

    @initialize(
        data=st.data(),
        num_blocks=st.integers(8, 20),
        host_blocks=st.integers(1, 40),
        disk_blocks=st.integers(0, 60),
        failures=st.booleans(),
    )
    def start(
        self,
        data: st.DataObject,
        num_blocks: int,
        host_blocks: int,
        disk_blocks: int,
        failures: bool,
    ) -> None:
        self.driver = TieredDriver(
            choose_from(data),
            num_blocks=num_blocks,
            host_blocks=host_blocks,
            disk_blocks=disk_blocks,
            failures=failures,
        )

    @rule(data=st.data(), operation=st.sampled_from(sorted(set(TieredDriver.OPERATIONS))))
    def operate(self, data: st.DataObject, operation: str) -> None:
        self.driver.choose = choose_from(data)
        getattr(self.driver, operation)()

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "driver"):
            self.driver.cache.check()
            for name in self.driver.open:
                self.driver.verify(name)


def choose_from(data: st.DataObject) -> Callable[[int], int]:
    return lambda n: data.draw(st.integers(0, n - 1))


TestCacheMachine = CacheMachine.TestCase
TestTieredMachine = TieredMachine.TestCase
TestCacheMachine.settings = TestTieredMachine.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
