"""What a step tells of the prefix cache: blocks by state and tier, and what has happened to them.

Knows no tensors; of the copies between tiers it sees only how much they moved and how long
that took.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from radix_cache.cache import PrefixCache


class Transfers(Protocol):
    """Totals since the start."""

    def totals(self) -> Mapping[str, tuple[int, float]]:
        """Bytes and seconds by path, as ``device_host``."""
        ...

    @property
    def damaged_blocks(self) -> int: ...


class CacheReport:
    """Turns the totals of a cache and its transfers into the fields of ``StepStats``."""

    def __init__(self, cache: PrefixCache, transfers: Transfers | None) -> None:
        self._cache = cache
        self._transfers = transfers
        self._told: dict[str, float] = {}

    def take(self) -> dict[str, Any]:
        """Fields of ``StepStats`` by name; deltas count from the last call."""
        stats = self._cache.stats()
        evicted = sum(stats.evicted_tokens.values()) // self._cache.block_size
        fields: dict[str, Any] = {
            "blocks_total": stats.total,
            "blocks_free": stats.free,
            "blocks_evictable": stats.evictable,
            "blocks_protected": stats.protected,
            "blocks_reserved": stats.reserved,
            "evicted_blocks_delta": self._new("evicted", evicted),
            "device_hit_tokens_delta": self._new(
                "device_hits", stats.hit_tokens - stats.restored_tokens
            ),
        }
        if self._transfers is None:
            return fields
        return fields | {
            "host_blocks_total": stats.host_total,
            "host_blocks_used": stats.host_total - stats.host_free,
            "disk_blocks_total": stats.disk_total,
            "disk_blocks_used": stats.disk_total - stats.disk_free,
            "host_hit_tokens_delta": self._new("host_hits", stats.restored_tokens),
            "damaged_blocks_delta": self._new("damaged", self._transfers.damaged_blocks),
            "transfer_bytes_delta": self._transferred(0),
            "transfer_s_delta": self._transferred(1),
        }

    def _transferred(self, which: int) -> dict[str, float]:
        assert self._transfers is not None
        totals = self._transfers.totals()
        return {path: self._new(f"{path} {which}", pair[which]) for path, pair in totals.items()}

    def _new(self, name: str, total: float) -> float:
        """What ``total`` has grown by since it was asked for last."""
        grown = total - self._told.get(name, 0)
        self._told[name] = total
        return grown
