"""Shares of an account that several servers draw on.

The bounded budgets of tenants and of trees of sessions. A server takes a share before a turn holds
any of it; an ended turn's usage goes from its server's share to what is spent, in the transaction
that writes the turn; the rest goes back when no turn of that server draws on the account. A share
of a server that is dead goes back once what its turns held is written as spent.

KV is in no share: what it is charged in money is within the budget as its server knows it.

Always true: as long as the bounds stay, what turns have spent and all shares together are within
them, but for what KV was charged since a share was taken, and turns that were written so late that
their server had given its share back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from sessions.durable.account import NOTHING, Account, Amount, Budget, is_bound
from sessions.journal import rows
from sessions.journal.records import SpendTotal
from sessions.journal.tables import Cursor, SqlTables, marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """An amount that is asked for of an account which servers share."""

    name: str
    budget: Budget
    amount: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The amount that was given of such an account: what there was of it."""

    name: str
    amount: Amount
    spent: Amount
    """The amount that all servers have spent of the account."""


def take(
    tables: SqlTables, cursor: Cursor, tenant: str, wants: Sequence[Want]
) -> tuple[Share, ...]:
    """Take shares; of kinds that a budget does not bound nothing."""
    given = []
    for want in sorted(wants, key=lambda each: each.name):
        spent = locked_account(tables, cursor, tenant, want.name).spent
        shares = shares_of(cursor, tenant, want.name)
        left = Account(scope="", budget=want.budget).limits.minus(spent)
        for each in shares.values():
            left = left.minus(each)
        amount = Amount(
            *(
                max(0, min(asked, rest)) if is_bound(rest) else 0
                for asked, rest in zip(want.amount, left, strict=True)
            )
        )
        mine = shares.get(tables.owner, NOTHING).plus(amount)
        write(tables, cursor, tenant, want.name, mine)
        given.append(Share(name=want.name, amount=amount, spent=spent))
    return tuple(given)


def give_back(cursor: Cursor, tenant: str, name: str, owner: str) -> None:
    """Give back all of a server's share of an account."""
    sql = "DELETE FROM share WHERE tenant = ? AND name = ? AND owner = ?"
    cursor.execute(sql, (tenant, name, owner))


def mine(tables: SqlTables, cursor: Cursor, tenant: str, name: str) -> Amount | None:
    """This server's share of an account that is locked; None: it has none."""
    return shares_of(cursor, tenant, name).get(tables.owner)


def covers(share: Amount | None, spent: Amount, kinds: Sequence[str]) -> bool:
    """Whether so much of these kinds may be spent of a share."""
    return share is not None and all(getattr(share, kind) >= getattr(spent, kind) for kind in kinds)


def less(share: Amount, amount: Amount) -> Amount:
    """The rest of a share; of a kind of which it has too little nothing."""
    return Amount(*(max(0, a - b) for a, b in zip(share, amount, strict=True)))


def write(tables: SqlTables, cursor: Cursor, tenant: str, name: str, amount: Amount) -> None:
    """Make this server's share so large."""
    key = (tenant, name, tables.owner)
    cursor.execute(
        f"INSERT INTO share ({rows.SHARE}) VALUES ({marks(5)}) "
        "ON CONFLICT (tenant, name, owner) DO UPDATE SET amount = excluded.amount, "
        "checksum = excluded.checksum",
        rows.sealed((*key, orjson.dumps(list(amount)))),
    )


def locked_account(tables: SqlTables, cursor: Cursor, tenant: str, name: str) -> SpendTotal:
    """The account, and its shares, are this transaction's alone."""
    account = tables.account_row(cursor, tenant, name, lock=True)
    if not account.turns:
        tables.lock_name(cursor, "account", tenant, name)
        account = tables.account_row(cursor, tenant, name, lock=True)
    return account


def owners(cursor: Cursor, tenant: str, names: Sequence[str]) -> set[str]:
    """Servers that have shares of these accounts."""
    sql = f"SELECT DISTINCT owner FROM share WHERE tenant = ? AND name IN ({marks(len(names))})"
    return {owner for (owner,) in cursor.execute(sql, (tenant, *names)).fetchall()}


def bury(cursor: Cursor, owner: str) -> None:
    """Drop the shares of a server that is dead, unless turns of its sessions are still to be
    written as spent."""
    sql = (
        "SELECT 1 FROM reservation JOIN session ON session.tenant = reservation.tenant "
        "AND session.name = reservation.session WHERE session.owner = ? LIMIT 1"
    )
    if cursor.execute(sql, (owner,)).fetchone() is None:
        leave(cursor, owner)


def leave(cursor: Cursor, owner: str) -> None:
    """A server that runs no turn any more has no shares."""
    cursor.execute("DELETE FROM share WHERE owner = ?", (owner,))


def shares_of(cursor: Cursor, tenant: str, name: str) -> dict[str, Amount]:
    """The amount that each server holds of an account, by its owner name."""
    sql = f"SELECT {rows.SHARE} FROM share WHERE tenant = ? AND name = ?"
    found = {}
    for row in cursor.execute(sql, (tenant, name)).fetchall():
        _, _, owner, amount = rows.read_sealed(row, "share")
        found[owner] = Amount(*orjson.loads(amount))
    return found
