"""Each tenant's share of a tier, and how far above it each is.

A tenant is active for ten minutes after each use of the cache. Active ones have equal shares of
the blocks that sequences can have; others have none. A share is no limit: who is alone may fill
everything, and what nobody wants stays. It only says whose blocks go first when some have to.

Blocks are counted where they are in the tree, once however many branches of a tenant pass
through them, and with what its running sequences have of their own. Published prefixes count for
nobody.

Always true: only tenants that were active within ``ACTIVE_S`` divide the blocks.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from radix_cache.nodes import Account, Tier

ACTIVE_S: Final = 600.0
_LEVELS: Final = 64
"""Owners that differ by less than such a part of the tier are equal: the longest unused goes."""


class Demand(NamedTuple):
    """Blocks that somebody is about to have: they count as its own already, so that who wants
    more than its share makes room by itself."""

    account: Account
    blocks: int


class TenantShares:
    """The tenants that are active, and those that hold too much.

    Args:
        sizes: usable blocks by tier.
        clock: seconds, never decreasing.
        slot_blocks: blocks of the device of which a slot for states takes the memory.
    """

    def __init__(
        self, sizes: Sequence[int], *, clock: Callable[[], float], slot_blocks: int = 0
    ) -> None:
        self._sizes = sizes
        self._clock = clock
        self._slot_blocks = slot_blocks
        self._quanta = [max(1, size // _LEVELS) for size in sizes]
        self._used_s: OrderedDict[Account, float] = OrderedDict()

    def used(self, account: Account) -> None:
        """Note that a tenant uses the cache now; the operator's own use is nobody's."""
        if account.name:
            self._used_s[account] = self._clock()
            self._used_s.move_to_end(account)

    def active(self) -> Collection[Account]:
        """The tenants that have used the cache lately."""
        self._forget_inactive()
        return self._used_s.keys()

    def excess(self, account: Account, tier: int, demand: Demand | None = None) -> int:
        """Blocks of ``tier`` that a tenant has above its share, negative below it."""
        if not account.name:
            return 0
        held = sum(account.tier_blocks[tier])
        if tier == Tier.DEVICE:
            held += account.private_blocks + account.state_slots * self._slot_blocks
        if demand is not None and demand.account is account:
            held += demand.blocks
        self._forget_inactive()
        if account in self._used_s:
            held -= self._sizes[tier] // len(self._used_s)
        return held

    def level(self, excess: int, tier: int) -> int:
        """``excess`` in steps, rounded up: positive exactly where it is."""
        return -(-excess // self._quanta[tier])

    def to_next_level(self, excess: int, tier: int) -> int:
        """How many blocks may go before ``level`` changes, at least 1."""
        quantum = self._quanta[tier]
        return excess - (self.level(excess, tier) - 1) * quantum

    def _forget_inactive(self) -> None:
        since = self._clock() - ACTIVE_S
        while self._used_s:
            account, used_s = next(iter(self._used_s.items()))
            if used_s > since:
                return
            del self._used_s[account]
