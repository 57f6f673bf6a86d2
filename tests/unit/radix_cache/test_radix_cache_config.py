"""What a configuration of the prefix cache refuses."""

from typing import Any

import pytest

from radix_cache.config import CacheConfig

WINDOWS = {"window_blocks": 6, "window_tokens": 8, "step_tokens": 4}


def test_a_pool_is_all_that_has_to_be_said() -> None:
    config = CacheConfig(num_blocks=1)
    assert (config.block_size, config.policy, config.reserve_blocks) == (16, "lease", 0)
    assert (config.host_blocks, config.disk_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_blocks": 0}, "a pool of 0 blocks"),
        ({"block_size": 0}, "a block of 0 tokens"),
        ({"policy": "fifo"}, "cache policy 'fifo': 'lease' or 'lru'"),
        ({"reserve_blocks": -1}, "a reserve of -1 of 8 blocks"),
        ({"reserve_blocks": 8}, "a reserve of 8 of 8 blocks"),
        ({"lease_cap_s": -1.0}, "neither may be negative"),
        ({"kappa": -1.0}, "neither may be negative"),
        ({"rescue_share": -0.5}, "a rescue share of -0.5"),
        ({"ghost_records": -1}, "-1 ghost records"),
        ({"host_blocks": -1}, "at least 1 host block"),
        ({"host_blocks": 8, "disk_blocks": -1}, "at least 1 host block"),
        ({"disk_blocks": 8}, "at least 1 host block"),
        (WINDOWS | {"step_tokens": 0}, "6 window blocks for windows of 8 tokens and steps of 0"),
        (WINDOWS | {"state_slots": 2}, "window blocks beside slots for states"),
        (WINDOWS | {"host_blocks": 4}, "0 of 4 host blocks have room for rows"),
        (WINDOWS | {"host_window_blocks": 2}, "2 of 0 host blocks have room for rows"),
    ],
)
def test_sizes_and_times_that_make_no_sense_are_refused(
    knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CacheConfig(**{"num_blocks": 8} | knobs)


def test_limits_are_taken() -> None:
    CacheConfig(
        num_blocks=8,
        reserve_blocks=7,
        lease_cap_s=0.0,
        kappa=0.0,
        ghost_records=0,
        host_blocks=1,
        disk_blocks=1,
    )
    CacheConfig(num_blocks=8, host_blocks=4, host_window_blocks=1, **WINDOWS)
