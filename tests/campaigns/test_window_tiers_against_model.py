"""Random turns of models whose rows behind a window are given back, with host memory and disk below
the device: what a step reads is always what was computed for these very tokens, wherever it has
been, also after a restart.

KEEPWARM_WINDOW_OPERATIONS sets how many operations are played, KEEPWARM_WINDOW_SEED where the seeds
begin.
"""

from typing import Any

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.handle import CachedSequence
from radix_cache.nodes import Tier
from tests.campaigns.test_windows_against_model import LANES, OPERATIONS, Driver, play
from tests.support.rows_mover import RowsMover


class Tiered(Driver):
    """The same with tiers below; orders from and to the disk end in any order, some fail."""

    def below(self, blocks: int, room: int) -> dict[str, Any]:
        rng = self.rng
        host = rng.randint(1, 80)
        sizes = {
            "host_blocks": host,
            "host_window_blocks": rng.randint(1, host),
            "disk_blocks": rng.choice([0, rng.randint(1, 200)]),
        }
        self.mover = RowsMover(
            self.all.slots,
            self.near.slots,
            host=host,
            host_near=sizes["host_window_blocks"],
            disk=sizes["disk_blocks"],
        )
        self.fails = rng.random() < 0.3
        return {**sizes, "mover": self.mover, "restore_cost": lambda tokens: 0.1 * tokens}

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            self._complete()
        elif kind < 0.3:
            self.cache.tend()
        elif kind < 0.36 and self.branches:
            self._prefetch()
        elif kind < 0.37:
            self.cache.copy_down()
        elif kind < 0.375:
            self._restart()
        elif kind < 0.39 and self.branches:
            self.cache.drop_branch(rng.choice(list(self.branches)))
        elif kind < 0.42:
            self.now += 3.0
        else:
            super().step()
        self.counts["brought down"] = self.mover.near_moved[Tier.DEVICE, Tier.HOST]
        self.counts["brought up"] = self.mover.near_moved[Tier.HOST, Tier.DEVICE]
        self.counts["read"] = self.mover.near_moved[Tier.DISK, Tier.HOST]
        self.counts["copied"] = self.mover.near_moved[Tier.DEVICE, Tier.DISK]

    def _complete(self) -> None:
        pending = self.mover.pending
        if pending:
            move = pending.pop(self.rng.randrange(len(pending)))
            ok = not (self.fails and self.rng.random() < 0.2)
            if ok:
                self.mover.copy(move)
            self.cache.moved(move.number, ok=ok)

    def _prefetch(self) -> None:
        name = self.rng.choice(list(self.branches))
        tokens = np.array([*self.branches[name], 1], dtype=np.int32)
        self.cache.prefetch(
            branch_id=name, tenant=name[0], tokens=tokens, base_branch_id=name, base_offset=None
        )

    def restore(self, cached: CachedSequence) -> None:
        if not cached.num_restorable_blocks or self.rng.random() < 0.2:
            return
        found = cached.num_cached_tokens + cached.num_restorable_tokens
        before = self.cache.stats()
        try:
            self.cache.restore(cached)
        except OutOfBlocks:
            assert cached.num_cached_tokens < found, "a failed restore changed something"
            assert self.cache.stats().window_blocks == before.window_blocks
            raise
        assert cached.num_cached_tokens == found, "restored less than found"
        self.counts["restored"] += 1
        if self.rng.random() < 0.1:
            self.counts["given up"] += 1
            raise OutOfBlocks("somebody was faster")

    def _restart(self) -> None:
        """End in order, or as a crash would."""
        if self.rng.random() < 0.7:
            for turn in list(self.turns):
                self.end(turn)
            self.cache.copy_down()
            while self.mover.pending:
                self._complete()
            self.cache.check()
        self.turns, self.branches = [], {}
        self.mover.restart()
        self.cache = self.made()
        if self.knobs["disk_blocks"]:
            found, _ = self.cache.load(self.mover.stored.values())
            self.counts["known again"] += found
            for run in list(self.mover.stored.values()):
                if not run.content.position:
                    self._remember(run.content.tenant)

    def _remember(self, tenant: str) -> None:
        """A branch that goes on from what is on the disk, as one does that was told of again."""
        node = self.cache.tree.owner(tenant).root
        tokens: list[int] = []
        while children := list(self.cache.tree.children(node)):
            node = self.rng.choice(children)
            tokens += node.edge.token_ids().tolist()
        if not tokens:
            return
        self.number += 1
        name = f"{tenant}{self.number}"
        prompt = np.array([*tokens, 1], dtype=np.int32)
        self.cache.prefetch(branch_id=name, tenant=tenant, tokens=prompt)
        self.cache.finish(self.cache.begin(branch_id=name, tenant=tenant, tokens=prompt))
        self.branches[name] = tokens

    def drain(self) -> None:
        super().drain()
        while self.mover.pending:
            self._complete()
        self.cache.check()


@pytest.mark.parametrize("lane", range(LANES))
def test_steps_read_what_was_computed_for_their_tokens_wherever_it_has_been(lane: int) -> None:
    counts = play(lane, Tiered)
    if OPERATIONS >= 6000:
        kinds = {"restored", "brought down", "brought up", "resumed", "without rows"}
        assert kinds <= {kind for kind, count in counts.items() if count}
    if OPERATIONS >= 60_000:
        kinds = {"read", "copied", "known again", "given up"}
        assert kinds <= {kind for kind, count in counts.items() if count}
