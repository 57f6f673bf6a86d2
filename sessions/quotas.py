"""Limits on the requests of tenants: which models, and how many turns and tokens a minute.

Each limit is a bucket (token bucket: Turner 1986) that holds a minute's worth and fills
evenly. A turn takes one from the turns as it starts. Tokens are known when a turn has ended
and are taken then: a turn starts while the bucket holds anything, and what a burst overdrew
is waited for. Cached prompt tokens are not counted: they cost next to nothing. Buckets are
in memory and full when the server starts; the limits are looked up at each use, so that
other ones hold at once.

Always true: over any time a tenant begins no more turns than its bucket held and gained.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sessions.tenants import Tenants
from tools_api import errors

MINUTE_S = 60.0


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float

    def fill(self, limit: int, now: float) -> None:
        """Up to now, and no further than ``limit``."""
        gained = (now - self.at_s) * limit / MINUTE_S
        self.level, self.at_s = min(float(limit), self.level + gained), now


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One limit of a tenant."""

    kind: str
    """``turns`` or ``tokens``."""
    limit: int
    """In a minute."""
    used: int
    """The part of it that is used; more than ``limit`` where a burst overdrew it."""


class Quotas:
    """Shared by all connections; only the event loop touches it."""

    def __init__(self, tenants: Tenants, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._tenants = tenants
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        """By tenant and what is counted; of tenants with a limit alone, which a file names."""

    def allows_model(self, tenant: str, names: Collection[str]) -> bool:
        """Whether the tenant may use the model that has these names."""
        allowed = self._tenants.policy(tenant).models
        return allowed is None or not allowed.isdisjoint(names)

    def begin_turn(self, tenant: str) -> None:
        """A turn is about to start.

        Raises:
            ApiError: ``rate_limit_exceeded`` with the time after which it may; nothing is
                taken.
        """
        policy = self._tenants.policy(tenant)
        turns = self._bucket(tenant, "turns", policy.turns_per_minute)
        tokens = self._bucket(tenant, "tokens", policy.tokens_per_minute)
        waits = {}
        if turns is not None and policy.turns_per_minute and turns.level < 1:
            waits[f"{policy.turns_per_minute} turns a minute"] = (
                (1 - turns.level) * MINUTE_S / policy.turns_per_minute
            )
        if tokens is not None and policy.tokens_per_minute and tokens.level <= 0:
            waits[f"{policy.tokens_per_minute} tokens a minute"] = (
                (1 - tokens.level) * MINUTE_S / policy.tokens_per_minute
            )
        if waits:
            limit = max(waits, key=waits.__getitem__)
            raise errors.rate_limited(f"this tenant may use {limit}", retry_after_s=waits[limit])
        if turns is not None:
            turns.level -= 1

    def spend(self, tenant: str, num_tokens: int) -> None:
        """A turn has ended that computed and wrote so many tokens."""
        bucket = self._bucket(tenant, "tokens", self._tenants.policy(tenant).tokens_per_minute)
        if bucket is not None:
            bucket.level -= num_tokens

    def standing(self, tenant: str) -> list[Standing]:
        """How much of each limit is used just now."""
        policy = self._tenants.policy(tenant)
        limits = {"turns": policy.turns_per_minute, "tokens": policy.tokens_per_minute}
        found = []
        for kind, limit in limits.items():
            bucket = self._bucket(tenant, kind, limit)
            if limit is not None and bucket is not None:
                found.append(Standing(kind=kind, limit=limit, used=round(limit - bucket.level)))
        return found

    def models(self, tenant: str) -> list[str] | None:
        """Names of the models that the tenant may use; None: all."""
        allowed = self._tenants.policy(tenant).models
        return None if allowed is None else sorted(allowed)

    def tenants(self) -> set[str]:
        """All that have a key."""
        return self._tenants.names

    def _bucket(self, tenant: str, kind: str, limit: int | None) -> _Bucket | None:
        """As it is now; None where nothing is limited."""
        if limit is None:
            self._buckets.pop((tenant, kind), None)
            return None
        now = self._clock()
        bucket = self._buckets.setdefault((tenant, kind), _Bucket(float(limit), now))
        bucket.fill(limit, now)
        return bucket
