"""How long whose KV has been on the device: block-microseconds, a block divided among its holders.

A branch holds the device blocks of its path, whether its sequence runs, its tool does or nobody
waits for it, and while it runs those of its own. A block that several branches hold is divided
equally among them; one that nobody holds is on nobody's account, and so is host memory and disk.

A node keeps what each branch that holds all of it has been charged for it; a branch adds up its
path when it is asked. So a moment costs nothing, and a change as much as it changes: a node or
two, however many blocks they have and however many branches hold them. Whole numbers only. What
does not divide evenly is carried to the next division.

Always true: what branches are charged and ``undivided`` together are the block-microseconds for
which blocks were held.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from radix_cache.handle import BranchHandle
from radix_cache.nodes import Holder, Node

MICROSECONDS: Final = 1_000_000
TELL_EVERY: Final = MICROSECONDS
"""A branch that nothing happens to is told of so often."""
TOLD_AT_ONCE: Final = 16
"""Rows told in one step for branches that nothing happens to, so that no step is held up by how
many there are."""


class Residency(NamedTuple):
    """The charge of one branch since it was told of last."""

    branch_id: str
    block_us: int
    gone: bool
    """It was released: nothing is charged to it again, unless its name is used anew."""


class ResidencyMeter:
    """Told of every change before it is made.

    Args:
        clock: seconds, never decreasing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.undivided = 0
        """Block-microseconds that have not been charged yet, fewer than any block has had
        holders."""
        self._due: dict[BranchHandle, None] = {}
        """To be told of at once."""
        self._unknown: list[str] = []
        """Names that were released and that no branch had: to be told of at once as well."""
        self._others: deque[BranchHandle] = deque()
        """Every branch that has a name, the one told of longest ago first."""

    def _now(self) -> int:
        return int(self.clock() * MICROSECONDS)

    # Nodes

    def changes(self, node: Node) -> None:
        """The size or the tier of ``node`` is about to change."""
        self._accrue(node, self._now())

    def _accrue(self, node: Node, now: int) -> None:
        """Charge the holders of ``node`` up to now."""
        span, node.since = now - node.since, now
        if not span or node.tier:
            return
        if node.inside:
            self._accrue_parts(node, span)
        elif node.takers == 1:
            node.charge += node.size * span
        elif node.takers:
            share, self.undivided = divmod(node.size * span + self.undivided, node.takers)
            node.charge += share

    def _accrue_parts(self, node: Node, span: int) -> None:
        """The same where sequences end inside the edge, by the parts between their ends."""
        inside = node.inside or ()
        if len(inside) > 1:
            inside = sorted(inside, key=_end)
        holders, at, charge = node.takers + len(inside), node.start, 0
        for holder in inside:
            share, self.undivided = divmod((holder.length - at) * span + self.undivided, holders)
            charge, at = charge + share, holder.length
            holder.charge += charge
            holders -= 1
        if holders:
            share, self.undivided = divmod((node.end - at) * span + self.undivided, holders)
            node.charge += charge + share

    def splits(self, lower: Node, upper: Node, position: int) -> None:
        """``upper``, still without a holder, is about to get the blocks of ``lower`` before
        ``position``, and those who end there."""
        now = self._now()
        self._accrue(lower, now)
        upper.since, upper.takers = now, lower.takers
        inside, lower.inside = lower.inside, None
        for holder in inside or ():
            if holder.length < position:
                upper.inside = [*(upper.inside or ()), holder]
                continue
            upper.takers += 1
            if holder.length > position:
                lower.inside = [*(lower.inside or ()), holder]

    def joins(self, lower: Node, upper: Node) -> None:
        """``lower``, inside which nobody ends, is about to get the blocks of ``upper``, at whose
        end nobody stands."""
        assert not lower.inside
        now = self._now()
        self._accrue(lower, now)
        self._accrue(upper, now)
        lower.charge += upper.charge

    def removes(self, leaf: Node) -> None:
        """``leaf`` is about to go, and its holders to fall back to the end of its parent."""
        self._accrue(leaf, self._now())
        for holder in leaf.holders:
            holder.charge += leaf.charge

    # Holders

    def moves(self, holder: Holder, node: Node, length: int) -> None:
        """``holder`` is about to stand at ``length`` of ``node``."""
        old = holder.node
        if old is node and holder.length == length:
            return
        now = self._now()
        leaving = old
        if holder.length < old.end:
            self._accrue(old, now)
            assert old.inside is not None
            old.inside.remove(holder)
            assert old.parent is not None
            leaving = old.parent
        joining = node
        if length < node.end:
            self._accrue(node, now)
            node.inside = [*(node.inside or ()), holder]
            assert node.parent is not None
            joining = node.parent
        while leaving is not joining:
            if leaving.parent is not None and leaving.end >= joining.end:
                self._accrue(leaving, now)
                leaving.takers -= 1
                holder.charge += leaving.charge
                leaving = leaving.parent
            elif joining.parent is not None:
                self._accrue(joining, now)
                joining.takers += 1
                holder.charge -= joining.charge
                joining = joining.parent
            else:
                return

    def private(self, handle: BranchHandle, blocks: int) -> None:
        """A running sequence is about to have so many more blocks of its own."""
        now = self._now()
        handle.charge += handle.private * (now - handle.private_since)
        handle.private += blocks
        handle.private_since = now

    def charged(self, handle: BranchHandle) -> int:
        """Block-microseconds of a branch so far."""
        return self._charged(handle, self._now())

    def _charged(self, handle: BranchHandle, now: int) -> int:
        node = handle.node
        if handle.length < node.end:
            self._accrue(node, now)
            assert node.parent is not None
            node = node.parent
        charge = handle.charge + handle.private * (now - handle.private_since)
        while node.parent is not None:
            self._accrue(node, now)
            charge += node.charge
            node = node.parent
        return charge

    # Telling

    def named(self, handle: BranchHandle) -> None:
        """A branch has got its name: it is told of from now on."""
        handle.private_since = handle.looked_at = self._now()
        self._others.append(handle)

    def tell(self, handle: BranchHandle) -> None:
        """Tell of a branch with the next ``take``."""
        self._due[handle] = None

    def gone(self, handle: BranchHandle) -> None:
        """A branch has left the tree and has no name any more."""
        handle.gone = True
        self._due[handle] = None

    def unknown(self, branch_id: str) -> None:
        """A name was released that no branch has: nothing was charged to it, or its end was told,
        and whoever released it hears so."""
        self._unknown.append(branch_id)

    @property
    def watches(self) -> bool:
        """Whether ``take`` may have something to tell later though nothing happens."""
        return bool(self._others)

    def take(self) -> list[Residency]:
        """Charges of branches since they were told of last: those that something happened to, and
        some of the others, each once a second where they are not too many."""
        now = self._now()
        told = [Residency(branch_id, 0, gone=True) for branch_id in self._unknown]
        self._unknown.clear()
        for handle in self._due:
            self._tell(handle, now, told)
        self._due.clear()
        others = self._others
        for _ in range(min(len(others), TOLD_AT_ONCE)):
            handle = others[0]
            if now - handle.looked_at < TELL_EVERY and not handle.gone:
                break
            others.popleft()
            if not handle.gone:
                handle.looked_at = now
                others.append(handle)
                self._tell(handle, now, told)
        return told

    def _tell(self, handle: BranchHandle, now: int, told: list[Residency]) -> None:
        charge = self._charged(handle, now)
        released = handle.gone and not handle.put_back
        if charge > handle.told or released:
            told.append(Residency(handle.branch_id, charge - handle.told, released))
            handle.told = charge


def _end(holder: Holder) -> int:
    return holder.length
