"""Order of turns: pure functions from what is known of a turn to a sort key.

Smaller keys go first. Nothing here reads a clock or a cache; the scheduler passes both in.
The default puts the turn with the least predicted remaining work first and divides that
work by ``1 + wait / AGEING_S``, so that a long prefill is overtaken for a bounded time.
"""

from collections.abc import Callable
from dataclasses import dataclass

AGEING_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """What a policy may look at."""

    priority: int
    arrival_s: float
    waited_s: float
    uncached_tokens: int
    """Prompt tokens still to be computed, by the last look at the cache."""
    expected_output: int
    deadline_left_s: float | None
    prefill_token_s: float
    """Cost of one prefill token, seconds."""
    decode_token_s: float
    """Cost of one decode step, seconds."""


Policy = Callable[[TurnFacts], tuple[float, ...]]


def fcfs(facts: TurnFacts) -> tuple[float, ...]:
    """First come, first served, within a priority class. The baseline."""
    return (-facts.priority, facts.arrival_s)


def short_turn_first(facts: TurnFacts) -> tuple[float, ...]:
    """Least remaining work first, aged; a turn about to miss its deadline goes before."""
    work_s = (
        facts.uncached_tokens * facts.prefill_token_s + facts.expected_output * facts.decode_token_s
    )
    urgent = facts.deadline_left_s is not None and facts.deadline_left_s < 2 * work_s
    aged_s = work_s / (1.0 + facts.waited_s / AGEING_S)
    return (-facts.priority, 0.0 if urgent else 1.0, aged_s, facts.arrival_s)


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "short_turn_first": short_turn_first}
