"""The branches that the cache knows: which goes by which name, and which of them run.

A name belongs to one tenant: nobody else can use it, extend it or fork it. Knows no blocks and
not how a sequence is opened or ended; it is told so. Always true: a sequence noted to end inside
an edge runs.
"""

from collections.abc import Collection

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.nodes import Owner
from radix_cache.retention import Retention
from radix_cache.state_slots import StateSlots
from radix_cache.tree import RadixTree
from radix_cache.window_rows import WindowRows


class KnownBranches:
    """Handles by branch id, whose owners are in ``tree``, and the sequences that run."""

    def __init__(
        self,
        tree: RadixTree,
        retention: Retention,
        slots: StateSlots | None = None,
        windows: WindowRows | None = None,
    ) -> None:
        self._tree = tree
        self._retention = retention
        self.slots = slots
        """Where states of recurrent layers are kept; None for a model without any."""
        self.windows = windows
        """The rows of layers with a window, where not every block has room for them."""
        self.by_id: dict[str, BranchHandle] = {}
        self._running: set[CachedSequence] = set()
        self._inside: set[CachedSequence] = set()
        """Those that run and may end inside an edge, which is locked whole."""

    # By name

    @property
    def handles(self) -> Collection[BranchHandle]:
        """Those of all branches that have a name, in the order in which they got it."""
        return self.by_id.values()

    def resolve(
        self,
        branch_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_branch_id: str | None,
        adapter: str = "",
    ) -> tuple[Owner, BranchHandle | None, BranchHandle | None]:
        """The owner, the branch's handle, and that of its base: None for those not known, and
        for a base of another tenant or adapter.

        Raises:
            ValueError: the tokens are no prompt, or the branch is another tenant's or adapter's.
        """
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not tokens.flags.c_contiguous:
            raise ValueError(
                f"tokens are {tokens.dtype} {list(tokens.shape)}, contiguous int32 [n] is needed"
            )
        if not len(tokens):
            raise ValueError("an empty prompt")
        tree = self._tree
        owner = tree.publisher(adapter) if tenant is None else tree.owner(tenant, adapter)
        handle = self.by_id.get(branch_id)
        if handle is not None and handle.owner is not owner:
            other = "tenant" if handle.owner.account is not owner.account else "adapter"
            raise ValueError(f"session {branch_id!r} belongs to another {other}")
        base = None
        if base_branch_id is not None:
            base = self.by_id.get(base_branch_id)
            if base is not None and base.owner is not owner:
                base = None
        return owner, handle, base

    def add(self, branch_id: str, owner: Owner) -> BranchHandle:
        """A handle for a branch that is not known yet."""
        handle = self.by_id[branch_id] = BranchHandle(branch_id, owner)
        self._tree.meter.named(handle)
        return handle

    def adapter_of(self, branch_id: str) -> str | None:
        """The adapter that a branch's blocks were computed with; None: it has no handle."""
        handle = self.by_id.get(branch_id)
        return None if handle is None else handle.owner.adapter

    def knows(self, handle: BranchHandle) -> bool:
        """Whether the branch still has its name."""
        return self.by_id.get(handle.branch_id) is handle

    def forget(self, handle: BranchHandle) -> None:
        """Take a branch that does not run off the tree. One that still has its name loses it, and
        gets it anew when its sequence does: nobody has released it."""
        if self.knows(handle):
            del self.by_id[handle.branch_id]
            handle.put_back = True
        self._off_the_tree(handle)

    def release(self, branch_id: str) -> None:
        """Forget a branch; while its sequence is open, only the name. Whoever was told of it is
        told that it is gone, also where the name is not known."""
        handle = self.by_id.pop(branch_id, None)
        if handle is None:
            self._tree.meter.unknown(branch_id)
        elif handle.sequence is None:
            self._off_the_tree(handle)

    def _off_the_tree(self, handle: BranchHandle) -> None:
        if self.slots is not None:
            self.slots.branch_left(handle)
        if self.windows is not None:
            self.windows.branch_left(handle)
        self._retention.forget(handle)
        self._tree.meter.gone(handle)

    def set_queued(self, branch_id: str, queued: bool) -> None:
        """Note whether the branch's next request waits. Unknown ids are ignored."""
        handle = self.by_id.get(branch_id)
        if handle is None or handle.queued == queued:
            return
        handle.queued = queued
        if handle.sequence is None:
            self._retention.settle(handle)

    def at_rest(self, branch_id: str) -> BranchHandle | None:
        """The branch of that name, if it does not run; None: it does, or it is not known."""
        handle = self.by_id.get(branch_id)
        return handle if handle is not None and handle.sequence is None else None

    def tell_residency(self, branch_id: str) -> None:
        """Have a branch told of with the next ``take_residency``. Unknown ids are ignored."""
        handle = self.by_id.get(branch_id)
        if handle is not None:
            self._tree.meter.tell(handle)

    # Those that run

    @property
    def running(self) -> Collection[CachedSequence]:
        """The sequences that run."""
        return self._running

    def begun(self, sequence: CachedSequence) -> None:
        """From now on ``sequence`` runs."""
        self._running.add(sequence)

    def ended(self, sequence: CachedSequence) -> None:
        """From now on ``sequence`` does not run any more."""
        self._running.discard(sequence)
        self._inside.discard(sequence)

    def is_alone(self, sequence: CachedSequence | None) -> bool:
        """Whether no sequence runs but this one; None asks for one that has not begun."""
        return len(self._running) <= (sequence is not None)

    def stopped_inside(self, sequence: CachedSequence) -> None:
        """The path of a running sequence ends inside an edge as of now."""
        self._inside.add(sequence)

    def ending_inside(self) -> list[BranchHandle]:
        """The handles of the running sequences that end inside an edge."""
        if not self._inside:
            return []
        handles = []
        for sequence in list(self._inside):
            handle = sequence.handle
            if handle is None or handle.length == handle.node.end:
                self._inside.discard(sequence)
            else:
                handles.append(handle)
        return handles

    def take_ending_inside(self) -> list[BranchHandle]:
        """The same, for a caller who cuts all of these edges: no sequence ends inside one then."""
        handles = self.ending_inside()
        self._inside.clear()
        return handles
