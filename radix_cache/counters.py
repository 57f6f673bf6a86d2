"""Counts of what has happened in the cache so far: running totals.

Knows no block and no sequence: who makes something happen counts it. Always true: a total never
falls.
"""

from dataclasses import dataclass, field

from radix_cache.ghosts import MissCause


@dataclass(slots=True)
class Counters:
    """Totals since the start; ``radix_cache.stats`` says what each means."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    restored_tokens: int = 0
    miss_tokens: dict[MissCause, int] = field(default_factory=lambda: dict.fromkeys(MissCause, 0))
    evicted_tokens: dict[MissCause, int] = field(
        default_factory=lambda: {MissCause.EVICTED: 0, MissCause.EXPIRED: 0}
    )
    snapshots_taken: dict[str, int] = field(default_factory=dict)
    """By kind."""
    snapshots_lost: dict[str, int] = field(default_factory=dict)
    snapshots_raised: int = 0
    slot_waits: int = 0
    block_waits: int = 0
    leases_granted: int = 0
    leases_returned: int = 0
    leases_expired: int = 0
    leases_broken: int = 0
    leases_released: int = 0
