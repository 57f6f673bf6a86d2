"""Which budgets a request sets, and which accounts a session draws on.

A session's turns draw on its own account, on that of its tree, on the trees of its parent
sessions up to the root, and on its tenant's. A parent is named once and stays.

Always true: sessions and their parents form trees of bounded depth; an account above a session
counts what every session below it spends.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace

from sessions.durable.account import NO_BUDGET, Account, Budget
from sessions.durable.ledger import PriceTable, block_us, nano_dollars
from sessions.durable.policies import PolicyAccount, PolicyBudget, Scope
from sessions.durable.session import Session
from sessions.tenants import NO_BOUNDS, BudgetTerms, TenantPolicy
from tools_api import errors, requests
from tools_api.limits import Limits


def bounds_of(wire: requests.Bounds) -> Budget:
    """A request's bounds, money in nano-dollars."""
    return Budget(
        input_uncached=wire.input_uncached,
        input_cached=wire.input_cached,
        output=wire.output,
        reasoning=wire.reasoning,
        cost=None if wire.cost is None else nano_dollars(wire.cost),
        residency=None if wire.residency is None else block_us(wire.residency),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBudget:
    """A budget that a session's turns have to keep to, as it stands. Amounts by kind, in tokens,
    nano-dollars and block-microseconds."""

    scope: str
    """``session``, ``tree``, ``tenant`` or ``key``."""
    owner: str
    """The session whose budget, or whose tree's, it is; the tenant, the key."""
    limit: dict[str, int]
    left: dict[str, int]
    """The rest of each kind of ``limit``; what running turns hold is taken off."""
    soft: dict[str, int]
    """Bounds from which on turns carry a warning."""
    spent: dict[str, int] = field(default_factory=dict)
    """The spent amounts of each kind of ``limit`` and ``soft``."""
    held: dict[str, int] = field(default_factory=dict)
    """The amounts of each kind that running turns hold."""
    every: str | None = None
    """``day`` or ``month``; None: for ever."""
    renews: str | None = None
    """When there is more of it, as ISO 8601 has it."""
    warned: tuple[str, ...] = ()
    """Kinds of which so much is spent that the operator is told."""


def held_budget(scope: str, owner: str, account: Account) -> HeldBudget | None:
    """A budget as it stands; None: nothing bounds the account."""
    limit, soft = account.budget.bounds(), account.soft.bounds()
    if not (limit or soft):
        return None
    left = {kind: max(left, 0) for kind, left in account.left().bounds().items()}
    spent = {kind: getattr(account.spent, kind) for kind in limit | soft}
    held = {kind: getattr(account.held, kind) for kind in limit | soft}
    every, renews, warned = None, None, list[str]()
    if isinstance(account, PolicyAccount):
        every, renews = account.every, account.period.ends or None
        warned = account.beyond_warning()
    return HeldBudget(
        scope=scope,
        owner=owner,
        limit=limit,
        left=left,
        soft=soft,
        spent=spent,
        held=held,
        every=every,
        renews=renews,
        warned=tuple(warned),
    )


def held_policy(account: Account) -> HeldBudget | None:
    """One of the operator's budgets by day, month and key, as it stands; None: it has no bound."""
    owner = account.owner if isinstance(account, PolicyAccount) else ""
    return held_budget(account.scope, owner, account)


def held_budgets(session: Session, tenant: Account) -> tuple[HeldBudget, ...]:
    """All that hold for the session but those that a turn brings, the nearest first: its own, its
    tree's, those of the trees that it is a part of, its tenant's."""
    line = (session, *session.parents())
    found = (
        held_budget("session", session.name, session.ledger.account),
        *(held_budget("tree", each.name, each.ledger.tree) for each in line),
        held_budget("tenant", session.tenant, tenant),
        *map(held_policy, session.ledger.policies),
    )
    return tuple(each for each in found if each is not None)


def tightest(budgets: Iterable[HeldBudget]) -> dict[str, tuple[int, int]]:
    """The least that may still be spent of each bounded kind, over all budgets, and the bound that
    leaves it."""
    found: dict[str, tuple[int, int]] = {}
    for budget in budgets:
        for kind, limit in budget.limit.items():
            left = (budget.left[kind], limit)
            found[kind] = min(found.get(kind, left), left)
    return found


def _policy(scope: Scope, terms: BudgetTerms) -> PolicyBudget:
    budget = bounds_of(terms.bounds)
    return PolicyBudget(scope=scope, every=terms.every, budget=budget, warn_at=terms.warn_at)


class TenantTerms:
    """Budgets and prices of a tenant, by its policy of the moment; to be asked at each use, not
    kept."""

    def __init__(self, policy: Callable[[], TenantPolicy], prices: PriceTable) -> None:
        """``prices``: of those that have none of their own."""
        self._policy = policy
        self._prices = prices

    @property
    def budget(self) -> Budget:
        """The tenant's budget in all."""
        bounds = self._policy().budget
        return NO_BUDGET if bounds is NO_BOUNDS else bounds_of(bounds)

    @property
    def warn_at(self) -> float | None:
        """The part of the tenant's budget in all from which on its spending is told."""
        return self._policy().warn_at

    @property
    def prices(self) -> PriceTable:
        """The tenant's prices: its own prices of tokens, whatever the adapter, or else the
        server's, which KV has anyway."""
        own = self._policy().prices
        return self._prices if own is None else replace(self._prices, **asdict(own), adapters={})

    def policies(self, key: str) -> tuple[PolicyBudget, ...]:
        """The budgets of the tenant by day and month, and those of one of its keys."""
        policy = self._policy()
        own = [_policy("tenant", terms) for terms in policy.periods]
        return (*own, *(_policy("key", terms) for terms in policy.keys.get(key, ())))


def set_budgets(
    options: requests.KeepwarmOptions,
    session: Session,
    *,
    parent: Session | None,
    tenant: Account,
    limits: Limits,
) -> None:
    """Set what a request says of its session's budgets, before its turn begins.

    Args:
        parent: the session that ``options.parent_session`` names.

    Raises:
        ApiError: a budget of money where nothing has a price, or a parent that cannot be one.
            Nothing is changed then.
    """
    if options.budget:
        if session.ledger.prices.free:
            _refuse_unpriced(options)
        _refuse_residency_of_turns(options)
    if parent is not None and parent is not session.parent:
        _link(session, parent, limits.max_session_depth)
    accounts = {"session": session.ledger.account, "tree": session.ledger.tree}
    for wire in options.budget:
        if wire.scope in accounts:
            account = accounts[wire.scope]
            account.budget, account.soft = bounds_of(wire), bounds_of(wire.soft)
    trees = [] if session.parent is None else [each.ledger.tree for each in session.parents()]
    session.ledger.above = (*trees, tenant)


def _refuse_unpriced(options: requests.KeepwarmOptions) -> None:
    for wire in options.budget:
        if wire.cost is not None or wire.soft.cost is not None:
            raise errors.invalid_value(
                "keepwarm.budget.cost", "this server has no prices, so nothing would be bounded"
            )


def _refuse_residency_of_turns(options: requests.KeepwarmOptions) -> None:
    for wire in options.budget:
        if wire.scope == "turn" and (wire.residency, wire.soft.residency) != (None, None):
            raise errors.invalid_value(
                "keepwarm.budget.residency",
                "KV belongs to a session, not to a turn; the scope is session or tree",
            )


def _link(session: Session, parent: Session, max_depth: int) -> None:
    """Put ``session`` below ``parent``, or below the one that has taken its parent's name: a
    parent that was away, as at another server, comes back with what its tree has spent."""
    _check_parent(session, parent, max_depth)
    if session.parent is not None and not parent.ledger.tree.used:
        parent.ledger.tree = session.parent.ledger.tree
    session.parent = parent


def _check_parent(session: Session, parent: Session, max_depth: int) -> None:
    path = "keepwarm.parent_session"
    line = [parent, *parent.parents()]
    if session in line:
        raise errors.invalid_value(path, "the session would be a part of itself")
    gone = session.parent
    if gone is not None and gone.name != parent.name:
        raise errors.invalid_value(
            path, f"the session is a part of {errors.quoted(gone.name)} already"
        )
    if gone is None and (session.turns_begun or session.ledger.tree.used):
        raise errors.invalid_value(path, "the session has had turns without it")
    if len(line) > max_depth:
        raise errors.invalid_value(path, f"more than {max_depth} sessions above each other")
