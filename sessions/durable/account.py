"""One name's account: its bound, what was spent, and what running turns hold of the rest.

A session has an account, so has a session together with all that name it as their parent, a
tenant, and a turn that brings a budget of its own. A turn draws on all of its accounts at once
(``sessions.durable.reservation``). Whole numbers only; knows no turn and no price.

Always true: what is spent and held within the budgets that were set stays within them, as long as
nobody holds more than ``left`` and nobody spends more than was held, or than is left of residency.
"""

from dataclasses import dataclass
from typing import NamedTuple


class BudgetExceeded(Exception):
    """A budget does not hold this turn. It was not started, or goes no further."""


_new = tuple.__new__
"""Makes an ``Amount`` without the call to its constructor, which costs as much as six sums."""


class Amount(NamedTuple):
    """Tokens of the served model, nano-dollars, and KV over time. Made and added for every account
    of every turn, hence a tuple."""

    input_uncached: int = 0
    """Prompt tokens that had to be computed."""
    input_cached: int = 0
    """Prompt tokens whose KV was there."""
    output: int = 0
    """Output tokens emitted."""
    reasoning: int = 0
    """The part of them that was thinking."""
    cost: int = 0
    """Money, in nano-dollars."""
    residency: int = 0
    """Block-microseconds of KV on the device. Spent as time passes, and never held."""

    def plus(self, other: "Amount") -> "Amount":
        a, b, c, d, e, f = self
        k, x, m, n, o, p = other
        return _new(Amount, (a + k, b + x, c + m, d + n, e + o, f + p))

    def minus(self, other: "Amount") -> "Amount":
        a, b, c, d, e, f = self
        k, x, m, n, o, p = other
        return _new(Amount, (a - k, b - x, c - m, d - n, e - o, f - p))

    def least(self, other: "Amount") -> "Amount":
        """The smaller amount of each kind."""
        a, b, c, d, e, f = self
        k, x, m, n, o, p = other
        return Amount(
            a if a < k else k,
            b if b < x else x,
            c if c < m else m,
            d if d < n else n,
            e if e < o else o,
            f if f < p else p,
        )

    def most(self, other: "Amount") -> "Amount":
        """The larger amount of each kind."""
        return Amount(*map(max, self, other))


NOTHING = Amount()
_UNBOUNDED = 1 << 200
UNBOUNDED_AMOUNT = Amount(*6 * (_UNBOUNDED,))
"""An amount of more than any bound, whatever is taken off."""
KINDS = Amount._fields


def is_bound(left: int) -> bool:
    """Whether something bounds a kind of which ``left`` is left of an account's ``limits``."""
    return left < _UNBOUNDED >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper bounds on what an account spends in all; None is no bound."""

    input_uncached: int | None = None
    input_cached: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cost: int | None = None
    residency: int | None = None

    def bounds(self) -> dict[str, int]:
        """The bounds that are set, by kind."""
        if self is NO_BUDGET:
            return {}
        return {kind: bound for kind in KINDS if (bound := getattr(self, kind)) is not None}


NO_BUDGET = Budget()


class Account:
    """Mutable; belongs to a session, a tree of sessions, a tenant or a turn."""

    __slots__ = ("_budget", "held", "limits", "name", "reach", "scope", "soft", "spent")

    def __init__(
        self,
        *,
        scope: str,
        budget: Budget = NO_BUDGET,
        soft: Budget = NO_BUDGET,
        spent: Amount = NOTHING,
    ) -> None:
        """
        Args:
            scope: ``turn``, ``session``, ``tree`` or ``tenant``: whose budget it is, in words of
                an error.
            soft: from here on turns carry a warning.
        """
        self.scope = scope
        self.soft = soft
        self.spent = spent
        self.held = NOTHING
        """The amount that running turns hold."""
        self.reach: Amount | None = None
        """The part of bounded kinds that this server may spend where others draw on the account
        too; what turns hold is a part of it. None: nobody else does."""
        self.name = ""
        """The account's name in the journal, of one that others draw on."""
        self.budget = budget

    @property
    def budget(self) -> Budget:
        """The account's bounds. They may be replaced; what was spent stays."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        bounds = [
            budget.input_uncached,
            budget.input_cached,
            budget.output,
            budget.reasoning,
            budget.cost,
            budget.residency,
        ]
        limits = _new(Amount, [_UNBOUNDED if bound is None else bound for bound in bounds])
        self.limits = UNBOUNDED_AMOUNT if limits == UNBOUNDED_AMOUNT else limits
        """The budget, with ``UNBOUNDED_AMOUNT`` where it has no bound; that object if it has
        none at all."""

    @property
    def whose(self) -> str:
        """Whose budget it is, in words of an error."""
        return f"the {self.scope}'s budget"

    @property
    def renewal(self) -> str:
        """When there is more of it, as the end of an error; empty: it is not known."""
        return ""

    @property
    def used(self) -> bool:
        """Whether something is spent or held."""
        return self.spent.plus(self.held) != NOTHING

    def spend(self, amount: Amount, held: Amount = NOTHING) -> None:
        """Spend a part of what was ``held``, and no longer is."""
        if held is not NOTHING:
            self.held = self.held.minus(held)
        self.spent = self.spent.plus(amount)
        if self.reach is not None:
            self.reach = self.reach.minus(amount).most(NOTHING)

    def free(self) -> Amount:
        """The part that is neither spent nor beyond this server's reach: what running turns hold is
        not taken off."""
        free = self.limits.minus(self.spent)
        return free if self.reach is None else free.least(self._reach_of_bounded(self.reach))

    def lacks(self, wanted: Amount) -> Amount | None:
        """The part of bounded kinds that a turn would hold beyond what is in reach; None:
        nothing."""
        if self.reach is None or self.budget is NO_BUDGET:
            return None
        within = self._reach_of_bounded(self.reach).minus(self.held)
        lacking = wanted.minus(within).most(NOTHING)
        return None if lacking == NOTHING else lacking

    def _reach_of_bounded(self, reach: Amount) -> Amount:
        bounded = zip(reach, self.limits, strict=True)
        return Amount(*(part if is_bound(limit) else _UNBOUNDED for part, limit in bounded))

    def left(self) -> Budget:
        """The rest of each bound, what running turns hold taken off; negative where the budget was
        lowered below what is spent."""
        if self.budget is NO_BUDGET:
            return NO_BUDGET
        return self._minus(self.spent.plus(self.held))

    def no_residency(self, *, priced: bool) -> bool:
        """Whether nothing is left for KV on the device: of its own bound or, where it has a price,
        of money."""
        limits, spent = self.limits, self.spent
        money = limits.cost - spent.cost - self.held.cost
        return spent.residency >= limits.residency or (priced and money <= 0)

    def beyond_soft(self) -> list[str]:
        """Kinds whose soft limit is reached."""
        bounds = self.soft.bounds().items()
        return [kind for kind, bound in bounds if getattr(self.spent, kind) >= bound]

    def _minus(self, amount: Amount) -> Budget:
        bounds = self.budget.bounds().items()
        return Budget(**{kind: bound - getattr(amount, kind) for kind, bound in bounds})
