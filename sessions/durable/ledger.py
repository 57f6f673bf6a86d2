"""What turns consume, what that costs, and how much a session may still spend.

Money is an int of nano-dollars (1e-9 dollars) everywhere; it becomes a number of dollars
only on the wire. Counts are tokens of the served model, as the engine counted them. Knows
no transcript and no clock.

Always true: what a session has spent plus what its running turns may still spend stays
within its budget, as long as the engine keeps to the limits given to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_NANO = 1_000_000_000
_MILLION = 1_000_000


def nano_dollars(dollars: float) -> int:
    """The nearest whole number of nano-dollars."""
    return round(dollars * _NANO)


def dollars(nano: int) -> float:
    """For the wire: prints as the exact decimal up to 9 007 199 dollars."""
    return nano / _NANO


class BudgetExceeded(Exception):
    """The session's budget does not hold this turn. It was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """Tokens one turn consumed. All counts are tokens of the served model."""

    input_tokens: int = 0
    """Prompt tokens, whether computed or found in the cache."""
    cached_tokens: int = 0
    """The part of ``input_tokens`` whose KV came from the radix cache."""
    output_tokens: int = 0
    """Tokens emitted, the end-of-turn token included; rejected drafts are not counted."""
    reasoning_tokens: int = 0
    """The part of ``output_tokens`` that was thinking."""
    forced_tokens: int = 0
    """The part of ``output_tokens`` that the grammar forced."""
    drafted_tokens: int = 0
    """Draft tokens that were verified."""
    accepted_tokens: int = 0
    """The part of ``drafted_tokens`` that was accepted."""
    forwards: int = 0
    """Forward passes that gave the turn tokens."""

    def __post_init__(self) -> None:
        for part, whole in (
            ("cached_tokens", "input_tokens"),
            ("reasoning_tokens", "output_tokens"),
            ("forced_tokens", "output_tokens"),
            ("accepted_tokens", "drafted_tokens"),
            ("forwards", "output_tokens"),
        ):
            found, limit = getattr(self, part), getattr(self, whole)
            if not 0 <= found <= limit:
                raise ValueError(f"{part} {found} not in 0..{limit}")

    @property
    def uncached_tokens(self) -> int:
        return self.input_tokens - self.cached_tokens

    def __add__(self, other: "TurnUsage") -> "TurnUsage":
        return TurnUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            forced_tokens=self.forced_tokens + other.forced_tokens,
            drafted_tokens=self.drafted_tokens + other.drafted_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            forwards=self.forwards + other.forwards,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices in nano-dollars per million tokens; 0 everywhere means free."""

    input_uncached: int = 0
    input_cached: int = 0
    output: int = 0

    def __post_init__(self) -> None:
        for name in ("input_uncached", "input_cached", "output"):
            if getattr(self, name) < 0:
                raise ValueError(f"price {name} is {getattr(self, name)}, must be >= 0")

    @classmethod
    def per_million(
        cls, *, input_uncached: float, input_cached: float, output: float
    ) -> "PriceTable":
        """From dollars per million tokens, as providers publish them."""
        return cls(
            input_uncached=nano_dollars(input_uncached),
            input_cached=nano_dollars(input_cached),
            output=nano_dollars(output),
        )

    def cost(self, usage: TurnUsage) -> int:
        """Nano-dollars, each turn rounded up to a whole one."""
        return self._cost(usage.uncached_tokens, usage.cached_tokens, usage.output_tokens)

    def saved(self, usage: TurnUsage) -> int:
        """What the same turn would have cost more with nothing cached."""
        return self._cost(usage.input_tokens, 0, usage.output_tokens) - self.cost(usage)

    def affordable_output(self, usage: TurnUsage, nano: int) -> int | None:
        """Most output tokens with which ``usage``'s input costs at most ``nano``; negative
        if not even the input does, None if output is free and the input fits."""
        spare = nano * _MILLION - (
            usage.uncached_tokens * self.input_uncached + usage.cached_tokens * self.input_cached
        )
        if spare < 0:
            return -1
        return spare // self.output if self.output else None

    def _cost(self, uncached: int, cached: int, output: int) -> int:
        exact = uncached * self.input_uncached + cached * self.input_cached + output * self.output
        return -(-exact // _MILLION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper bounds on what a session consumes in all; None is no bound."""

    input_uncached: int | None = None
    """Prompt tokens that had to be computed."""
    output: int | None = None
    """Tokens emitted."""
    cost: int | None = None
    """Nano-dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a turn may consume; held by the turn until it is settled."""

    input_uncached: int
    output: int
    cost: int
    limited: bool
    """The budget, not the caller's own limit, decides ``output``."""


