"""The prefix cache of most tests: a small pool, a clock that stands, every invariant checked."""

from collections.abc import Callable
from typing import Any

from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from radix_cache.edge import TokenArray
from radix_cache.transfers import BlockMover
from radix_cache.tree import hash_tokens


def make_cache(
    num_blocks: int = 32,
    *,
    block_size: int = 4,
    debug: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
    restore_cost: Callable[[int], float] | None = None,
    reload_cost: Callable[[int], float] | None = None,
    mover: BlockMover | None = None,
    hash_block: Callable[[TokenArray, int], int] = hash_tokens,
    **knobs: Any,
) -> PrefixCache:
    """A cache; ``knobs`` are further fields of CacheConfig."""
    return PrefixCache(
        CacheConfig(num_blocks=num_blocks, block_size=block_size, debug=debug, **knobs),
        clock=clock,
        restore_cost=restore_cost,
        reload_cost=reload_cost,
        mover=mover,
        hash_block=hash_block,
    )
