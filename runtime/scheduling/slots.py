"""Slots for running sequences: when all are taken, a long sequence is paused for a shorter one, and
one of several of a tenant for another tenant that has none and is due before it.

A paused sequence keeps its blocks and goes on when it has a slot again. Knows levels and the order
of sequences. Knows nothing of the blocks that a sequence needs to be admitted.

Always true: a tenant that has a slot takes no other tenant's last one to go on with a paused
sequence. So of two tenants that want more slots than there are neither pauses the other in turns.
"""

from collections import Counter

from runtime.config import EngineConfig
from runtime.scheduling.order import Key, SequenceOrder
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import StepPlan

SlotOffer = tuple[bool, Sequence | None]
"""Whether there is a slot, and which sequence has it now and is to be paused."""
_FREE_SLOT: SlotOffer = (True, None)
_NO_SLOT: SlotOffer = (False, None)
_NOBODY: tuple[Key, Sequence | None] = ((), None)
_LONG_SEQUENCES_SHARE = 8
"""One slot in so many, and at least one, is not taken from a long sequence for a shorter one."""


class _Holders:
    """The sequences that have the slots, as of now."""

    def __init__(self, queues: Queues, order: SequenceOrder, num_slots: int, now: float) -> None:
        self.sequences = [s for s in queues.running if s not in queues.paused and s.finish is None]
        self.by_tenant = Counter(s.request.tenant for s in self.sequences)
        self._order = order
        self._now = now
        levels = ((order.level(sequence, now), sequence) for sequence in self.sequences)
        long = [(length, sequence) for length, sequence in levels if length]
        if len(long) <= max(1, num_slots // _LONG_SEQUENCES_SHARE):
            long = []
        self._long = [(n, order.key(sequence, now), sequence) for n, sequence in long]
        self._longer: dict[tuple[int, str | None], tuple[Key, Sequence | None]] = {}

    def longer(self, level: int, resuming: str | None) -> tuple[Key, Sequence | None]:
        """The sequence that loses its slot to one of that level, which is a paused one of
        ``resuming`` or begins: of the longer ones the last in the order."""
        found = self._longer.get((level, resuming))
        if found is None:
            may_lose = (
                (key, sequence)
                for length, key, sequence in self._long
                if length > level
                and (resuming is None or self._may_lose(sequence.request.tenant, resuming))
            )
            found = max(may_lose, key=lambda pair: pair[0], default=_NOBODY)
            self._longer[level, resuming] = found
        return found

    def _may_lose(self, tenant: str, taker: str) -> bool:
        by_tenant = self.by_tenant
        return tenant == taker or by_tenant[tenant] > 1 or not by_tenant[taker]

    def spared(self) -> tuple[Key, Sequence | None]:
        """The sequence that loses its slot to a tenant that has none: of the tenant that has most
        the last in the order; nobody where each tenant has one."""
        most = max(self.by_tenant.values(), default=0)
        if most < 2:
            return _NOBODY
        keyed = (
            (self._order.key(sequence, self._now), sequence)
            for sequence in self.sequences
            if self.by_tenant[sequence.request.tenant] == most
        )
        return max(keyed, key=lambda pair: pair[0])


class Slots:
    """``max_running`` slots for the sequences of one scheduler."""

    def __init__(self, config: EngineConfig, order: SequenceOrder, queues: Queues) -> None:
        self._num_slots = config.max_running
        self._order = order
        self._queues = queues
        self._holders: _Holders | None = None

    def changed(self) -> None:
        """Look again for who would lose a slot next: another sequence has one, or time has
        passed."""
        self._holders = None

    def find(self, sequence: Sequence, key: Key, now: float) -> SlotOffer:
        """A slot for ``sequence``, which has ``key`` in the order."""
        if self._num_slots > len(self._queues.running) - len(self._queues.paused):
            return _FREE_SLOT
        if self._order.policy.strict:
            return _NO_SLOT
        if self._holders is None:
            self._holders = _Holders(self._queues, self._order, self._num_slots, now)
        tenant, level = sequence.request.tenant, self._order.level(sequence, now)
        resuming = tenant if sequence in self._queues.paused else None
        victim_key, victim = self._holders.longer(level, resuming)
        if (victim is None or victim_key <= key) and not self._holders.by_tenant[tenant]:
            victim_key, victim = self._holders.spared()
        return (True, victim) if victim is not None and victim_key > key else _NO_SLOT

    def pause(self, sequence: Sequence, step: StepPlan) -> None:
        """Take a sequence out of the step and its slot from it."""
        self.changed()
        step.leave_out(sequence)
        step.paused.append(sequence)
        self._queues.pause(sequence)

    def resume(self, sequence: Sequence, key: Key, now: float, step: StepPlan) -> bool:
        """Give a paused sequence a slot, if there is one for it."""
        found, victim = self.find(sequence, key, now)
        if not found:
            return False
        if victim is not None:
            self.pause(victim, step)
        self.changed()
        self._queues.resume(sequence)
        return True
