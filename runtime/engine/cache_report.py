"""A step's report on the prefix cache: blocks by state and tier, and what has happened to them.

Knows no tensors; of the copies between tiers it sees only how much they moved and how long
that took.
"""

from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from radix_cache.cache import PrefixCache
from radix_cache.stats import CacheStats


class Transfers(Protocol):
    """Totals of moved blocks since the start."""

    def totals(self) -> Mapping[str, tuple[int, float]]:
        """Bytes and seconds by path, as ``device_host``."""
        ...

    @property
    def damaged_blocks(self) -> int: ...


class CacheFields(TypedDict):
    """The fields of ``StepStats`` that tell of the cache."""

    blocks_total: int
    blocks_free: int
    blocks_evictable: int
    blocks_protected: int
    blocks_reserved: int
    evicted_blocks_delta: int
    device_hit_tokens_delta: int
    block_waits_delta: int
    state_slots_total: NotRequired[int]
    state_slots_free: NotRequired[int]
    state_snapshots: NotRequired[int]
    snapshots_taken_delta: NotRequired[dict[str, float]]
    snapshots_lost_delta: NotRequired[dict[str, float]]
    host_states_total: NotRequired[int]
    host_states_used: NotRequired[int]
    disk_states_total: NotRequired[int]
    disk_states_used: NotRequired[int]
    snapshots_raised_delta: NotRequired[int]
    slot_waits_delta: NotRequired[int]
    window_blocks_total: NotRequired[int]
    window_blocks_held: NotRequired[int]
    window_blocks_evicted_delta: NotRequired[int]
    host_blocks_total: NotRequired[int]
    host_blocks_used: NotRequired[int]
    disk_blocks_total: NotRequired[int]
    disk_blocks_used: NotRequired[int]
    host_hit_tokens_delta: NotRequired[int]
    damaged_blocks_delta: NotRequired[int]
    transfer_bytes_delta: NotRequired[dict[str, float]]
    transfer_s_delta: NotRequired[dict[str, float]]


class CacheReport:
    """Turns the totals of a cache and its transfers into the fields of ``StepStats``."""

    def __init__(self, cache: PrefixCache, transfers: Sequence[Transfers]) -> None:
        """``transfers``: of KV first; none of them where there is no tier below."""
        self._cache = cache
        self._transfers = transfers
        self._counted: dict[str, int] = {}
        self._moved: dict[str, tuple[int, float]] = {}

    def collect(self) -> CacheFields:
        """The cache's state, and what has happened since the last call."""
        stats = self._cache.stats()
        evicted = sum(stats.evicted_tokens.values()) // self._cache.block_size
        fields = CacheFields(
            blocks_total=stats.total,
            blocks_free=stats.free,
            blocks_evictable=stats.evictable,
            blocks_protected=stats.protected,
            blocks_reserved=stats.reserved,
            evicted_blocks_delta=self._new("evicted", evicted),
            device_hit_tokens_delta=self._new(
                "device hits", stats.hit_tokens - stats.restored_tokens
            ),
            block_waits_delta=self._new("block waits", stats.block_waits),
        )
        if stats.slots:
            self._add_states(fields, stats)
        if stats.window_blocks:
            total, free = stats.window_blocks, stats.free_window_blocks
            fields["window_blocks_total"] = total
            fields["window_blocks_held"] = total - free - stats.left_window_blocks
            evicted = self._new("window blocks", stats.evicted_window_blocks)
            fields["window_blocks_evicted_delta"] = evicted
        if self._transfers:
            moved = self._totals()
            before, self._moved = self._moved, dict(moved)
            fields["host_blocks_total"] = stats.host_total
            fields["host_blocks_used"] = stats.host_total - stats.host_free
            fields["disk_blocks_total"] = stats.disk_total
            fields["disk_blocks_used"] = stats.disk_total - stats.disk_free
            fields["host_hit_tokens_delta"] = self._new("host hits", stats.restored_tokens)
            fields["damaged_blocks_delta"] = self._new(
                "damaged", sum(each.damaged_blocks for each in self._transfers)
            )
            fields["transfer_bytes_delta"] = {
                path: count - before.get(path, (0, 0.0))[0] for path, (count, _) in moved.items()
            }
            fields["transfer_s_delta"] = {
                path: seconds - before.get(path, (0, 0.0))[1]
                for path, (_, seconds) in moved.items()
            }
        return fields

    def _totals(self) -> dict[str, tuple[int, float]]:
        """Bytes and seconds by path, of all transfers together."""
        totals: dict[str, tuple[int, float]] = {}
        for transfers in self._transfers:
            for path, (count, seconds) in transfers.totals().items():
                before = totals.get(path, (0, 0.0))
                totals[path] = before[0] + count, before[1] + seconds
        return totals

    def _add_states(self, fields: CacheFields, stats: CacheStats) -> None:
        fields["state_slots_total"] = stats.slots
        fields["state_slots_free"] = stats.free_slots
        fields["state_snapshots"] = stats.snapshots
        fields["snapshots_taken_delta"] = self._new_by_kind("taken", stats.snapshots_taken)
        fields["snapshots_lost_delta"] = self._new_by_kind("lost", stats.snapshots_lost)
        fields["host_states_total"] = stats.host_slots
        fields["host_states_used"] = stats.host_slots - stats.host_free_slots
        fields["disk_states_total"] = stats.disk_slots
        fields["disk_states_used"] = stats.disk_slots - stats.disk_free_slots
        fields["snapshots_raised_delta"] = self._new("raised", stats.snapshots_raised)
        fields["slot_waits_delta"] = self._new("slot waits", stats.slot_waits)

    def _new_by_kind(self, name: str, totals: Mapping[str, int]) -> dict[str, float]:
        grown = {kind: self._new(f"{name} {kind}", total) for kind, total in totals.items()}
        return {str(kind): count for kind, count in grown.items() if count}

    def _new(self, name: str, total: int) -> int:
        """The growth of ``total`` since it was asked for last."""
        grown = total - self._counted.get(name, 0)
        self._counted[name] = total
        return grown
