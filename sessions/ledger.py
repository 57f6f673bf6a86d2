"""What turns consume and what that costs.

Money is an int of nano-dollars (1e-9 dollars) everywhere; it becomes a number of dollars
only on the wire. Counts are tokens of the served model, as the engine counted them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices in nano-dollars per million tokens; 0 everywhere means free."""

    input_uncached: int = 0
    input_cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """Tokens one turn consumed."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


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
