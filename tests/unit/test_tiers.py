"""Host memory and disk: what is evicted moves down, what is wanted comes back unharmed."""

import random

import pytest

from tests.support.tiered_driver import TieredDriver


@pytest.mark.parametrize("seed", range(40))
def test_content_survives_any_order_of_moves(seed: int) -> None:
    rng = random.Random(seed)
    driver = TieredDriver(
        rng.randrange,
        num_blocks=rng.randint(8, 24),
        host_blocks=rng.randint(1, 40),
        disk_blocks=rng.choice([0, rng.randint(1, 60)]),
        failures=rng.random() < 0.3,
    )
    for operation in range(300):
        driver.step()
        if operation % 10 == 0:
            driver.cache.check()
    driver.close()
