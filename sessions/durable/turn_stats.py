"""The ``keepwarm`` object of a response: cache, time, tokens and money of its turn.

Pure bookkeeping over what the engine reported; the account itself is ``sessions.durable.ledger``.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.messages import ResumePoint, SequenceOutput, SequenceStart
from sessions.durable.account import Account
from sessions.durable.ledger import Ledger, TurnUsage, block_seconds, dollars, wire_bounds
from sessions.durable.miss_reasons import CHANGES, Miss, MissReason
from tools_api import responses
from tools_api.events import Event

_SOFT = "budget: the soft limit {} is reached"
_DROPPED = (
    "budget: the {} budget of KV residency is used up; the session's KV leaves the cache between "
    "turns, and its prompts are computed again"
)


@dataclass(slots=True, kw_only=True)
class TurnClock:
    """When things happened to a turn, monotonic seconds."""

    arrival_s: float
    submitted_s: float | None = None
    queue_s: float = 0.0
    """Seconds from arrival to admission in the engine."""
    first_token_s: float | None = None
    end_s: float | None = None

    def submitted(self, now: float) -> None:
        self.submitted_s = now

    def admitted(self, engine_queue_s: float) -> None:
        waited_here = 0.0 if self.submitted_s is None else self.submitted_s - self.arrival_s
        self.queue_s = waited_here + engine_queue_s

    def token(self, now: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now

    def end(self, now: float) -> None:
        self.end_s = now

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def total_s(self) -> float:
        return 0.0 if self.end_s is None else self.end_s - self.arrival_s

    def tokens_per_s(self, output_tokens: int) -> float | None:
        """Pace after the first token; None for fewer than two tokens."""
        if self.first_token_s is None or self.end_s is None or output_tokens < 2:
            return None
        span = self.end_s - self.first_token_s
        return (output_tokens - 1) / span if span > 0 else None


class Pace:
    """How often a turn ends on this server, for telling a queued one when to look again."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._interval_s = 1.0

    def sequence_ended(self, now: float) -> None:
        if self._last_s is not None:
            self._interval_s += 0.2 * (now - self._last_s - self._interval_s)
        self._last_s = now

    def wait_s(self, position: int) -> float:
        """Expected wait at ``position`` of the queue (0 = next)."""
        return (position + 1) * self._interval_s


