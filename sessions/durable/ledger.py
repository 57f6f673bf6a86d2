"""Consumption of turns, its cost, and what a session has spent.

Bounds are ``sessions.durable.account``. Money is an int of nano-dollars (1e-9 dollars)
everywhere; it becomes a number of dollars only on the wire. Counts are tokens of the served
model, as the engine counted them. Knows no transcript and no clock.

Always true: a session's totals are the sums over its settled turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from runtime.messages import ResumePoint
from sessions.durable.account import NOTHING, Account, Amount, is_bound
from sessions.durable.miss_reasons import Miss

COMPACTION = "compaction"
"""The status of what is no turn: the summary that was written for one."""
_NANO = 1_000_000_000
_MILLION = 1_000_000


def nano_dollars(dollars: float) -> int:
    """The nearest whole number of nano-dollars."""
    return round(dollars * _NANO)


def dollars(nano: int) -> float:
    """For the wire: prints as the exact decimal up to 9 007 199 dollars."""
    return nano / _NANO


def block_us(block_seconds: float) -> int:
    """The nearest whole number of block-microseconds."""
    return round(block_seconds * _MILLION)


def block_seconds(block_us: int) -> float:
    """Residency in block-seconds, as clients read it."""
    return block_us / _MILLION


def wire_bounds(bounds: dict[str, int]) -> dict[str, Any]:
    """Bounds by kind, or what is left of them, in dollars, block-seconds and tokens."""
    shown = {"cost": dollars, "residency": block_seconds}
    return {kind: shown[kind](n) if kind in shown else n for kind, n in bounds.items()}


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
    residency: int = 0
    """Block-microseconds of KV that the session had on the device since its last settlement."""

    def __post_init__(self) -> None:
        # Made for every turn several times over: no loop where all is well.
        output = self.output_tokens
        if not (
            0 <= self.cached_tokens <= self.input_tokens
            and 0 <= self.reasoning_tokens <= output
            and 0 <= self.forced_tokens <= output
            and 0 <= self.accepted_tokens <= self.drafted_tokens
            and 0 <= self.forwards <= output
            and self.residency >= 0
        ):
            self._refuse()

    def _refuse(self) -> None:
        """Raise an error that says which count is not possible."""
        if self.residency < 0:
            raise ValueError(f"residency {self.residency} is negative")
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
            residency=self.residency + other.residency,
        )


class PromptTokens(NamedTuple):
    """A prompt's tokens. Made several times for every turn, hence a tuple."""

    uncached: int = 0
    """Prompt tokens that have to be computed."""
    cached: int = 0
    """Prompt tokens whose KV is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices in nano-dollars per million tokens, and per million block-seconds of KV; 0 everywhere
    means free."""

    input_uncached: int = 0
    input_cached: int = 0
    output: int = 0
    reasoning: int | None = None
    """The output tokens that are thinking; None: as other output."""
    residency: int = 0
    """Price of a million block-seconds of KV on the device."""
    adapters: Mapping[str | None, "PriceTable"] = field(default_factory=dict)
    """The prices of a turn under each adapter that has its own, by name; of others, and under none,
    they are this table's."""

    def __post_init__(self) -> None:
        for name in ("input_uncached", "input_cached", "output", "reasoning", "residency"):
            price = getattr(self, name)
            if price is not None and price < 0:
                raise ValueError(f"price {name} is {price}, must be >= 0")

    @property
    def free(self) -> bool:
        """Whether nothing costs anything: a budget of money would bound nothing."""
        tokens = self.input_uncached or self.input_cached or self.output or self.reasoning
        return not (tokens or self.residency) and all(each.free for each in self.adapters.values())

    @classmethod
    def per_million(
        cls, *, input_uncached: float, input_cached: float, output: float
    ) -> "PriceTable":
        """A table from dollars per million tokens, as providers publish them."""
        return cls(
            input_uncached=nano_dollars(input_uncached),
            input_cached=nano_dollars(input_cached),
            output=nano_dollars(output),
        )

    def cost(self, usage: TurnUsage) -> int:
        """Nano-dollars for tokens, each turn rounded up to a whole one."""
        return self._cost(usage.uncached_tokens, usage)

    def residency_cost(self, block_us: int) -> int:
        """Nano-dollars for KV on the device, what is settled at once rounded up."""
        return -(-block_us * self.residency // _MILLION**2)

    def affordable_residency(self, nano: int) -> int:
        """Most block-microseconds that cost at most ``nano``; KV has a price."""
        return nano * _MILLION**2 // self.residency

    def most(self, prompt: PromptTokens, output: int, reasoning: int) -> int:
        """The most that a turn of that prompt may cost which writes ``output`` tokens, of which up
        to ``reasoning`` may be thinking."""
        extra = max((self.reasoning or 0) - self.output, 0)
        exact = self._exact(*prompt)
        return -(-(exact + output * self.output + reasoning * extra) // _MILLION)

    def saved(self, usage: TurnUsage) -> int:
        """The additional cost of the same turn with nothing cached."""
        return self._cost(usage.input_tokens, usage) - self.cost(usage)

    def affordable(self, prompt: PromptTokens, nano: int, *, thinks: bool) -> int | None:
        """Most output tokens with which ``prompt`` costs at most ``nano``, whatever part of
        them is thinking where it may be; negative if not even the prompt does, None if output
        is free and the prompt fits."""
        spare = nano * _MILLION - self._exact(*prompt)
        if spare < 0:
            return -1
        price = max(self.output, (self.reasoning or 0) if thinks else 0)
        return spare // price if price else None

    def _cost(self, uncached: int, usage: TurnUsage) -> int:
        """Cost of ``usage`` if so many tokens of its prompt are computed."""
        exact = self._exact(uncached, usage.input_tokens - uncached)
        reasoning = usage.reasoning_tokens
        exact += (usage.output_tokens - reasoning) * self.output
        exact += reasoning * (self.output if self.reasoning is None else self.reasoning)
        return -(-exact // _MILLION)

    def _exact(self, uncached: int, cached: int) -> int:
        """Exact cost of a prompt, in millionths of a nano-dollar."""
        return uncached * self.input_uncached + cached * self.input_cached


class Unsettled(NamedTuple):
    """Charges for a session's KV since its last settlement: spent already, and not yet recorded."""

    block_us: int = 0
    cost: int = 0
    """Cost of the residency, in nano-dollars."""


NOTHING_UNSETTLED = Unsettled()


@dataclass(slots=True)
class Ledger:
    """One session's account and those above it, with the totals of its settled turns."""

    prices: PriceTable
    """Those of the model and of its adapters."""
    account: Account = field(default_factory=partial(Account, scope="session"))
    tree: Account = field(default_factory=partial(Account, scope="tree"))
    """The account of the session and all that draw on it."""
    above: tuple[Account, ...] = ()
    """The accounts of the sessions that it draws on, the nearest first, and of the tenant."""
    policies: tuple[Account, ...] = ()
    """The accounts of its tenant's and its key's other budgets, as its newest turn began."""
    usage: TurnUsage = field(default_factory=TurnUsage)
    """Usage of all settled turns."""
    cost: int = 0
    saved: int = 0
    turns: int = 0
    """Number of settled turns."""
    unsettled: Unsettled = NOTHING_UNSETTLED

    @property
    def accounts(self) -> tuple[Account, ...]:
        """All accounts that a turn of the session draws on, beside one of its own."""
        return (self.account, self.tree, *self.above, *self.policies)

    def share_equals(self) -> None:
        """Keep equal amounts once. For a ledger that changes rarely from now on."""
        for account in (self.account, self.tree):
            if account.held == NOTHING:
                account.held = NOTHING
            if account.spent == self.account.spent:
                account.spent = self.account.spent

    def charge(self, block_us: int) -> bool:
        """KV was on the device for so long: charge it, as far as it is within every budget.
        False: it was not, and what is beyond costs nobody anything."""
        prices, (before, paid) = self.prices, self.unsettled
        room = block_us
        for account in self.accounts:
            limits, spent = account.limits, account.spent
            room = min(room, limits.residency - spent.residency)
            if prices.residency and is_bound(limits.cost):
                spare = limits.cost - spent.cost - account.held.cost
                room = min(room, prices.affordable_residency(paid + spare) - before)
        room = max(room, 0)
        total = prices.residency_cost(before + room)
        self.unsettled = Unsettled(before + room, total)
        more = Amount(cost=total - paid, residency=room)
        for account in self.accounts:
            account.spent = account.spent.plus(more)
        return room == block_us

    def without_residency(self) -> list[str]:
        """Whose budget leaves no KV on the device: scopes of its accounts."""
        priced = bool(self.prices.residency)
        return [account.scope for account in self.accounts if account.no_residency(priced=priced)]

    def settle_residency(self) -> Unsettled:
        """Settle the charges since the last time without a turn: the caller records it."""
        unsettled = self.pop_unsettled()
        self.usage = self.usage + TurnUsage(residency=unsettled.block_us)
        self.cost += unsettled.cost
        return unsettled

    def pop_unsettled(self) -> Unsettled:
        """The same, for a turn that is ``settled`` with it."""
        unsettled, self.unsettled = self.unsettled, NOTHING_UNSETTLED
        return unsettled

    def settled(
        self, usage: TurnUsage, cost: int, *, adapter: str | None = None, is_turn: bool = True
    ) -> None:
        """A turn has ended and its reservation was settled; or what was computed for one."""
        self.usage = self.usage + usage
        self.cost += cost
        self.saved += self.prices.adapters.get(adapter, self.prices).saved(usage)
        self.turns += is_turn


class ToolRun(NamedTuple):
    """A call that a turn read the output of."""

    name: str
    ms: float | None
    """How long it ran, as the client says; None: it does not."""
    failed: bool
    """Whether the tool failed, as the client says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """One finished turn, for metrics, the log and the dashboard."""

    tenant: str
    session: str
    turn: int
    """The turn's number, 1 for the first of its session."""
    response_id: str
    status: str
    """``completed``, ``incomplete``, ``failed`` or ``cancelled``; ``compaction``: no turn, but the
    summary that was written for one."""
    reason: str | None
    """Why it did not complete, None if it did."""
    usage: TurnUsage
    cost: int
    """Cost of its tokens, and of the session's KV since its last settlement."""
    saved: int
    """Nano-dollars that the cache saved."""
    queue_s: float
    """Seconds from the request's arrival to its admission in the engine."""
    ttft_s: float | None
    """Seconds from the request's arrival to its first token; None if there was none."""
    total_s: float
    misses: tuple[Miss, ...] = ()
    """Why prompt tokens had to be computed, the most of them first."""
    resumed: tuple[ResumePoint, ...] = ()
    """Where each of its requests began; none of a model without recurrent layers."""
    parent_response_id: str | None = None
    """The response this turn came behind."""
    open_calls: int = 0
    """Calls that wait for the client's tools."""
    branch_id: str = ""
    """The engine's branch that was written to; empty if the engine saw nothing of the turn."""

    model: str = ""
    """The model's name, as the client called it."""
    adapter: str | None = None
    """The adapter that it was computed with; None: none."""
    traceparent: str | None = None
    """The client's span above this turn, in W3C Trace Context's words."""
    context: dict[str, Any] | None = None
    """The fate of its context, as ``response.keepwarm.context`` says it; None: nothing."""

    tools: tuple[ToolRun, ...] = ()
    """The calls whose outputs it read, as its client told of them."""
    warned: tuple[str, ...] = ()
    """Scopes of the operator's budgets of which so much is spent now that it is told."""

    @property
    def is_turn(self) -> bool:
        """Whether it is a turn, or a summary that was written for one."""
        return self.status != COMPACTION

    @property
    def recast(self) -> str | None:
        """How its context was recast; None: it was not."""
        if self.context is None:
            return None
        return "summarised" if self.context["summarised"]["turns"] else "cleared"

    @property
    def miss_causes(self) -> dict[str, int]:
        """Tokens by why they had to be computed; together the uncached part."""
        return {miss.reason.value: miss.tokens for miss in self.misses}

    @property
    def out_of_budget(self) -> Literal["refused", "cut"] | None:
        """The session's budget did not admit the turn, or ended its output."""
        if self.reason != "budget_exhausted":
            return None
        return "refused" if self.status == "failed" else "cut"

    def log_fields(self) -> dict[str, Any]:
        """The fields of the turn's line in the log; times in milliseconds."""
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
