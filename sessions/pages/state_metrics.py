"""Slots for states of recurrent layers in Prometheus' format: of whom they are, what is kept.

Always true: for a model without recurrent layers all of it is 0.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

from runtime.messages import SNAPSHOT_KINDS, StepStats

_TIERS = ("host", "disk")


class StateMetrics:
    """Metrics of state slots, from steps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Slots for states of recurrent layers, by use."
        slots = Gauge("keepwarm_state_slots", text, ["use"], registry=registry)
        self._slots = [slots.labels(use) for use in ("free", "running", "snapshot")]
        text = "Slots for states below the device, by tier."
        below = Gauge("keepwarm_state_tier_slots", text, ["tier", "state"], registry=registry)
        self._below = {
            tier: [below.labels(tier, state) for state in ("used", "free")] for tier in _TIERS
        }
        text = "Turns that began with a state from host memory."
        self._raised = Counter("keepwarm_state_snapshots_raised", text, registry=registry)
        self._taken = _by_kind("taken", "States kept for others to resume from.", registry)
        self._lost = _by_kind("evicted", "Of these, the ones that are gone.", registry)
        text = "Times a turn was looked at and could not begin for want of a state slot."
        self._waits = Counter("keepwarm_state_slot_waits", text, registry=registry)

    def engine_died(self) -> None:
        for series in (*self._slots, *(each for two in self._below.values() for each in two)):
            series.set(0)

    def step_finished(self, stats: StepStats) -> None:
        free, snapshots = stats.state_slots_free, stats.state_snapshots
        uses = free, stats.state_slots_total - free - snapshots, snapshots
        for series, slots in zip(self._slots, uses, strict=True):
            series.set(slots)
        totals = {
            "host": (stats.host_states_used, stats.host_states_total),
            "disk": (stats.disk_states_used, stats.disk_states_total),
        }
        for tier, (used, total) in totals.items():
            for series, slots in zip(self._below[tier], (used, total - used), strict=True):
                series.set(slots)
        if stats.snapshots_raised_delta:
            self._raised.inc(stats.snapshots_raised_delta)
        for kind, count in stats.snapshots_taken_delta.items():
            self._taken.labels(kind).inc(count)
        for kind, count in stats.snapshots_lost_delta.items():
            self._lost.labels(kind).inc(count)
        if stats.slot_waits_delta:
            self._waits.inc(stats.slot_waits_delta)


def _by_kind(what: str, text: str, registry: CollectorRegistry) -> Counter:
    counter = Counter(f"keepwarm_state_snapshots_{what}", text, ["kind"], registry=registry)
    for kind in SNAPSHOT_KINDS:
        counter.labels(kind)
    return counter
