"""Blocks of layers with a window in Prometheus' format, where rows behind windows are given back.

Always true: for a model whose every block has all rows all of it is 0.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

from runtime.messages import StepStats


class WindowMetrics:
    """Metrics of window blocks, from steps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Blocks for rows of layers with a window, by state."
        blocks = Gauge("keepwarm_window_blocks", text, ["state"], registry=registry)
        self._blocks = [blocks.labels(state) for state in ("held", "evictable")]
        text = "Blocks that have lost the rows of layers with a window to others."
        self._evicted = Counter("keepwarm_window_blocks_evicted", text, registry=registry)

    def engine_died(self) -> None:
        for series in self._blocks:
            series.set(0)

    def step_finished(self, stats: StepStats) -> None:
        held = stats.window_blocks_held
        for series, blocks in zip(
            self._blocks, (held, stats.window_blocks_total - held), strict=True
        ):
            series.set(blocks)
        if stats.window_blocks_evicted_delta:
            self._evicted.inc(stats.window_blocks_evicted_delta)