@dataclass(slots=True, kw_only=True)
class TurnStats:
    """Counts of one turn and what the client is told about them."""

    session: str
    number: int
    shown: bool
    """The client wants the object at all."""
    ledger: Ledger
    clock: TurnClock
    adapter: str | None = None
    """The adapter whose prices the turn has; None: the model's."""
    accounts: tuple[Account, ...] = ()
    """The accounts that the turn draws on: of this turn alone, of its session, above that."""
    start: SequenceStart | None = None
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0
    cost: int = 0
    residency: int = 0
    """Block-microseconds settled with this turn."""
    misses: tuple[Miss, ...] = ()
    """Why prompt tokens had to be computed."""
    resumed: tuple[ResumePoint, ...] = ()
    """Where each part of the turn began, with a model that has recurrent layers."""
    causes_before: Mapping[str, int] = field(default_factory=dict)
    """The cache's own account of the parts of the turn before this one."""
    cut: bool = False
    """Whether truncation left something out for this turn."""
    warnings: tuple[str, ...] = ()
    """Warnings to the client about the turn, a short sentence each."""
    context: Event | None = None
    """The fate of the context, if it was recast."""
    exhausted: bool = field(default=False)
    """The budget ended or refused this turn."""
    stop: str | None = None
    """The stop string that ended the output."""

    def admitted(self, start: SequenceStart) -> None:
        """The engine has admitted the turn.

        Raises:
            ValueError: its counts contradict each other; nothing is noted.
        """
        if not 0 <= start.cached_tokens <= start.input_tokens:
            raise ValueError(f"{start.cached_tokens} of {start.input_tokens} tokens were cached")
        self.start = start

    def add(self, output: SequenceOutput) -> None:
        """Count what one step gave the turn.

        Raises:
            ValueError: as for ``begin``.
        """
        tokens = len(output.new_tokens)
        if not (0 <= output.accepted <= output.drafted and 0 <= output.forced <= tokens):
            parts = (output.accepted, output.drafted), (output.forced, tokens)
            raise ValueError(f"contradicting counts of a step: (part, whole) are {parts}")
        self.forced += output.forced
        self.drafted += output.drafted
        self.accepted += output.accepted
        self.forwards += output.forwards if tokens else 0

    def usage(self, *, output_tokens: int, reasoning_tokens: int) -> TurnUsage:
        """The turn's usage; zero as long as the engine has not admitted it."""
        if self.start is None:
            return TurnUsage()
        return TurnUsage(
            input_tokens=self.start.input_tokens,
            cached_tokens=self.start.cached_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens,
            forced_tokens=self.forced,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            forwards=min(self.forwards, output_tokens),
            residency=self.residency,
        )

    def brief(self) -> Event | None:
        """The ``keepwarm`` object of events before the end."""
        if not self.shown:
            return None
        brief: Event = {"session": self.session, "turn": self.number}
        return brief | {"warnings": list(self.warnings)} if self.warnings else brief

    def begun(self) -> Event | None:
        """For ``response.in_progress``: with the tokens of the prompt, once they are known."""
        brief = self.brief()
        if brief is None or self.start is None:
            return brief
        return brief | {
            "tokens": {"input": self.start.input_tokens, "cached": self.start.cached_tokens}
        }

    def queued(self, position: int, retry_after_s: float) -> Event | None:
        brief = self.brief()
        if brief is None:
            return None
        queue = {"position": position, "retry_after_ms": round(retry_after_s * 1000)}
        return brief | {"queue": queue}

    def full(self, usage: TurnUsage, reason: str | None) -> Event | None:
        """For the terminal event.

        Args:
            reason: why the turn did not complete.
        """
        brief = self.brief()
        if brief is None:
            return None
        soft, prices = self._beyond_soft(), self.ledger.prices
        brief |= {
            "kv": {
                "cached": usage.cached_tokens,
                "written": usage.uncached_tokens,
                "miss": self._miss_causes(),
                "block_seconds": block_seconds(usage.residency),
            },
            "timing": self._timing(usage),
            "tokens": {
                "input": usage.input_tokens,
                "cached": usage.cached_tokens,
                "output": usage.output_tokens,
                "reasoning": usage.reasoning_tokens,
                "forced": usage.forced_tokens,
            },
            "spec": {
                "drafted": usage.drafted_tokens,
                "accepted": usage.accepted_tokens,
                "forwards": usage.forwards,
            },
            "cost": {
                "turn": dollars(self.cost),
                "session": dollars(self.ledger.cost),
                "saved": dollars(prices.adapters.get(self.adapter, prices).saved(usage)),
            },
            "budget": self._budget(soft),
            "warnings": [
                *self.warnings,
                *map(_SOFT.format, soft),
                *map(_DROPPED.format, self.ledger.without_residency()),
            ],
        }
        if self.stop is not None:
            brief["stop"] = self.stop
        if self.context is not None:
            brief["context"] = self.context
        return brief if reason is None else brief | {"reason": reason}

    @property
    def causes(self) -> dict[str, int]:
        """The cache's own account of why tokens were not in it."""
        now = {} if self.start is None else self.start.miss_causes
        both = Counter(dict(self.causes_before))
        both.update(dict(now))
        return dict(both)

    def _miss_causes(self) -> dict[str, int]:
        """The cache's own account, but for what truncation made of the prompt: there the cache
        knows only that something else stood in its place, or that it never saw it."""
        causes = self.causes
        if not self.cut:
            return causes
        truncated = sum(m.tokens for m in self.misses if m.reason is MissReason.TRUNCATED)
        if truncated or not any(miss.reason in CHANGES for miss in self.misses):
            unseen = sum(causes.pop(cause, 0) for cause in ("header_changed", "first_sight"))
            causes |= {"first_sight": unseen - truncated} if unseen > truncated else {}
        return causes | {"truncated": truncated}

    def _budget(self, soft: list[str]) -> Event:
        """The rest of the session's budgets, and of the turn's own and those above where there are
        any: of several trees the least that one of them leaves."""
        budget: Event = {"left": _left(self.ledger.account), "exhausted": self.exhausted}
        for scope in ("turn", "tree", "tenant", "key"):
            left = _left(*(account for account in self.accounts if account.scope == scope))
            if left:
                budget[scope] = left
        return budget | {"soft": soft} if soft else budget

    def _beyond_soft(self) -> list[str]:
        """The soft limits that are reached, as ``session.output``."""
        reached = {
            f"{account.scope}.{kind}": None
            for account in self.accounts
            for kind in account.beyond_soft()
        }
        return list(reached)

    def _timing(self, usage: TurnUsage) -> Event:
        ttft_s = self.clock.ttft_s
        pace = self.clock.tokens_per_s(usage.output_tokens)
        return {
            "queue_ms": _ms(self.clock.queue_s),
            "ttft_ms": None if ttft_s is None else _ms(ttft_s),
            "total_ms": _ms(self.clock.total_s),
            "tokens_per_s": None if pace is None else round(pace, 2),
        }


def wire_usage(usage: TurnUsage) -> Event:
    """The ``usage`` object of a response."""
    return responses.usage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.uncached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _left(*accounts: Account) -> Event:
    """The least that one of them leaves of each kind."""
    least: dict[str, int] = {}
    for account in accounts:
        for kind, left in account.left().bounds().items():
            least[kind] = min(least.get(kind, left), left)
    return wire_bounds({kind: max(left, 0) for kind, left in least.items()})


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
