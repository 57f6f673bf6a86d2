"""The rules of who keeps its blocks between sequences, and who may evict whom.

A branch that is not running is queued (its next request has arrived), leased (its tool runs)
or idle. Any sequence takes idle blocks. A warm sequence, one that finds most of its transcript
here, also takes leased ones, first of the branch that is thought to be back last: its end goes, and
what is not needed of it stays leased. What a tenant has leased above its share of the cache
anyone takes. A sequence that is alone may
take all that no sequence runs on, so that nothing blocks for ever. With leasing off, branches
are idle between sequences and only age decides.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from radix_cache.counters import Counters
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.leases import Leases
from radix_cache.nodes import IDLE, LEASED, QUEUED, Account, Tier
from radix_cache.tenant_shares import Demand, TenantShares
from radix_cache.tree import RadixTree


class Retention:
    """Puts branches without an open sequence into block classes.

    Args:
        tree: whose holders the branches are.
        leases: how long, and which end when.
        counters: of the cache; lease outcomes are written here.
        clock: seconds.
        leasing: False for plain LRU.
        shares: which tenant is how far above its share.
        rescue_share: a sequence that is alone waits for leases that end within this share of
            the time that computing its prompt takes, before it breaks any.
        stateful: a branch whose end has no state any more has nothing left to keep.
    """

    def __init__(
        self,
        tree: RadixTree,
        leases: Leases,
        counters: Counters,
        *,
        clock: Callable[[], float],
        leasing: bool,
        shares: TenantShares,
        rescue_share: float,
        stateful: bool = False,
    ) -> None:
        self._tree = tree
        self._leases = leases
        self.counters = counters
        self.clock = clock
        self._leasing = leasing
        self.shares = shares
        self._rescue_share = rescue_share
        self._stateful = stateful
        self._broken: list[tuple[BranchHandle, float]] = []
        """Since the last ``keep_rest``, with the ends of their leases."""

    def rights(self, sequence: CachedSequence | None, *, alone: bool) -> int:
        """The highest class that a sequence may evict; None asks for a cold one.

        A sequence that has begun to run breaks leases to grow, whatever it was when it came: it
        could only give up otherwise, in the middle of its output.
        """
        runs = sequence is not None and sequence.admitted
        if alone:
            if sequence is None or runs or not self._rescue_share:
                return QUEUED
            wait_s = self._rescue_share * self._leases.restore_s(sequence.num_prompt_tokens)
            if self._leases.next_end_s > self.clock() + wait_s:
                return QUEUED
        return LEASED if runs or (sequence is not None and sequence.warm) else IDLE

    def end_leases(self) -> None:
        """Let branches go idle whose lease is over."""
        if self._leases.empty:
            return
        now = self.clock()
        while (handle := self._leases.take_ended(now)) is not None:
            handle.lease_ran_out = True
            self._end_lease(handle)
            self.counters.leases_expired += 1

    @property
    def expects_returns(self) -> bool:
        """Whether ``take_due`` has branches still to come."""
        return self._leases.expects_returns

    def take_due(self) -> Iterator[BranchHandle]:
        """Branches that are expected back soon, each once per lease."""
        now = self.clock()
        while (handle := self._leases.take_due(now)) is not None:
            yield handle

    def sequence_admitted(self, handle: BranchHandle) -> None:
        """The branch's next request runs: what was promised until then is kept."""
        if handle.leased_until:
            handle.leased_until = 0.0
            self.counters.leases_returned += 1
        handle.lease_ran_out = handle.queued = False
        handle.expected_s = 0.0

    def sequence_ended(
        self, handle: BranchHandle, lease_s: float | None, *, answered: bool = False
    ) -> None:
        """Let a running branch go, with a lease of ``lease_s`` seconds, None for the
        estimate, 0 for none but the one it may still have."""
        if self._leasing and lease_s != 0.0 and handle.length:
            tokens = handle.length * self._tree.block_size
            seconds = self._leases.length_s(tokens, lease_s, answered=answered)
            if seconds > 0.0:
                handle.away_since_s = self.clock()
                handle.leased_until = handle.away_since_s + seconds
                handle.hinted = lease_s is not None
                self.counters.leases_granted += 1
        self.settle(handle)

    def settle(self, handle: BranchHandle) -> None:
        """Put a branch without an open sequence into the class it has a right to."""
        tree, owner = self._tree, handle.owner
        if owner.is_published or (handle.queued and self._leasing):
            tree.hold(handle, QUEUED)
        elif handle.leased_until:
            tree.hold(handle, LEASED)
            self._leases.watch(handle, self.clock())
        else:
            tree.hold(handle, IDLE)

    def leased_above_shares(self, unlocked: Mapping[tuple[Account, int], int]) -> int:
        """Blocks that are leased by tenants above their share, as far as they would still be
        above it without what they have idle. They are anyone's, if there is anyone else.

        Args:
            unlocked: by owner and class, blocks that count as running and need not.
        """
        active = self.shares.active()
        if len(active) < 2 or not (self._tree.class_blocks[LEASED] or unlocked):
            return 0
        blocks = 0
        for account in active:
            leased = account.class_blocks[LEASED] + unlocked.get((account, LEASED), 0)
            idle = account.class_blocks[IDLE] + unlocked.get((account, IDLE), 0)
            if leased:
                blocks += max(0, min(leased, self.shares.excess(account, Tier.DEVICE) - idle))
        return blocks

    def break_lease_above_share(self, demand: Demand) -> bool:
        """Let the branch go idle that is thought to be back last, of the tenant whose leases
        are furthest above its share; False if nobody has leases above it. ``keep_rest`` is to
        follow."""
        active = self.shares.active()
        if len(active) < 2 or not self._tree.class_blocks[LEASED]:
            return False
        levels = {
            account: self.shares.level(excess, Tier.DEVICE)
            for account in active
            if account.class_blocks[LEASED]
            and (excess := self.shares.excess(account, Tier.DEVICE, demand)) > 0
        }
        leased = [handle for handle in self._leases.live() if handle.owner.account in levels]
        if leased:
            self._break_one(leased, levels)
        return bool(leased)

    def _break_one(self, leased: list[BranchHandle], levels: dict[Account, int]) -> None:
        now = self.clock()
        victim = max(leased, key=lambda h: (levels[h.owner.account], _away_s(h, now)))
        self._broken.append((victim, victim.leased_until))
        self._end_lease(victim)

    def break_claim(
        self, rights: int, branches: Iterable[BranchHandle], demand: Demand | None = None
    ) -> None:
        """Let one branch of a class up to ``rights`` go idle: of the leased ones the one that is
        thought to be back last of the tenant furthest above its share, else of the queued ones
        the least recently used, published prefixes last. ``keep_rest`` is to follow when the
        blocks are taken.

        A branch is used by every sequence that passes through its blocks; of two that the same
        sequence used the longer one goes, since the shorter one's blocks are of no use without it.
        The caller knows that there is one.
        """
        leased = self._leases.live()
        if leased:
            shares, tier = self.shares, Tier.DEVICE
            accounts = {handle.owner.account for handle in leased}
            self._break_one(
                leased, {a: shares.level(shares.excess(a, tier, demand), tier) for a in accounts}
            )
            return
        assert rights >= QUEUED
        victim = min(
            (h for h in branches if h.klass == QUEUED),
            key=lambda h: (
                h.owner.is_published,
                self._tree.last_use_below(h.node),
                -h.length,
            ),
        )
        victim.queued = False
        self.counters.leases_broken += victim.leased_until > 0.0
        self._end_lease(victim)

    def keep_rest(self) -> None:
        """Branches whose lease was broken hold on to what was not taken of them: most of the
        time that is nearly all, and with it they come back warm."""
        for handle, until in self._broken:
            whole = not self._stateful or handle.end is not None
            if handle.length and not handle.node.tier and whole:
                handle.leased_until = until
                self._tree.hold(handle, LEASED)
            else:
                self.counters.leases_broken += 1
        self._broken.clear()

    def break_one(self, handle: BranchHandle) -> None:
        """The state at the end of a branch is gone: what it was promised goes with it."""
        self.counters.leases_broken += handle.leased_until > 0.0
        handle.queued = False
        self._end_lease(handle)

    def forget(self, handle: BranchHandle) -> None:
        """Take ``handle`` off the tree; its blocks stay there, idle."""
        self.counters.leases_released += handle.leased_until > 0.0
        self._end_lease(handle)
        self._tree.drop(handle)

    def drop(self, handle: BranchHandle) -> None:
        """Break what ``handle`` was promised and take it off the tree; it keeps its name."""
        self.counters.leases_broken += handle.leased_until > 0.0
        handle.queued = False
        handle.expected_s = 0.0
        self._end_lease(handle)
        self._tree.drop(handle)
        handle.shortened()

    def _end_lease(self, handle: BranchHandle) -> None:
        handle.leased_until = 0.0
        self._tree.hold(handle, IDLE)


def _away_s(handle: BranchHandle, now: float) -> float:
    """Seconds until a leased branch is thought to be back: what its caller said, else as long
    again as it has been away. Most pauses are short and a few very long, so that the longer one
    has lasted the longer it goes on."""
    return handle.leased_until - now if handle.hinted else now - handle.away_since_s
