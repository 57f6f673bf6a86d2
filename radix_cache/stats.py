"""The cache in numbers: a snapshot that crosses to metrics and tests."""

from dataclasses import dataclass

from radix_cache.counters import Counters
from radix_cache.tiers import LowerTiers


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Blocks by state, and totals since the start.

    free + evictable + protected + reserved == total.
    """

    total: int
    free: int
    """Free blocks that a new sequence may take at once."""
    reserved: int
    """Free blocks kept for sequences that already run."""
    evictable: int
    """Blocks in the tree that no running or queued sequence holds: idle and leased ones."""
    protected: int
    """Blocks that running and queued sequences hold, in the tree and private."""
    idle: int
    leased: int
    queued: int
    running: int
    """Blocks of the tree by class."""
    private: int
    """Blocks of running sequences outside the tree."""
    branches: int
    nodes: int
    tree_bytes: int
    """Host memory of the tree's token and block arrays."""
    ghosts: int
    """Records of evicted runs."""
    slots: int
    """Slots for states of recurrent layers; running sequences have what is neither free nor a
    snapshot."""
    free_slots: int
    snapshots: int
    host_slots: int
    host_free_slots: int
    disk_slots: int
    disk_free_slots: int
    """Slots for states below the device."""
    window_blocks: int
    """Blocks that rows of layers with a window have room for; 0 where every block has it."""
    free_window_blocks: int
    left_window_blocks: int
    """Those whose rows nobody reads or is thought to come back to."""
    evicted_window_blocks: int
    """Blocks that have lost such rows to others since the start."""

    prompt_tokens: int
    """Prompt tokens of the sequences that ran. Hits and misses add up to them."""
    hit_tokens: int
    miss_tokens: dict[str, int]
    """Tokens that were not found, by the value of the ``MissCause``."""
    evicted_tokens: dict[str, int]
    """Tokens whose blocks were evicted, by ``evicted`` and ``expired``."""
    host_total: int
    host_free: int
    """Blocks of host memory, 0 where it is not used."""
    disk_total: int
    disk_free: int
    restored_tokens: int
    """Prompt tokens that came back from host memory; ``hit_tokens`` has them too."""
    moved_blocks: dict[str, int]
    """Blocks ordered to move, by ``device_host``, ``host_device``, ``host_disk`` and
    ``disk_host``."""
    failed_blocks: int
    """Blocks that could not be written to the disk or read from it unharmed."""
    snapshots_taken: dict[str, int]
    """By kind, and of these the ones that were lost since."""
    snapshots_lost: dict[str, int]
    snapshots_raised: int
    """Sequences that began with a state from host memory."""
    slot_waits: int
    """Times a sequence was not let in because there was no slot for it."""
    block_waits: int
    """The same of blocks, as ``waits_for_blocks`` was told."""
    leases: dict[str, int]
    """Leases granted, and how they ended: ``returned`` in time, ``expired``, ``broken`` when
    other sequences took all blocks, ``released`` with their branch."""


def snapshot(counters: Counters, lower: LowerTiers | None, **blocks: int) -> CacheStats:
    """The totals beside ``blocks``, the fields of CacheStats that are not totals."""
    host = lower.host if lower is not None else None
    disk = lower.disk if lower is not None else None
    moved = lower.moved_blocks if lower is not None else {}
    return CacheStats(
        host_total=host.num_blocks if host is not None else 0,
        host_free=host.num_free if host is not None else 0,
        disk_total=disk.num_blocks if disk is not None else 0,
        disk_free=disk.num_free if disk is not None else 0,
        moved_blocks={f"{a.name}_{b.name}".lower(): n for (a, b), n in moved.items()},
        failed_blocks=lower.failed_blocks if lower is not None else 0,
        prompt_tokens=counters.prompt_tokens,
        hit_tokens=counters.hit_tokens,
        restored_tokens=counters.restored_tokens,
        miss_tokens={cause.value: n for cause, n in counters.miss_tokens.items()},
        evicted_tokens={cause.value: n for cause, n in counters.evicted_tokens.items()},
        snapshots_taken=dict(counters.snapshots_taken),
        snapshots_lost=dict(counters.snapshots_lost),
        snapshots_raised=counters.snapshots_raised,
        slot_waits=counters.slot_waits,
        block_waits=counters.block_waits,
        leases={
            "granted": counters.leases_granted,
            "returned": counters.leases_returned,
            "expired": counters.leases_expired,
            "broken": counters.leases_broken,
            "released": counters.leases_released,
        },
        **blocks,
    )
