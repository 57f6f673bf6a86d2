"""State slots in the metrics: gauges of what is, counters of what was."""

from prometheus_client import CollectorRegistry

from radix_cache.snapshots import SnapshotKind
from runtime.messages import SNAPSHOT_KINDS, StepStats
from sessions.pages.state_metrics import StateMetrics

STEP = StepStats(
    state_slots_total=9,
    state_slots_free=2,
    state_snapshots=4,
    snapshots_taken_delta={"end": 2, "header": 1},
    snapshots_lost_delta={"end": 1},
    slot_waits_delta=3,
    host_states_total=20,
    host_states_used=6,
    disk_states_total=50,
    disk_states_used=7,
    snapshots_raised_delta=2,
)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"keepwarm_state_{name}", labels)


def test_a_step_sets_slots_and_adds_what_was_kept_and_lost() -> None:
    registry = CollectorRegistry()
    metrics = StateMetrics(registry)
    metrics.step_finished(STEP)
    metrics.step_finished(STEP)
    uses = [value(registry, "slots", use=use) for use in ("free", "running", "snapshot")]
    assert uses == [2, 3, 4]
    assert value(registry, "snapshots_taken_total", kind="end") == 4
    assert value(registry, "snapshots_evicted_total", kind="end") == 2
    assert value(registry, "snapshots_taken_total", kind="junction") == 0
    assert value(registry, "slot_waits_total") == 6
    assert value(registry, "snapshots_raised_total") == 4
    below = [
        value(registry, "tier_slots", tier=tier, state=state)
        for tier in ("host", "disk")
        for state in ("used", "free")
    ]
    assert below == [6, 14, 7, 43]
    metrics.engine_died()
    assert value(registry, "tier_slots", tier="host", state="free") == 0
    assert value(registry, "slots", use="snapshot") == 0


def test_every_kind_is_there_from_the_first_scrape_on() -> None:
    assert set(SNAPSHOT_KINDS) == {kind.value for kind in SnapshotKind}
