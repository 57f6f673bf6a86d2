"""The KV and the states that steps read and write, on the device and below, as the loop sees it.

The cache decides in ids what moves between the tiers, the transfer copies; here the two are
kept in step with each other. Knows no sequences and no model.
"""

import logging
import time
from dataclasses import asdict
from typing import Final

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from runtime.engine.cache_report import CacheFields, CacheReport
from runtime.engine.state_memory import StateMemory
from runtime.messages import CachePicture, PictureNode, PictureRequest, Residency
from runtime.model.rank_link import RunnerBroken
from runtime.offload.transfer import KVTransfer

log = logging.getLogger(__name__)

MAX_PICTURED_NODES: Final = 400
MAX_PICTURED_TENANTS: Final = 256
_NODE_BYTES, _GHOST_BYTES = 1536, 256
"""A node of the tree without its arrays, and the record of a run that is gone."""
_POLL_S = 0.002
_CLOSE_S = 8.0
"""An ending engine writes to the disk no longer than this; its parent waits a little longer."""


class KVMemory:
    """One prefix cache, what copies below the device if there is memory, and what carries out the
    cache's orders on states if the model has any."""

    def __init__(
        self,
        cache: PrefixCache,
        transfer: KVTransfer | None,
        states: StateMemory | None = None,
    ) -> None:
        self.cache = cache
        self._states = states
        self._transfer = transfer
        below = None if states is None else states.transfer
        self._transfers = [each for each in (transfer, below) if each is not None]
        """Transfers of KV, and of states."""
        self._report = CacheReport(cache, self._transfers)
        self._spoiled: list[tuple[Tier, int]] = []
        if transfer is not None and states is not None:
            transfer.before_arrival = self._states_first

    @property
    def wants_tending(self) -> bool:
        """Whether ``tend`` has something to do though no sequence runs."""
        return self._transfer is not None and self.cache.wants_tending

    def tend(self) -> None:
        """Take in which copies have ended and order what is due. To be called between steps."""
        self._carry_out()
        if self._transfer is not None:
            self._take_over()
            self.cache.tend()

    def _carry_out(self) -> None:
        """Carry out the cache's orders on states; those that turn out not finite are forgotten."""
        self._states_first()
        spoiled, self._spoiled = self._spoiled, []
        for tier, slot in spoiled:
            self.cache.state_spoiled(tier, slot)

    def _states_first(self) -> None:
        """The same while the cache gives an order of its own: tails are to be copied from blocks
        that are free by now and about to be written."""
        if self._states is not None:
            self._spoiled += self._states.carry_out(self.cache.take_state_orders())

    def settle(self, block_tables: BlockArray, window_tables: BlockArray | None = None) -> None:
        """See to it that a step may use its blocks, and window blocks where there are such: it
        waits for copies that touch them, and for no other."""
        if self._transfer is not None:
            self._transfer.settle(block_tables, window_tables)
        self._carry_out()

    def residency(self) -> tuple[Residency, ...]:
        """Block-time that branches have had of the device, where it is time to tell."""
        told = self.cache.take_residency()
        return tuple([Residency(**row._asdict()) for row in told]) if told else ()

    def report(self) -> CacheFields:
        """The cache's state, and what has happened since the last call."""
        return self._report.collect()

    def memory_bytes(self) -> dict[str, float]:
        """Memory that the tiers below the device and the cache's records take, by part."""
        stats = self.cache.stats()
        return {
            "host_kv": sum(transfer.memory_bytes for transfer in self._transfers),
            "prefix_tree": stats.tree_bytes
            + stats.nodes * _NODE_BYTES
            + stats.ghosts * _GHOST_BYTES,
        }

    def picture(self, request: PictureRequest) -> CachePicture:
        """The upper part of the cache's tree."""
        nodes = self.cache.picture(request.tenant, min(request.max_nodes, MAX_PICTURED_NODES))
        return CachePicture(
            tenant=request.tenant,
            nodes=tuple(PictureNode(**asdict(node)) for node in nodes),
            num_nodes=self.cache.stats().nodes if request.tenant is None else 0,
            tenant_blocks=(
                self.cache.tenant_blocks(MAX_PICTURED_TENANTS) if request.tenant is None else {}
            ),
        )

    def close(self) -> None:
        """Write what sessions may come back for to the disk, if there is one, and end the
        threads."""
        if self._transfer is None:
            return
        try:
            self._copy_down(until=time.monotonic() + _CLOSE_S)
        except RunnerBroken as broken:
            log.info("disk cache is not written at the end: %s", broken)
        finally:
            for transfer in self._transfers:
                transfer.close()

    def _copy_down(self, until: float) -> None:
        """Raises RunnerBroken: another rank is gone, and nothing can be kept on all."""
        self._carry_out()
        self._take_over()
        self.cache.copy_down()
        self._carry_out()
        while self.cache.num_pending_orders and time.monotonic() < until:
            self._take_over()
            time.sleep(_POLL_S)

    def _take_over(self) -> None:
        for transfer in self._transfers:
            transfer.report(self.cache)
