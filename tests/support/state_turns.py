"""Turns of a model with recurrent layers on a prefix cache, and nothing else."""

from collections.abc import Sequence

import numpy as np

from radix_cache.cache import PrefixCache
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence
from radix_cache.snapshots import SnapshotKind
from tests.support.caches import make_cache


def ids(tokens: Sequence[int]) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def stateful(slots: int = 4, *, running: int = 0, blocks: int = 32, **more: object) -> PrefixCache:
    return make_cache(
        blocks,
        block_size=4,
        restore_cost=float,
        state_slots=slots,
        running_slots=running,
        **more,  # type: ignore[arg-type]
    )


def begin(
    cache: PrefixCache,
    name: str,
    tokens: Sequence[int],
    *,
    tenant: str = "t",
    base: str | None = None,
    adapter: str = "",
) -> CachedSequence:
    sequence = cache.begin(
        branch_id=name,
        tenant=tenant,
        tokens=ids(tokens),
        base_branch_id=base,
        base_offset=None,
        adapter=adapter,
    )
    cache.allocate(sequence, cache.blocks_for(len(tokens) + 1) - sequence.num_blocks)
    return sequence


def turn(
    cache: PrefixCache,
    name: str,
    tokens: Sequence[int],
    *,
    tenant: str = "t",
    base: str | None = None,
    kind: SnapshotKind = SnapshotKind.END,
    lease_s: float = 0.0,
    keep: Sequence[int] = (),
    adapter: str = "",
) -> int:
    """A whole turn that computes all of ``tokens``; returns what it found."""
    sequence = begin(cache, name, tokens, tenant=tenant, base=base, adapter=adapter)
    for position in keep:
        cache.commit(sequence, ids(tokens[:position]))
        cache.keep_state(sequence, ids(tokens[:position]), SnapshotKind.HEADER)
    cache.commit(sequence, ids(tokens))
    cache.finish(sequence, lease_s=lease_s, state_of=ids(tokens), kind=kind)
    return sequence.num_cached_tokens
