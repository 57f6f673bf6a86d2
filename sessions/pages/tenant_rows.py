"""A tenant as operators see it: what it used, what it may use, what it was refused and why.

Money leaves here in dollars, as in ``sessions.pages.rows``.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from sessions.durable.account import Account
from sessions.durable.ledger import wire_bounds
from sessions.durable.session import Session, SessionState
from sessions.pages.dashboard import Dashboard
from sessions.pages.rows import miss_rows
from sessions.quotas import Quotas

MAX_ERROR_CODES = 20
_LOOKED_AT = 1000


class TenantRows:
    """Makes the rows of the dashboard's page of tenants."""

    def __init__(self, dashboard: Dashboard, quotas: Quotas | None) -> None:
        """``quotas``: None where nobody has any."""
        self._dashboard = dashboard
        self._quotas = quotas

    def named(self) -> set[str]:
        """Tenants that have a key, whether or not they were heard of."""
        return set() if self._quotas is None else self._quotas.tenants()

    def row(self, tenant: str, blocks: Mapping[str, int] | None) -> dict[str, Any]:
        """``blocks``: the engine's, by tenant; None: not known yet."""
        board = self._dashboard
        totals = board.totals({tenant})
        count, sessions = board.store.live_sessions(tenant)
        kv = board.engine_state()["kv_blocks"]
        held = None if blocks is None else blocks.get(tenant, 0)
        return totals.numbers() | {
            "tenant": tenant,
            "sessions": count,
            "running": _running(itertools.islice(sessions, _LOOKED_AT)),
            "kv_blocks": held,
            "kv_share": None if held is None else held / max(sum(kv.values()), 1),
            "models": None if self._quotas is None else self._quotas.of(tenant).models,
            "limits": [*self._rates(tenant), *_bounds(board.store.tenant(tenant).account)],
            "budget_ends": dict(totals.budget_ends),
            "errors": dict(totals.errors.most_common(MAX_ERROR_CODES)),
            "misses": miss_rows(totals.missed),
        }

    def _rates(self, tenant: str) -> list[dict[str, Any]]:
        standing = [] if self._quotas is None else self._quotas.of(tenant).standing()
        return [
            {"kind": each.kind, "per": "minute", "limit": each.limit, "used": each.used}
            for each in standing
        ]


def _bounds(account: Account) -> list[dict[str, Any]]:
    """The tenant's budget, what running turns hold counted as used."""
    used, bounds = account.spent.plus(account.held), account.budget.bounds()
    limits = wire_bounds(bounds)
    spent = wire_bounds({kind: getattr(used, kind) for kind in bounds})
    return [
        {"kind": kind, "per": "all", "limit": limit, "used": spent[kind]}
        for kind, limit in limits.items()
    ]


def _running(sessions: Iterable[Session]) -> int:
    """How many of them run a turn; those that do are among the most recently active."""
    return sum(each.state is SessionState.RUNNING for each in sessions)
