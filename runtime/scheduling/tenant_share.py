"""Each tenant's share of the engine's time while others work: who waits for now, who rests.

A tenant owes the time that its prompts take, and what its decodes add to steps in which others
decode. Time pays it back, to each tenant the share that it has of it: one over the number of
tenants that have work. Who owes more than ``BURST_S`` has no prompt in steps in which others
decode, so that in the long run it adds no more to them than its share of the time. What is due is
saved up: a step is open to a tenant's prompts as a whole or not at all, and how much of an open
step they may take is the business of ``prefill_budget``. So most steps are decodes alone, and
chunks are as large as anywhere. Where nobody else decodes its prompts come behind those of others,
and in no step that has one of them.

Its decodes rest as well where they would make a step more than ``MOST_SLOWER`` times as long: many
rows beside the few of another tenant, on a device whose steps grow with their rows. Where a step
takes about as long whoever takes part, as on a GPU, nobody rests. What decodes add is on an account
of its own too, which only steps in which others decode pay back, and time in which nobody has work
or nobody else had any for ``PAUSE_S``: who has the engine alone between two turns of another is not
owed a part of the next one for it.

``policy.ServiceAccount`` orders prompts by what tenants had, a step's decodes shared out by their
number; this is about what others notice of it: by how much a step would be shorter without a
tenant. Predictions tell only how a step's time divides, the time itself is what passes between two
plans. Knows no clock: times are passed in. Knows no sequences and no order.

Always true: nobody has to wait where no other tenant decodes or has a prompt in the step; who does
has an open step again before its share of the time is ``PATIENCE_S``, and who rests decodes again
before it is ``MOST_REST_S``. In each step somebody decodes.
"""

from collections.abc import Mapping, Set

from runtime.scheduling.costs import StepCosts
from runtime.scheduling.step_plan import StepPlan

BURST_S = 1.0
"""A tenant does not wait that had no more than so many seconds beyond its share."""
MOST_OWED_S = 2.0
"""Most seconds that a tenant is owed; more is not remembered."""
PATIENCE_S = 1.0
"""A tenant whose decodes alone take its share has a step for its prompts after so many seconds of
its share."""
MOST_SLOWER = 2.0
"""Decodes of who owes the burst rest in steps that they would make longer by more than this."""
MOST_REST_S = 0.25
"""The longest rest, counted in its share: who has rested so long takes part once, so that its turns
do not stand still."""
PAUSE_S = 5.0
"""A tenant that had the engine alone for longer is paid for its decodes as well: others do not come
back between two turns any more."""
_FEWEST_TENANTS = 2
"""Half of the time is the most that anybody is paid: another tenant may come."""
_MOST_PACE = 4.0
"""How many times as long as predicted a step may have taken; what passes beyond is idle time."""


