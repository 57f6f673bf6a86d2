"""Upkeep of the tiers below the device between steps: prefetches for prompts in the queue, copies
of what is idle, and what an earlier process has left.

Blocks and states go together: neither is of use alone. Always true: without lower tiers there is
nothing to do.
"""

from collections.abc import Iterable

from radix_cache.edge import TokenArray
from radix_cache.evictor import Evictor
from radix_cache.known_branches import KnownBranches
from radix_cache.lower_states import LowerStates
from radix_cache.matching import Match
from radix_cache.nodes import Owner
from radix_cache.retention import Retention
from radix_cache.snapshots import StoredState
from radix_cache.tiers import LowerTiers, Places
from radix_cache.transfers import StoredRun
from radix_cache.tree import RadixTree


class TierUpkeep:
    """The tiers below one device.

    What may go wrong, and how, is written at the methods of the same names of ``PrefixCache``.

    Args:
        lower: None: there are none.
    """

    def __init__(
        self,
        tree: RadixTree,
        lower: LowerTiers | None,
        branches: KnownBranches,
        retention: Retention,
        evictor: Evictor,
    ) -> None:
        self._tree = tree
        self.lower = lower
        self._branches = branches
        self._retention = retention
        self._evictor = evictor
        self._slots = branches.slots

    @property
    def states(self) -> LowerStates | None:
        """Where states are below the device, in caches that have such."""
        return None if self._slots is None else self._slots.kept.lower

    def read(self, owner: Owner, match: Match, tokens: TokenArray) -> int:
        """Order up what is on disk of a prompt that was matched down to there."""
        if self.lower is None:
            return 0
        if self._slots is None:
            end = self.lower.below.reach(match.node, match.position)
            return self.lower.read(self._tree.climb(match.node, end), end) if end else 0
        states, resume = self.states, None
        if states is not None:
            resume = self._slots.find_anywhere(owner, match.node, match.position, tokens)
        if states is None or resume is None:
            return 0
        coming = states.fetch(resume)
        if not (coming or resume.ready):
            return 0
        far = self._tree.climb(match.node, resume.blocks)
        return coming + (self.lower.read(far, resume.blocks) if resume.blocks else 0)

    @property
    def last_order(self) -> int:
        """0 before the first one."""
        return self.lower.last_order if self.lower is not None else 0

    def is_reading(self, last: int) -> bool:
        """Whether one from the disk up to number ``last`` is under way."""
        if self.lower is None:
            return False
        states = self.states
        return self.lower.is_reading(last) or (states is not None and states.is_reading(last))

    @property
    def num_pending_orders(self) -> int:
        """From and to the disk, of blocks and of states."""
        states = 0 if self.states is None else self.states.num_pending
        return states + (self.lower.num_pending if self.lower is not None else 0)

    @property
    def wants_tending(self) -> bool:
        """Whether something is under way, or somebody is expected back."""
        expecting = self.lower is not None and self._retention.expects_returns
        return expecting or self.num_pending_orders > 0

    def copy_down(self) -> None:
        """What branches have above the disk, those used last first."""
        if self.lower is not None:
            ends = {handle.node for handle in self._branches.handles if handle.length}
            self.lower.copy_down(sorted(ends, key=lambda node: -node.last_use))

    def tend(self) -> None:
        """End leases, bring branches back, write idle host memory down."""
        self._retention.end_leases()
        if self.lower is None:
            return
        for handle in self._retention.take_due():
            self._evictor.bring_back(handle)
        self.lower.write_behind()

    def moved(self, number: int, *, ok: bool) -> None:
        """An order is over, of states or of blocks."""
        if self.lower is None:
            raise KeyError(number)
        states = self.states
        if states is None or not states.moved(number, ok=ok):
            self.lower.moved(number, ok=ok)

    def load(self, runs: Iterable[StoredRun], states: Iterable[StoredState]) -> tuple[int, int]:
        """Blocks and states of an earlier process that found their place."""
        if self.lower is None or self.lower.disk is None or self._tree.num_nodes:
            raise ValueError("stored runs are loaded into an empty cache that has a disk")
        places: Places = {}
        blocks = self.lower.load(runs, places)
        known = 0
        if self._slots is not None and self.states is not None:
            known = self._slots.kept.load(states, places)
        return blocks, known
