"""Limits on the requests of tenants: which models, and how many turns and tokens a minute.

Each limit is a bucket (token bucket: Turner 1986) that holds a minute's worth and fills
evenly. A turn takes one from the turns as it starts. Tokens are known when a turn has ended
and are taken then: a turn starts while the bucket holds anything, and what a burst overdrew
is waited for. Cached prompt tokens are not counted: they cost next to nothing. Buckets are
in memory and full when the server starts; the limits are looked up at each use, so that
other ones hold at once.

Servers of a cluster share a bucket, which is in their journal: each draws a second's worth of it,
at least one turn, and has that in stock. What ended turns overdrew is paid with the next draw, or
soon. While nothing can be drawn a server goes on with its part of the limit alone.

Always true: over any time a tenant begins no more turns than its bucket held and gained, but for
one draw of each server of a cluster.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from sessions.tenants import TenantPolicy, Tenants
from tools_api import errors

MINUTE_S = 60.0
_LEAST = {"turns": 1.0, "tokens": 1e-9}
"""The least that a bucket has to hold for a turn to begin, by kind."""


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float

    def fill(self, limit: float, now: float) -> None:
        """Up to now, and no further than ``limit``."""
        gained = (now - self.at_s) * limit / MINUTE_S
        self.level, self.at_s = min(max(limit, 1.0), self.level + gained), now

    def wait_s(self, limit: float, least: float) -> float:
        """Until it holds so much; 0: it does."""
        return 0.0 if self.level >= least else (1 - self.level) * MINUTE_S / limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """An amount of a limit that is wanted from the bucket that servers share."""

    cluster: str
    """The cluster whose servers share the bucket."""
    kind: str
    """The limit's kind: ``turns`` or ``tokens``."""
    limit: int
    """The limit, for a minute."""
    amount: float
    debt: float = 0.0
    """Used beyond what was drawn: it is taken whatever the bucket holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The amount of it that was given: what there was."""

    kind: str
    amount: float
    left: float
    """The level that is left in the bucket; negative where it is overdrawn."""
    wait_s: float
    """When there is something again; 0 where something was given."""


@dataclass(slots=True)
class _Stock:
    """This server's part of a shared bucket."""

    level: float = 0.0
    left: float | None = None
    """The level of the shared bucket, when it was drawn on last."""
    empty_until_s: float = 0.0
    """Before that nothing can be drawn."""
    alone: _Bucket | None = None
    """While nothing can be asked for: this server's part of the limit."""


@dataclass(slots=True)
class Servers:
    """The servers that draw on the same buckets."""

    cluster: str | None
    """The cluster's name; None: this server stands alone."""
    count: int = 1
    """The number of servers, as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """One limit of a tenant, and its use."""

    kind: str
    """The limit's kind: ``turns`` or ``tokens``."""
    limit: int
    """The limit, for a minute."""
    used: int
    """The part of it that is used; more than ``limit`` where a burst overdrew it."""


