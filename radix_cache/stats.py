"""The cache in numbers: a snapshot that crosses to metrics and tests."""

from dataclasses import dataclass, field

from radix_cache.ghosts import MissCause
from radix_cache.handle import CachedSequence
from radix_cache.tiers import LowerTiers


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Blocks by state, and totals since the start.

    free + evictable + protected + reserved == total.
    """

    total: int
    free: int
    """Free blocks that a new turn may take at once."""
    reserved: int
    """Free blocks kept for turns that already run."""
    evictable: int
    """Blocks in the tree that no running or queued turn holds: idle and leased ones."""
    protected: int
    """Blocks that running and queued turns hold, in the tree and private."""
    idle: int
    leased: int
    queued: int
    running: int
    """Blocks of the tree by class."""
    private: int
    """Blocks of running turns outside the tree."""
    sessions: int
    nodes: int
    tree_bytes: int
    """Host memory of the tree's token and block arrays."""
    ghosts: int
    """Records of evicted runs."""

    prompt_tokens: int
    """Prompt tokens of the turns that ran. Hits and misses add up to them."""
    hit_tokens: int
    miss_tokens: dict[str, int]
    """By value of MissCause."""
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
    leases: dict[str, int]
    """Leases granted, and how they ended: ``returned`` in time, ``expired``, ``broken`` when
    other turns took all blocks, ``over_budget`` of the tenant, ``released`` with their session."""


@dataclass(slots=True)
class Counters:
    """Running totals; only the cache writes them."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    restored_tokens: int = 0
    miss_tokens: dict[MissCause, int] = field(default_factory=lambda: dict.fromkeys(MissCause, 0))
    evicted_tokens: dict[MissCause, int] = field(
        default_factory=lambda: {MissCause.EVICTED: 0, MissCause.EXPIRED: 0}
    )
    leases_granted: int = 0
    leases_returned: int = 0
    leases_expired: int = 0
    leases_broken: int = 0
    leases_over_budget: int = 0
    leases_released: int = 0

    def admitted(self, sequence: CachedSequence) -> None:
        """Count the prompt of a turn that begins to run."""
        self.prompt_tokens += sequence.num_prompt_tokens
        self.hit_tokens += sequence.num_cached_tokens
        for cause, count in sequence.misses.items():
            self.miss_tokens[cause] += count

    def snapshot(self, lower: LowerTiers | None, **blocks: int) -> CacheStats:
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
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            restored_tokens=self.restored_tokens,
            miss_tokens={cause.value: n for cause, n in self.miss_tokens.items()},
            evicted_tokens={cause.value: n for cause, n in self.evicted_tokens.items()},
            leases={
                "granted": self.leases_granted,
                "returned": self.leases_returned,
                "expired": self.leases_expired,
                "broken": self.leases_broken,
                "over_budget": self.leases_over_budget,
                "released": self.leases_released,
            },
            **blocks,
        )