@dataclass(slots=True)
class Ledger:
    """One session's account. Several turns may be open at once: each holds its allowance."""

    prices: PriceTable
    budget: Budget = field(default_factory=Budget)
    """May be replaced by a later request; what was consumed stays."""
    usage: TurnUsage = field(default_factory=TurnUsage)
    """Of all settled turns."""
    cost: int = 0
    saved: int = 0
    turns: int = 0
    """Settled turns."""
    _held: list[Allowance] = field(default_factory=list)

    def left(self) -> Budget:
        """What is left of each bound, allowances of running turns taken off."""
        budget = self.budget
        spent_input = self.usage.uncached_tokens + sum(a.input_uncached for a in self._held)
        spent_output = self.usage.output_tokens + sum(a.output for a in self._held)
        spent_cost = self.cost + sum(a.cost for a in self._held)
        return Budget(
            input_uncached=_minus(budget.input_uncached, spent_input),
            output=_minus(budget.output, spent_output),
            cost=_minus(budget.cost, spent_cost),
        )

    def admit(self, *, uncached: int, cached: int, max_output: int) -> Allowance:
        """Set aside what a turn may consume.

        Args:
            uncached: prompt tokens that will be computed, as far as is known.
            cached: prompt tokens expected in the cache.
            max_output: the limit without a budget; 0 for a warm-up.

        Raises:
            BudgetExceeded: the prompt, or not even one output token, fits what is left.
        """
        left = self.left()
        if left.input_uncached is not None and uncached > left.input_uncached:
            raise BudgetExceeded(
                f"the prompt has {uncached} uncached tokens, the session's budget has "
                f"{max(left.input_uncached, 0)} left"
            )
        output = max_output
        if left.output is not None:
            output = min(output, left.output)
        prompt = TurnUsage(input_tokens=uncached + cached, cached_tokens=cached)
        if left.cost is not None:
            affordable = self.prices.affordable_output(prompt, left.cost)
            if affordable is not None:
                if affordable < 0:
                    raise BudgetExceeded(
                        f"the prompt costs {dollars(self.prices.cost(prompt)):.9f} dollars, the "
                        f"session's budget has {dollars(max(left.cost, 0)):.9f} left"
                    )
                output = min(output, affordable)
        if output < min(1, max_output):
            raise BudgetExceeded("the session's budget has no output token left")
        most = TurnUsage(input_tokens=uncached + cached, cached_tokens=cached, output_tokens=output)
        allowance = Allowance(
            input_uncached=uncached,
            output=output,
            cost=self.prices.cost(most),
            limited=output < max_output,
        )
        self._held.append(allowance)
        return allowance

    def cancel(self, allowance: Allowance) -> None:
        """The turn did not run: give back what was set aside."""
        self._held.remove(allowance)

    def settle(self, allowance: Allowance, usage: TurnUsage) -> int:
        """Replace the allowance by what the turn consumed; returns its cost."""
        self._held.remove(allowance)
        cost = self.prices.cost(usage)
        self.usage = self.usage + usage
        self.cost += cost
        self.saved += self.prices.saved(usage)
        self.turns += 1
        return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """One finished turn, for metrics, the log and the dashboard."""

    tenant: str
    session: str
    turn: int
    """1 for the first turn of its session."""
    response_id: str
    status: str
    """``completed``, ``incomplete``, ``failed`` or ``cancelled``."""
    reason: str | None
    """Why it did not complete, None if it did."""
    usage: TurnUsage
    cost: int
    saved: int
    """What the cache saved, nano-dollars."""
    queue_s: float
    """From the request's arrival to its admission in the engine."""
    ttft_s: float | None
    """From the request's arrival to its first token; None if there was none."""
    total_s: float
    miss_causes: Mapping[str, int] = field(default_factory=dict)
    """Why prompt tokens were not cached: tokens by cause; together the uncached part."""
    model: str = ""
    """As the client called it."""
    traceparent: str | None = None
    """The client's span above this turn, in W3C Trace Context's words."""

    @property
    def out_of_budget(self) -> Literal["refused", "cut"] | None:
        """The session's budget did not admit the turn, or ended its output."""
        if self.reason != "budget_exhausted":
            return None
        return "refused" if self.status == "failed" else "cut"

    def log_fields(self) -> dict[str, Any]:
        """What the log says of the turn; times in milliseconds."""
        usage = self.usage
        return {
            "session": self.session,
            "turn": self.turn,
            "tenant": self.tenant,
            "response": self.response_id,
            "status": self.status,
            "reason": self.reason,
            "input": usage.input_tokens,
            "cached": usage.cached_tokens,
            "output": usage.output_tokens,
            "forced": usage.forced_tokens,
            "cost_nano": self.cost,
            "saved_nano": self.saved,
            "queue_ms": round(self.queue_s * 1000, 1),
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1000, 1),
            "total_ms": round(self.total_s * 1000, 1),
        }


def _minus(bound: int | None, spent: int) -> int | None:
    return None if bound is None else bound - spent
