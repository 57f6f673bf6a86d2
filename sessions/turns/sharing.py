"""Accounts that other servers draw on too: what this one may spend of them, and what it gives back.

Budgets of tenants and of trees of sessions hold for all servers of a journal together. Of such an
account this server spends what it has been given of it (``Account.reach``): a turn that lacks
some asks the journal, before it starts and whenever it is to hold more, and waits meanwhile as
for anything else that is looked up. The share goes back once no turn draws on it; a turn that
begins before that has what is left.

Always true: no turn holds more of such an account than this server was given; nothing goes back
while a turn is not written that drew on it. Where one server has its journal for itself nothing
of this happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sessions.durable.account import NOTHING, Account, Amount
from sessions.durable.ledger import Ledger
from sessions.durable.session import Session
from sessions.journal.records import account_names
from sessions.journal.shares import Share, Want

Key = tuple[str, str]
"""Tenant and name of an account."""
Bounded = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of accounts, and the kinds of each that are bounded."""


def above_own(ledger: Ledger) -> tuple[Account, ...]:
    """The accounts of ``account_names``."""
    return (ledger.tree, *ledger.above, *ledger.policies)


@dataclass(slots=True)
class _Use:
    """The use of one account by this server's turns."""

    turns: int = 0
    """That may draw on it: from before their start until they are written."""
    accounts: list[Account] = field(default_factory=list)
    """The accounts of that name; more than one where a session fell out of memory meanwhile."""


class SharedAccounts:
    """The shared accounts of one server. Only the event loop touches it."""

    def __init__(self) -> None:
        self._uses: dict[Key, _Use] = {}
        self._idle: dict[Key, Amount] = {}
        """Accounts that no turn draws on, and what this server has at least of each."""

    @property
    def held(self) -> list[Key]:
        """The accounts that turns draw on, or of which this server has something left."""
        return [*self._uses, *self._idle]

    @property
    def drawn_on(self) -> list[Account]:
        """The accounts that turns of this server draw on."""
        return [account for use in self._uses.values() for account in use.accounts]

    def follow(self, session: Session) -> Bounded:
        """A turn of the session begins: of its bounded accounts it spends what this server is
        given. To be followed by ``done``."""
        names, accounts = account_names(session), above_own(session.ledger)
        return self.follow_accounts(session.tenant, names, accounts)

    def follow_accounts(
        self, tenant: str, names: Sequence[str], accounts: Sequence[Account]
    ) -> Bounded:
        """As ``follow``: of what draws on these accounts, which have these names."""
        bounded = []
        for name, account in zip(names, accounts, strict=True):
            kinds = tuple(kind for kind in account.budget.bounds() if kind != "residency")
            if kinds:
                key = (tenant, name)
                use = self._uses.setdefault(key, _Use())
                use.turns += 1
                if account not in use.accounts:
                    use.accounts.append(account)
                rest = self._idle.pop(key, NOTHING)
                account.name, account.reach = name, (account.reach or NOTHING).plus(rest)
                bounded.append((name, kinds))
        return tuple(bounded)

    def follow_anew(self, before: Bounded, session: Session) -> Bounded:
        """Follow a turn again after a while in which its accounts may have become others."""
        bounded = self.follow(session)
        self.done(session.tenant, before)
        return bounded

    def done(self, tenant: str, bounded: Bounded) -> None:
        """The turn is written, or will not be. What the last one leaves goes back, unless another
        one begins before."""
        for name, _ in bounded:
            key = (tenant, name)
            use = self._uses[key]
            use.turns -= 1
            if not use.turns:
                rest = NOTHING
                for account in use.accounts:
                    rest, account.reach = rest.plus(account.reach or NOTHING), NOTHING
                del self._uses[key]
                self._idle[key] = rest

    def got(self, account: Account, share: Share) -> None:
        """The journal has given something of it."""
        account.reach = (account.reach or NOTHING).plus(share.amount)
        account.spent = account.spent.most(share.spent)

    def unwanted(self, tenant: str, share: Share) -> None:
        """The request that asked for it is gone."""
        key = (tenant, share.name)
        if key not in self._uses:
            self._idle[key] = self._idle.get(key, NOTHING).plus(share.amount)

    def distrust_shares(self) -> None:
        """Others may have had this server's shares back: what is not held is asked for anew."""
        for use in self._uses.values():
            for account in use.accounts:
                account.reach = (account.reach or NOTHING).least(account.held)
        self._idle = dict.fromkeys(self._idle, NOTHING)

    def idle(self) -> list[Key]:
        """Accounts of which nothing is needed: until ``follow`` this server's share may go."""
        return sorted(self._idle)

    def gone(self, key: Key) -> bool:
        """This server is about to have no share of the account any more. False: a turn that has
        begun meanwhile draws on it, so it stays."""
        return self._idle.pop(key, None) is not None

    def still(self, key: Key) -> None:
        """The account's share could not be given back: this server still has it."""
        if key not in self._uses:
            self._idle.setdefault(key, NOTHING)


def wants(lacking: Sequence[tuple[Account, Amount]]) -> tuple[Want, ...]:
    """The shares to ask the journal for."""
    return tuple(
        Want(name=account.name, budget=account.budget, amount=amount) for account, amount in lacking
    )
