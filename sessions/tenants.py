"""API keys, what each lets its holder do, and the tenants they belong to.

A tenant is the border of everything that is shared: prefix cache, stored responses,
sessions, the dashboard's rows. It follows from the key alone, never from what a client
writes in a message. Without any key everyone is the same tenant and an operator. Keys are
held as digests; where they are read from is in ``sessions.tenants_file``.

Always true: telling whether a key is right takes the same time for every wrong key.
"""

import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tools_api.requests import Bounds

DEFAULT_TENANT = "default"
MIN_KEY_CHARS = 8

NO_BOUNDS = Bounds()

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_KEY = re.compile(r"[!-~]+")


class KeyFileError(ValueError):
    """The keys cannot be used. The message says which one and why, never the key."""


class Role(enum.StrEnum):
    """The rights that a key gives."""

    OPERATOR = "operator"
    """A tenant's key that also shows what concerns the whole server: metrics, all tenants."""
    TENANT = "tenant"
    """Turns, and all that belongs to its tenant."""
    READ_ONLY = "read-only"
    """Shows what belongs to its tenant; starts, changes and ends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The asker, as far as the key tells."""

    tenant: str
    role: Role = Role.TENANT
    key_name: str = ""
    """The key's name, for logs and to know the holders of a key that is revoked."""

    @property
    def operator(self) -> bool:
        """May see what concerns the whole server: metrics, all tenants' sessions."""
        return self.role is Role.OPERATOR

    @property
    def read_only(self) -> bool:
        """Whether the key may look and not touch."""
        return self.role is Role.READ_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is held: its digest, and whom it stands for."""

    sha256: bytes
    principal: Principal

    def __post_init__(self) -> None:
        if len(self.sha256) != hashlib.sha256().digest_size:
            raise KeyFileError("a key's sha256 is 64 hexadecimal digits")
        for kind, name in (("tenant", self.principal.tenant), ("key", self.principal.key_name)):
            if not _NAME.fullmatch(name):
                raise KeyFileError(f"{kind} name {name!r} is not 1 to 64 of A-Z a-z 0-9 _ . -")

    @classmethod
    def of(cls, key: str, *, tenant: str, role: Role = Role.TENANT, name: str = "") -> "ApiKey":
        """From the key itself; its name is made from the digest where none is given.

        Raises:
            KeyFileError: the key is short or has characters that headers cannot carry, or a
                name has others than it may.
        """
        if not _KEY.fullmatch(key) or len(key) < MIN_KEY_CHARS:
            raise KeyFileError(
                f"a key must be {MIN_KEY_CHARS} or more printable ASCII characters without spaces"
            )
        digest = key_digest(key)
        principal = Principal(tenant=tenant, role=role, key_name=name or f"key-{digest.hex()[:8]}")
        return cls(sha256=digest, principal=principal)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """Prices of tokens for a tenant, in nano-dollars per million; the parts are those of
    ``sessions.durable.ledger.PriceTable``."""

    input_uncached: int
    input_cached: int
    output: int
    reasoning: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """A budget of a tenant or of a key."""

    bounds: Bounds
    every: Literal["day", "month"] | None = None
    """How long it holds, in UTC; None: for ever."""
    warn_at: float | None = None
    """The part of a bound from which on its spending is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """Rights and limits of a tenant, whichever of its keys asks; None is no bound."""

    models: frozenset[str] | None = None
    """Names of the models; one name of a model is enough."""
    turns_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt tokens that had to be computed, and output tokens."""
    budget: Bounds = NO_BOUNDS
    """The tenant's budget in all."""
    warn_at: float | None = None
    """The part of a bound of ``budget`` from which on its spending is told."""
    periods: tuple[BudgetTerms, ...] = ()
    """Budgets by day and month, beside the one in all."""
    keys: Mapping[str, tuple[BudgetTerms, ...]] = field(default_factory=dict)
    """Budgets of its keys, by name."""
    prices: TokenPrices | None = None
    """The prices of its tokens; None: what the server's cost."""
    connections: int | None = None
    """Sockets that it may have open; None: what the server lets any tenant have."""


UNBOUNDED = TenantPolicy()


class Tenants:
    """Finds the principal of a key, and what its tenant may use."""

    def __init__(
        self, keys: Iterable[ApiKey], policies: Mapping[str, TenantPolicy] | None = None
    ) -> None:
        """``policies``: by tenant; those that it does not name are unbounded."""
        self._keys = tuple(keys)
        self._policies = dict(policies or {})

    @property
    def open(self) -> bool:
        """No key is configured: everyone who reaches the port is let in."""
        return not self._keys

    @property
    def names(self) -> set[str]:
        """Names of all tenants that have a key."""
        return {key.principal.tenant for key in self._keys}

    def authenticate(self, key: str | None) -> Principal | None:
        """The principal of ``key``; None if it is wrong, or missing where one is needed."""
        if self.open:
            return Principal(tenant=DEFAULT_TENANT, role=Role.OPERATOR)
        offered = key_digest(key or "")
        found = None
        for known in self._keys:  # all of them: a hit must not be faster
            if hmac.compare_digest(known.sha256, offered):
                found = known.principal
        return found

    def policy_of(self, tenant: str) -> Callable[[], TenantPolicy]:
        """The tenant's policy, to be asked for at each use and not kept: another file may be read
        meanwhile."""
        return partial(self._policies.get, tenant, UNBOUNDED)

    def replace(
        self, keys: Iterable[ApiKey], policies: Mapping[str, TenantPolicy]
    ) -> frozenset[Principal]:
        """Take other keys and policies from now on. Returns the principals whose keys are good
        no more, or stand for something else: what they still have open is to be ended."""
        former, self._keys = self._keys, tuple(keys)
        now = dict(policies)
        self._policies.clear()  # the same table: ``policy_of`` was handed out
        self._policies.update(now)
        return frozenset(key.principal for key in set(former) - set(self._keys))


def single_key(key: str) -> ApiKey:
    """One key for everything: its holder is tenant and operator."""
    return ApiKey.of(key, tenant=DEFAULT_TENANT, role=Role.OPERATOR)


def key_digest(key: str) -> bytes:
    """SHA-256 of a key's UTF-8: 32 bytes, so that comparing does not tell a key's length.

    A plain digest holds, since keys are drawn at random; it
    would not for words that people choose.
    """
    return hashlib.sha256(key.encode()).digest()