class Quota:
    """The limits of one tenant, and how much of them is used."""

    def __init__(
        self,
        tenant: str,
        policy: Callable[[], TenantPolicy],
        servers: Servers,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            tenant: its name.
            policy: its limits; asked at each use.
            clock: monotonic seconds.
        """
        self.tenant = tenant
        self._policy = policy
        self._servers = servers
        self._clock = clock
        self._stocks: dict[str, _Stock] = {}
        self._buckets: dict[str, _Bucket] = {}
        """Buckets by what is counted; only of what has a limit."""

    @property
    def models(self) -> list[str] | None:
        """Names of the models that the tenant may use; None: all."""
        allowed = self._policy().models
        return None if allowed is None else sorted(allowed)

    def allows_model(self, names: Collection[str]) -> bool:
        """Whether the tenant may use the model that has these names."""
        allowed = self._policy().models
        return allowed is None or not allowed.isdisjoint(names)

    def begin_turn(self) -> None:
        """A turn is about to start.

        Raises:
            ApiError: ``rate_limit_exceeded`` with the time after which it may; nothing is
                taken.
        """
        waits, limits = {}, self._limits()
        for kind, least in _LEAST.items():
            limit = limits[kind]
            wait_s = 0.0 if limit is None else self._wait_s(kind, limit, least)
            if wait_s > 0:
                waits[f"{limit} {kind} a minute"] = wait_s
        if waits:
            limit_told = max(waits, key=waits.__getitem__)
            raise errors.rate_limited(
                f"this tenant may use {limit_told}", retry_after_s=waits[limit_told]
            )
        self._take("turns", 1)

    def spend(self, num_tokens: int) -> None:
        """A turn has ended that computed and wrote so many tokens."""
        self._take("tokens", num_tokens)

    def standing(self) -> list[QuotaUse]:
        """How much of each limit is used just now."""
        found = []
        for kind, limit in self._limits().items():
            if limit is None:
                continue
            left = self._left(kind, limit)
            found.append(QuotaUse(kind=kind, limit=limit, used=round(limit - left)))
        return found

    def _limits(self) -> dict[str, int | None]:
        policy = self._policy()
        limits = {"turns": policy.turns_per_minute, "tokens": policy.tokens_per_minute}
        if self._buckets or self._stocks:
            for kind in (kind for kind, limit in limits.items() if limit is None):
                self._buckets.pop(kind, None)
                self._stocks.pop(kind, None)
        return limits

    def _wait_s(self, kind: str, limit: int, least: float) -> float:
        """When a turn may begin as far as this limit says; 0: now."""
        if self._servers.cluster is None:
            return self._bucket(kind, limit).wait_s(limit, least)
        stock, now = self._stock(kind), self._clock()
        if stock.level >= least:
            return 0.0
        if stock.alone is not None:
            part = limit / self._servers.count
            stock.alone.fill(part, now)
            return stock.alone.wait_s(part, least)
        return max(stock.empty_until_s - now, MINUTE_S / limit)

    def _take(self, kind: str, amount: float) -> None:
        limit = self._limits()[kind]
        if limit is None:
            return
        if self._servers.cluster is None:
            self._bucket(kind, limit).level -= amount
            return
        stock = self._stock(kind)
        if stock.alone is not None and stock.level < _LEAST[kind]:
            stock.alone.level -= amount
        else:
            stock.level -= amount

    def _left(self, kind: str, limit: int) -> float:
        if self._servers.cluster is None:
            return self._bucket(kind, limit).level
        stock = self._stock(kind)
        return stock.level + (limit if stock.left is None else stock.left)

    def _bucket(self, kind: str, limit: int) -> _Bucket:
        """The bucket, filled up to now."""
        now = self._clock()
        bucket = self._buckets.setdefault(kind, _Bucket(float(limit), now))
        bucket.fill(limit, now)
        return bucket

    # Buckets that servers share

    def lacking(self) -> tuple[Draw, ...]:
        """The draws without which no turn of the tenant can begin; none where it need not be
        asked for, or is known to be in vain."""
        found = []
        for kind, limit in self._limits().items():
            if limit is None or self._servers.cluster is None:
                continue
            stock = self._stock(kind)
            if stock.level < _LEAST[kind] and self._clock() >= stock.empty_until_s:
                amount = max(1.0, float(limit // MINUTE_S))
                debt = max(-stock.level, 0.0)
                found.append(self._draw(kind, limit, amount, debt))
                stock.level += debt
        return tuple(found)

    def debts(self) -> list[Draw]:
        """Draws for what ended turns used beyond what was drawn. They count as paid unless they are
        handed to ``unpaid``."""
        found = []
        for kind, stock in list(self._stocks.items()):
            limit = self._limits()[kind]
            if limit is not None and stock.level < 0:
                found.append(self._draw(kind, limit, 0, -stock.level))
                stock.level = 0.0
        return found

    def drawn(self, found: Iterable[Drawn]) -> None:
        """The bucket has given something, or has nothing."""
        for each in found:
            stock = self._stock(each.kind)
            stock.level += each.amount
            stock.left, stock.alone = each.left, None
            stock.empty_until_s = self._clock() + each.wait_s

    def unpaid(self, draws: Iterable[Draw]) -> None:
        """The draws could not be asked for: until that is over this server goes on with its
        part."""
        now = self._clock()
        for each in draws:
            stock = self._stock(each.kind)
            stock.level -= each.debt
            if stock.alone is None:
                part = each.limit / self._servers.count / MINUTE_S
                stock.alone = _Bucket(max(part, 1.0), now)

    def _draw(self, kind: str, limit: int, amount: float, debt: float) -> Draw:
        cluster = self._servers.cluster or ""
        return Draw(cluster=cluster, kind=kind, limit=limit, amount=amount, debt=debt)

    def _stock(self, kind: str) -> _Stock:
        return self._stocks.setdefault(kind, _Stock())


class Quotas:
    """The quotas of all tenants. Shared by all connections; only the event loop touches them."""

    def __init__(
        self, tenants: Tenants, clock: Callable[[], float], *, cluster: str | None = None
    ) -> None:
        """
        Args:
            clock: monotonic seconds.
            cluster: its servers draw on the same buckets; None: nobody else does.
        """
        self._tenants = tenants
        self._clock = clock
        self.servers = Servers(cluster)
        self._quotas: dict[str, Quota] = {}

    def for_tenant(self, tenant: str) -> Quota:
        """The quota of the tenant with that name: the same object each time."""
        quota = self._quotas.get(tenant)
        if quota is None:
            policy = self._tenants.policy_of(tenant)
            quota = self._quotas[tenant] = Quota(tenant, policy, self.servers, self._clock)
        return quota

    def debts(self) -> list[tuple[Quota, Draw]]:
        """The debts of all tenants; as ``Quota.debts``."""
        return [(quota, debt) for quota in self._quotas.values() for debt in quota.debts()]

    def part_of(self, most: int | None) -> int | None:
        """This server's part of what all of a cluster may have together; None of None."""
        return None if most is None else -(-most // max(self.servers.count, 1))

    def tenants(self) -> set[str]:
        """Names of the tenants that have a key."""
        return self._tenants.names
