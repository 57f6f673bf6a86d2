"""What may be spent under one name, what has been, and what running turns hold of the rest.

A session has an account, so has a session together with all that name it as their parent, a
tenant, and a turn that brings a budget of its own. A turn draws on all of its accounts at once
(``sessions.durable.reservation``). Whole numbers only; knows no turn and no price.

Always true: what is spent and held within the budgets that were set stays within them, as long as
nobody holds more than ``left`` and nobody spends more than was held.
"""

from dataclasses import dataclass, field, fields


class BudgetExceeded(Exception):
    """A budget does not hold this turn. It was not started, or goes no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Tokens of the served model, and nano-dollars."""

    input_uncached: int = 0
    """Prompt tokens that had to be computed."""
    input_cached: int = 0
    """Prompt tokens whose KV was there."""
    output: int = 0
    """Tokens emitted."""
    reasoning: int = 0
    """The part of them that was thinking."""
    cost: int = 0
    """Nano-dollars."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            input_uncached=self.input_uncached + other.input_uncached,
            input_cached=self.input_cached + other.input_cached,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cost=self.cost + other.cost,
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            input_uncached=self.input_uncached - other.input_uncached,
            input_cached=self.input_cached - other.input_cached,
            output=self.output - other.output,
            reasoning=self.reasoning - other.reasoning,
            cost=self.cost - other.cost,
        )


KINDS = tuple(field.name for field in fields(Amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper bounds on what an account spends in all; None is no bound."""

    input_uncached: int | None = None
    input_cached: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cost: int | None = None

    def bounds(self) -> dict[str, int]:
        """Those that there are, by kind."""
        return {kind: bound for kind in KINDS if (bound := getattr(self, kind)) is not None}


NO_BUDGET = Budget()


@dataclass(slots=True, eq=False, kw_only=True)
class Account:
    """Mutable; belongs to a session, a tree of sessions, a tenant or a turn."""

    scope: str
    """``turn``, ``session``, ``tree`` or ``tenant``: whose budget it is, in words of an error."""
    budget: Budget = NO_BUDGET
    """May be replaced; what was spent stays."""
    soft: Budget = NO_BUDGET
    """From here on turns carry a warning."""
    spent: Amount = field(default_factory=Amount)
    held: Amount = field(default_factory=Amount)
    """By turns that run."""

    @property
    def used(self) -> bool:
        """Something is spent or held."""
        return Amount() != self.spent + self.held

    def left(self) -> Budget:
        """What is left of each bound, what running turns hold taken off; negative where the
        budget was lowered below what is spent."""
        if self.budget is NO_BUDGET:
            return NO_BUDGET
        return self._minus(self.spent + self.held)

    def unspent(self) -> Budget:
        """The same, as if no turn ran."""
        return self._minus(self.spent)

    def beyond_soft(self) -> list[str]:
        """Kinds whose soft limit is reached."""
        bounds = self.soft.bounds().items()
        return [kind for kind, bound in bounds if getattr(self.spent, kind) >= bound]

    def _minus(self, amount: Amount) -> Budget:
        bounds = self.budget.bounds().items()
        return Budget(**{kind: bound - getattr(amount, kind) for kind, bound in bounds})
