"""Order of sequences: pure functions from what is known of a sequence to a sort key, and the
account that fairness between tenants goes by.

Smaller keys go first. Nothing here reads a clock or a cache; the scheduler passes both in.
Between tenants the service that each has had comes first, in both orders that know tenants:
priorities and deadlines are what a client says of its own work, and move nobody else's by more
than ``TENANT_QUANTUM_S`` of the engine's time.

Within that, and for a tenant alone, the default serves warm sequences before cold ones. Among warm
ones the least predicted work goes first, divided by ``1 + wait / AGEING_S``, so that a long one is
overtaken for a bounded time; cold ones go by arrival, so that branches that have not begun and
those that lost their blocks share the wait. A warm sequence is never overtaken by ageing of a cold
one: that would throw out what the running branches need.

How long an answer gets is not known before, but what a sequence has emitted so far tells: most are
short, and one that is not goes on for long. So sequences pass through levels: above the first
they are served in the order of arrival, and a sequence of a lower level may have the slot of a
higher one's (multi-level feedback; cf. FastServe, arXiv:2305.05920).
"""

from collections.abc import Callable
from dataclasses import dataclass

AGEING_S = 20.0
TENANT_QUANTUM_S = 1.0
"""Tenants whose service differs by less are equals by default."""
ANSWER_LEVELS = (256, 1792)
"""Tokens emitted at which a sequence counts as longer."""
PROMPT_LEVELS = (256, 1024)
"""The same for the time its prompt takes to compute, in tokens that it could emit meanwhile."""
NUM_LEVELS = 3
PATIENCE_S = 1200.0
"""A sequence comes down by a level for each so many seconds since it arrived."""


def level(emitted: int, prompt: float, age_s: float) -> int:
    """0 for short sequences, more for those that have shown to be long.

    Args:
        emitted: tokens so far.
        prompt: decode steps that computing the rest of the prompt takes the time of.
        age_s: seconds since the sequence arrived.
    """
    by_answer = sum(emitted >= bound for bound in ANSWER_LEVELS)
    by_prompt = sum(prompt >= bound for bound in PROMPT_LEVELS)
    return max(0, max(by_answer, by_prompt) - int(age_s / PATIENCE_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFacts:
    """The facts that a policy may look at."""

    priority: int
    arrival_s: float
    waited_s: float
    work_s: float
    """Predicted engine time still to come: uncached prompt and expected output."""
    deadline_left_s: float | None
    warm: bool
    """The sequence runs already, or most of what it can reuse is in the cache."""
    branch_start_s: float
    """When the first request of the branch arrived."""
    service_s: float
    """Engine seconds that the tenant has had, by the account of ``ServiceAccount``."""
    level: int = 0
    """The sequence's priority, as ``level`` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """An order of sequences, and how much the scheduler may do beside it."""

    key: Callable[[SequenceFacts], tuple[float, ...]]
    """The key that it sorts by."""
    strict: bool = False
    """The order alone decides, as in the baseline: no sequence passes one that has to wait or
    takes its slot, sessions are not held back for memory, prefill is bounded in tokens only."""


def fcfs(facts: SequenceFacts) -> tuple[float, ...]:
    """First come, first served, within a priority class. The baseline."""
    return (-facts.priority, facts.arrival_s)


def short_turn_first(facts: SequenceFacts) -> tuple[float, ...]:
    """The tenant that has had the least service first, in steps of ``TENANT_QUANTUM_S``. Then warm
    before cold, lower levels first, in the lowest least work first, aged; cold ones as they come. A
    sequence about to miss its deadline goes before the others of its priority."""
    quantum = facts.service_s // TENANT_QUANTUM_S
    return (quantum, *_class(facts), *_order(facts), facts.service_s, facts.arrival_s)


def fair(facts: SequenceFacts) -> tuple[float, ...]:
    """As ``short_turn_first``, but service is compared to the last second: no tenant waits for
    another's shorter or warmer sequence."""
    return (facts.service_s, *_class(facts), *_order(facts), facts.arrival_s)


def _class(facts: SequenceFacts) -> tuple[float, float, float]:
    left_s = facts.deadline_left_s
    urgent = left_s is not None and left_s < 2 * facts.work_s
    return (-facts.priority, 0.0 if urgent else 1.0, 0.0 if facts.warm else 1.0)


def _order(facts: SequenceFacts) -> tuple[float, float]:
    """Level and rank in it. A cold sequence has no level: it waits for memory, and by their length
    the longest would wait for all others."""
    if not facts.warm:
        return (0, facts.arrival_s)
    if facts.level:
        return (facts.level, facts.arrival_s)
    return (0, facts.work_s / (1.0 + facts.waited_s / AGEING_S))


POLICIES: dict[str, Policy] = {
    "fcfs": Policy(key=fcfs, strict=True),
    "short_turn_first": Policy(key=short_turn_first),
    "fair": Policy(key=fair),
}


class ServiceAccount:
    """Engine seconds per tenant: a virtual token counter (Sheng et al. 2024,
    arXiv:2401.00588) that counts time.

    A tenant that comes back after having nothing to do is lifted to the least of those who
    have, so that idleness earns no credit. Between two tenants that both have sequences waiting
    all the time, the served seconds differ by at most what was charged in one go, twice.
    """

    def __init__(self) -> None:
        self._service_s: dict[str, float] = {}
        self._turns: dict[str, int] = {}

    @property
    def num_tenants(self) -> int:
        """How many tenants have sequences waiting or running."""
        return len(self._turns)

    def num_tenants_with(self, tenant: str) -> int:
        """The same if ``tenant`` had one."""
        return len(self._turns) + (tenant not in self._turns)

    def service_s(self, tenant: str) -> float:
        return self._service_s.get(tenant, 0.0)

    def request_opened(self, tenant: str) -> None:
        """A sequence of ``tenant`` waits or runs from now on."""
        open_turns = self._turns.get(tenant, 0)
        if not open_turns and self._turns:
            least = min(self._service_s[other] for other in self._turns)
            self._service_s[tenant] = max(self.service_s(tenant), least)
        self._service_s.setdefault(tenant, 0.0)
        self._turns[tenant] = open_turns + 1

    def request_closed(self, tenant: str) -> None:
        self._turns[tenant] -= 1
        if not self._turns[tenant]:
            del self._turns[tenant]
            if not self._turns:  # nobody is behind anybody
                self._service_s.clear()

    def charge(self, tenant: str, seconds: float) -> None:
        """Add engine time; negative seconds give back what was charged in advance."""
        if tenant in self._service_s:
            self._service_s[tenant] += seconds
