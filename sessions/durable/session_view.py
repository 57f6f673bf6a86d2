"""One session as whoever lists sessions shows it: a copy of what it is, has and may spend.

Knows neither the store nor a page. Always true: nothing of the session can be changed by it.
"""

from dataclasses import dataclass, field

from sessions.durable.account import Account
from sessions.durable.budgets import HeldBudget, held_budgets, tightest
from sessions.durable.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session as the dashboard shows it. Money in nano-dollars."""

    session: str
    tenant: str
    state: str
    """The session's state: ``idle``, ``running``, ``waiting_for_tools`` or ``closed``."""
    turns: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    forced_tokens: int
    cost: int
    saved: int
    budget_left: dict[str, int]
    """The rest of those ``account.KINDS`` that are limited for it or for a tree that it is in, the
    least that any of these budgets leaves: tokens, and nano-dollars of ``cost``."""
    idle_s: float
    """Seconds since its last turn began or ended."""
    budget: dict[str, int] = field(default_factory=dict)
    """The bounds that leave so much, in the units of ``budget_left``."""
    budgets: tuple[HeldBudget, ...] = ()
    """The budgets that the session keeps to, and the tenant's."""
    parent: str | None = None
    """The session on whose budget it draws."""
    residency: int = 0
    """Block-microseconds of KV on the device, as recorded with its turns and after them."""


def view_of(session: Session, tenant: Account, now: float) -> SessionView:
    """The session as it stands; ``tenant`` is its tenant's account."""
    ledger = session.ledger
    budgets = held_budgets(session, tenant)
    least = tightest(each for each in budgets if each.scope != "tenant")
    return SessionView(
        session=session.name,
        tenant=session.tenant,
        state=session.state.value,
        turns=ledger.turns,
        input_tokens=ledger.usage.input_tokens,
        cached_tokens=ledger.usage.cached_tokens,
        output_tokens=ledger.usage.output_tokens,
        forced_tokens=ledger.usage.forced_tokens,
        cost=ledger.cost,
        saved=ledger.saved,
        budget_left={kind: left for kind, (left, _) in least.items()},
        idle_s=now - session.last_active_s,
        budget={kind: limit for kind, (_, limit) in least.items()},
        budgets=budgets,
        parent=None if session.parent is None else session.parent.name,
        residency=ledger.usage.residency,
    )
