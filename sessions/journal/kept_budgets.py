"""Budgets as a journal has them: what its sessions were told, and what their accounts have spent.

A tenant's budget is in the tenants file and not here. What turns hold that run is not taken off.

Always true: a budget that was set stays with its session's row, until another one replaces it.
"""

from typing import Protocol

from sessions.durable.account import NO_BUDGET, Account
from sessions.durable.budgets import HeldBudget, held_budget
from sessions.journal.records import (
    SessionRecord,
    SpendTotal,
    options_kept,
    tree_account,
)


class Accounts(Protocol):
    """Questions to a journal about accounts."""

    def session(self, tenant: str, name: str) -> SessionRecord | None:
        """A session's record, as ``Journal.session`` has it."""
        ...

    def account(self, tenant: str, name: str) -> SpendTotal:
        """An account's sums, as ``Journal.account`` has them."""
        ...


def budgets_kept(journal: Accounts, record: SessionRecord) -> list[HeldBudget]:
    """All budgets that hold for the session, the nearest first: its own, its tree's, those of the
    trees that it is a part of."""
    own = _held("session", record, record.account)
    found = [] if own is None else [own]
    line: list[SessionRecord] = []
    above: SessionRecord | None = record
    while above is not None and above not in line:
        line.append(above)
        spent = journal.account(above.tenant, tree_account(above.name))
        tree = _held("tree", above, spent)
        found += [] if tree is None else [tree]
        parent = options_kept(above.options).parent
        above = None if parent is None else journal.session(above.tenant, parent)
    return found


def _held(scope: str, record: SessionRecord, spent: SpendTotal) -> HeldBudget | None:
    budget, soft = options_kept(record.options).budgets.get(scope, (NO_BUDGET, NO_BUDGET))
    account = Account(scope=scope, budget=budget, soft=soft, spent=spent.spent)
    return held_budget(scope, record.name, account)
