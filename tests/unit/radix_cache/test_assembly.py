"""The parts of a prefix cache: what there is of them for which configuration."""

import pytest

from radix_cache.assembly import Parts, assemble
from radix_cache.config import CacheConfig
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMover
from radix_cache.tree import hash_tokens
from tests.support.clock import FakeClock


class NoCopies(BlockMover):
    """Is never asked."""


def made(config: CacheConfig, mover: BlockMover | None = None) -> Parts:
    return assemble(
        config,
        clock=FakeClock(),
        restore_cost=float,
        reload_cost=None,
        mover=mover,
        hash_block=hash_tokens,
    )


def test_without_lower_tiers_nothing_is_below_the_device() -> None:
    parts = made(CacheConfig(num_blocks=8))
    assert parts.pool.num_free == 8
    assert parts.matcher.lowest is Tier.DEVICE


def test_where_there_is_host_memory_a_match_reaches_into_it() -> None:
    parts = made(CacheConfig(num_blocks=8, host_blocks=4), NoCopies())
    assert parts.matcher.lowest is Tier.HOST


def test_lower_tiers_need_something_that_copies() -> None:
    with pytest.raises(ValueError, match="4 host and 0 disk blocks, but no mover"):
        made(CacheConfig(num_blocks=8, host_blocks=4))
