"""Window blocks in the metrics."""

from prometheus_client import CollectorRegistry

from runtime.messages import StepStats
from sessions.pages.window_metrics import WindowMetrics


def test_a_step_sets_blocks_and_adds_what_was_evicted() -> None:
    registry = CollectorRegistry()
    metrics = WindowMetrics(registry)
    step = StepStats(window_blocks_total=9, window_blocks_held=2, window_blocks_evicted_delta=3)

    def blocks() -> list[float | None]:
        name = "keepwarm_window_blocks"
        return [
            registry.get_sample_value(name, {"state": state}) for state in ("held", "evictable")
        ]

    metrics.step_finished(step)
    metrics.step_finished(step)
    assert blocks() == [2, 7]
    assert registry.get_sample_value("keepwarm_window_blocks_evicted_total") == 6
    metrics.engine_died()
    assert blocks() == [0, 0]
