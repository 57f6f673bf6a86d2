"""Budgets that the operator sets for a tenant's day and month, and for an API key.

Each has an account of its own, beside that of the tenant's budget in all. A day and a month are
those of UTC, by the journal's clock; in the journal the account's name says which it is, so that
what was spent outlives a restart and is known to all servers. A turn draws on the accounts of the
moment in which it begins, also where it ends in the next day. A clock that is set back, over
midnight or from a year that it was wrong about, comes back to the accounts that it left.

Always true: a budget that was set anew, or lowered, holds from the next turn on; what was spent
under its name stays.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from sessions.durable.account import NO_BUDGET, NOTHING, Account, Amount, Budget

PERIODS_KEPT = 4
"""Periods of one budget whose accounts are kept, the one that was begun last among them."""

Every = Literal["day", "month"]
Scope = Literal["tenant", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBudget:
    """A budget as the operator has set it."""

    scope: Scope
    every: Every | None = None
    """How long it holds; None: for ever."""
    budget: Budget = NO_BUDGET
    warn_at: float | None = None
    """The part of a bound from which on it is told that it is nearly spent."""


class Period(NamedTuple):
    """A day, a month, or all time."""

    name: str
    """The period's name, ``2026-11-30`` or ``2026-11``; empty: for ever."""
    ends: str
    """When the next one begins, as ISO 8601 has it."""


FOR_EVER = Period("", "")


def period_at(every: Every | None, now_s: float) -> Period:
    """The one that has that moment, in seconds since the epoch."""
    if every is None:
        return FOR_EVER
    now = datetime.fromtimestamp(now_s, UTC)
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if every == "day":
        return Period(f"{begins:%Y-%m-%d}", f"{begins + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}")
    first = begins.replace(day=1)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return Period(f"{first:%Y-%m}", f"{following:%Y-%m-%dT%H:%M:%SZ}")


class PolicyAccount(Account):
    """The account of one such budget in one period."""

    __slots__ = ("_warned", "every", "owner", "period", "warn_at")

    def __init__(
        self, policy: PolicyBudget, *, name: str, owner: str, period: Period, spent: Amount
    ) -> None:
        """
        Args:
            name: its name in the journal.
            owner: the tenant, or the key.
        """
        super().__init__(scope=policy.scope, budget=policy.budget, spent=spent)
        self.name = name
        self.owner = owner
        self.every = policy.every
        self.period = period
        self.warn_at = policy.warn_at
        self._warned: set[str] = set()

    @property
    def whose(self) -> str:
        """Whose budget it is, in words of an error; as ``Account.whose``."""
        of = {None: "", "day": " of this day", "month": " of this month"}[self.every]
        return f"the {self.scope}'s budget{of}"

    @property
    def renewal(self) -> str:
        """When there is more of it, in words of an error; as ``Account.renewal``."""
        return f"; there is more from {self.period.ends}" if self.period.ends else ""

    def beyond_warning(self) -> list[str]:
        """Kinds of which so much is spent that it is to be told."""
        warn_at = self.warn_at
        if warn_at is None:
            return []
        bounds = self.budget.bounds().items()
        return [kind for kind, bound in bounds if getattr(self.spent, kind) >= warn_at * bound]

    def newly_beyond(self) -> list[str]:
        """Kinds beyond the warning that were not told yet, or are so again: a bound was raised."""
        beyond = self.beyond_warning()
        new = [kind for kind in beyond if kind not in self._warned]
        self._warned = set(beyond)
        return new


class PolicyAccounts:
    """A tenant's accounts of the moment. Only the event loop touches them."""

    def __init__(
        self,
        tenant: str,
        budgets_of: Callable[[str], Sequence[PolicyBudget]],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            tenant: its name.
            budgets_of: those that hold for one of its keys; asked at every turn.
            clock: seconds since the epoch, as the journal counts them.
        """
        self._tenant = tenant
        self._budgets_of = budgets_of
        self._clock = clock
        self._accounts: dict[str, PolicyAccount] = {}
        self._kept: dict[str, Amount] = {}
        """Amounts that the journal said were spent, by account's name."""

    def load(self, spent: Mapping[str, Amount]) -> None:
        """A journal was opened: so much was spent under these names."""
        self._kept = dict(spent)
        for name, account in self._accounts.items():
            account.spent = account.spent.most(self._kept.get(name, NOTHING))

    def for_key(self, key: str) -> tuple[Account, ...]:
        """The accounts on which a turn under that key draws that begins now."""
        policies = self._budgets_of(key)
        if not policies:
            return ()
        now_s = self._clock()
        return tuple(self._account(key, policy, now_s) for policy in policies)

    def _account(self, key: str, policy: PolicyBudget, now_s: float) -> PolicyAccount:
        period = period_at(policy.every, now_s)
        stem = "tenant" if policy.scope == "tenant" else f"key/{key}"
        name = f"{stem}/{period.name}" if period.name else f"{stem}/ever"
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = PolicyAccount(
                policy,
                name=name,
                owner=self._tenant if policy.scope == "tenant" else key,
                period=period,
                spent=self._kept.pop(name, NOTHING),
            )
            self._forget_long_over(stem, policy.every)
        account.budget, account.warn_at = policy.budget, policy.warn_at
        return account

    def _forget_long_over(self, stem: str, every: Every | None) -> None:
        """Of the accounts of one budget those that were made long ago: turns that draw on them have
        them still."""
        made = [
            account.name
            for account in self._accounts.values()
            if account.every == every and account.name.rpartition("/")[0] == stem
        ]
        for name in made[:-PERIODS_KEPT]:
            del self._accounts[name]


def newly_warned(accounts: Iterable[Account]) -> list[tuple[PolicyAccount, str]]:
    """Accounts and kinds of which enough is spent now to tell it, each once."""
    return [
        (account, kind)
        for account in accounts
        if isinstance(account, PolicyAccount)
        for kind in account.newly_beyond()
    ]
