"""Whole turns on a prefix cache, for tests that care about what is left between them."""

import numpy as np

from radix_cache.cache import PrefixCache
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence


def transcript(length: int, *, seed: int = 0) -> TokenArray:
    """Random token ids, int32 [length]; equal for equal seeds."""
    return np.random.default_rng(seed).integers(0, 1000, length).astype(np.int32)


def open_turn(
    cache: PrefixCache,
    tokens: TokenArray,
    session: str,
    *,
    tenant: str | None = "t",
    base: str | None = None,
    base_offset: int | None = None,
    adapter: str = "",
) -> CachedSequence:
    """Begin a turn, allocate for all ``tokens`` and commit them; it still runs."""
    sequence = cache.begin(
        branch_id=session,
        tenant=tenant,
        tokens=tokens,
        base_branch_id=base,
        base_offset=base_offset,
        adapter=adapter,
    )
    cache.allocate(sequence, cache.blocks_for(len(tokens)) - sequence.num_blocks)
    cache.commit(sequence, tokens)
    return sequence


def run_turn(
    cache: PrefixCache,
    tokens: TokenArray,
    session: str = "s",
    *,
    tenant: str | None = "t",
    base: str | None = None,
    base_offset: int | None = None,
    lease_s: float | None = 0.0,
) -> CachedSequence:
    """One turn from begin to finish."""
    sequence = open_turn(cache, tokens, session, tenant=tenant, base=base, base_offset=base_offset)
    cache.finish(sequence, lease_s=lease_s)
    return sequence