class TenantShare:
    """The debts of one scheduler's tenants for their prompts and decodes."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._owed_s: dict[str, float] = {}
        self._added_owed_s: dict[str, float] = {}
        """The same of what decodes add alone, paid by the steps in which others decode."""
        self._waited_s: dict[str, float] = {}
        """The waiting time of tenants that have to wait: what their share was since they last had a
        step."""
        self._rested_s: dict[str, float] = {}
        """The resting time of tenants whose decodes rest: the same, since they last took part."""
        self._now = 0.0
        self._step_s = 0.0
        self._added_s: dict[str, float] = {}
        """Predicted seconds: of the step, and what each tenant adds to it."""
        self._tenants = 0
        """That had work when the step was planned."""
        self._alone_s = 0.0
        """Since more than one tenant had work."""
        self._decodes_add_s: dict[str, float] = {}
        """The time that each tenant's decodes add; nothing where those of one tenant are alone."""
        self.late: set[str] = set()
        """The tenants that owe the burst: the prompts of others go first. Not who has waited long
        enough."""
        self._over: set[str] = set()
        self._held: set[str] = set()
        """Tenants that the step is not open to, and those that asked."""
        self._resting: set[str] = set()

    @property
    def remembered(self) -> frozenset[str]:
        """Tenants of which anything is kept."""
        return frozenset({*self._owed_s, *self._waited_s, *self._rested_s})

    def owed_s(self, tenant: str) -> float:
        """Seconds that a tenant had beyond its share lately, the step that is planned left out."""
        return self._owed_s.get(tenant, 0.0)

    def start_step(
        self, now: float, step: StepPlan, *, decoders: Mapping[str, int], tenants: int
    ) -> Set[str]:
        """A step is planned, and the one before is over.

        Args:
            now: seconds, any origin.
            step: with all decodes and no prompts yet.
            decoders: how many sequences of each tenant decode.
            tenants: how many tenants have sequences waiting or running.

        Returns:
            The tenants whose decodes rest in this step.
        """
        if self._owed_s or self._added_s or self._added_owed_s:
            self._settle(max(now - self._now, 0.0), max(tenants, _FEWEST_TENANTS))
        self._now, self._step_s, self._added_s, self._decodes_add_s = now, 0.0, {}, {}
        self._tenants = tenants
        self._held.clear()
        owing = _over_the_burst(self._owed_s)
        over = {tenant for tenant in owing if len(decoders) > (tenant in decoders)}
        self.late = {t for t in owing if self._waited_s.get(t, 0.0) < PATIENCE_S}
        self._over = self.late & over
        if len(decoders) > 1:
            over |= _over_the_burst(self._added_owed_s)
        self._resting = self._who_rests(step, decoders, over) if over else set()
        for tenant in [t for t in self._rested_s if t not in self._resting]:
            del self._rested_s[tenant]
        return self._resting

    def decode(self, step: StepPlan, decoders: Mapping[str, int]) -> None:
        """The step that is planned has ``decoders`` of each tenant, and no prompts charged yet."""
        self._step_s = step.decode_s
        if len(decoders) > 1:
            self._decodes_add_s = self._added_by_decodes(step, decoders)
        self._added_s = dict(self._decodes_add_s)

    def has_to_wait(self, tenant: str) -> bool:
        """Whether the step is not open to a prompt of ``tenant``, which there is."""
        if tenant not in self._over:
            return False
        self._held.add(tenant)
        return True

    def takes_part(self, tenant: str) -> None:
        """A prompt of ``tenant`` has a chunk in the step."""
        self._waited_s.pop(tenant, None)
        if tenant not in self.late:
            self._over = self.late

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant's prompts add so many seconds to the step that is planned."""
        self._step_s += seconds
        self._added_s[tenant] = self._added_s.get(tenant, 0.0) + seconds

    def _settle(self, elapsed_s: float, tenants: int) -> None:
        """The last step took ``elapsed_s``: put its parts on the accounts, and pay all tenants."""
        pace = min(elapsed_s / self._step_s, _MOST_PACE) if self._step_s else 0.0
        paid_s = elapsed_s / tenants
        for tenant in self._held:
            self._waited_s[tenant] = self._waited_s.get(tenant, 0.0) + paid_s
        for tenant in self._resting:
            self._rested_s[tenant] = self._rested_s.get(tenant, 0.0) + paid_s
        _put(self._owed_s, self._added_s, pace, paid_s)
        for tenant in [t for t in self._waited_s if t not in self._owed_s]:
            del self._waited_s[tenant]
        self._alone_s = 0.0 if self._tenants > 1 else self._alone_s + elapsed_s
        if not (self._decodes_add_s or self._resting or self._alone_s > PAUSE_S):
            paid_s = max(elapsed_s - _MOST_PACE * self._step_s, 0.0) / tenants  # nobody worked
        _put(self._added_owed_s, self._decodes_add_s, pace, paid_s)

    def _who_rests(self, step: StepPlan, decoders: Mapping[str, int], over: Set[str]) -> set[str]:
        """Those of ``over`` without whom the step is that much shorter; never all that decode."""
        tired = {t for t in over if self._rested_s.get(t, 0.0) < MOST_REST_S and t in decoders}
        if len(tired) == len(decoders):
            tired.remove(min(tired, key=lambda tenant: (self._most_owed_s(tenant), tenant)))
        rest_s = self._decode_s(step, 1 - sum(decoders[t] for t in tired) / sum(decoders.values()))
        return tired if step.decode_s > MOST_SLOWER * rest_s else set()

    def _most_owed_s(self, tenant: str) -> float:
        return max(self.owed_s(tenant), self._added_owed_s.get(tenant, 0.0))

    def _decode_s(self, step: StepPlan, share: float) -> float:
        """Seconds of a step with that share of the decodes."""
        rows = max(round(share * step.decode_rows), 1)
        return self._costs.decode_s(int(share * step.decode_context), rows)

    def _added_by_decodes(self, step: StepPlan, decoders: Mapping[str, int]) -> dict[str, float]:
        """Seconds by which the step would be shorter without the decodes of each tenant, and at
        most its part of them by their number, so that all together are no more than the step."""
        total = sum(decoders.values())
        by_count: dict[int, float] = {}
        for count in set(decoders.values()):
            rest = (total - count) / total
            rest_s = self._decode_s(step, rest)
            by_count[count] = min(step.decode_s - rest_s, (1 - rest) * step.decode_s)
        return {tenant: by_count[count] for tenant, count in decoders.items()}


def _over_the_burst(owed_s: Mapping[str, float]) -> set[str]:
    return {tenant for tenant, owed in owed_s.items() if owed >= BURST_S}


def _put(
    owed_s: dict[str, float], added_s: Mapping[str, float], pace: float, paid_s: float
) -> None:
    """Put on an account what a step's parts took, and pay each tenant of it."""
    for tenant in {*owed_s, *added_s}:
        owed = owed_s.get(tenant, 0.0) + pace * added_s.get(tenant, 0.0) - paid_s
        if owed > 0.0:
            owed_s[tenant] = min(owed, MOST_OWED_S)
        else:
            owed_s.pop(tenant, None)
