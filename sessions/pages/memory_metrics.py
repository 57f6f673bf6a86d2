"""Memory by process and part in Prometheus' format, asked for at every scrape.

A part is something that grows with work: what a server keeps for its clients, what an engine keeps
for its next turns. Each keeps its own count or multiplies two numbers, so that asking costs a few
microseconds however much there is; the engine's come with its steps. What a process takes in all is
the system's word, and what no part explains is the interpreter, libraries, weights, or a leak.

Always true: every part is told from the start on; those of an engine that is gone are 0.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.messages import ENGINE_PARTS

SERVER_PARTS = (
    "responses",
    "events",
    "sessions",
    "ended_turns",
    "open_requests",
    "buffers",
    "grammars",
    "journal",
    "heap_free",
)


class MemoryMetrics(Collector):
    """Gauges of memory; a collector of a registry."""

    def __init__(self) -> None:
        self._server: Mapping[str, Callable[[], int]] = {}
        self._engine: Mapping[str, float] = {}
        self._processes: Mapping[str, Callable[[], int | str | None]] = {}

    def watch(
        self,
        parts: Mapping[str, Callable[[], int]],
        processes: Mapping[str, Callable[[], int | str | None]],
    ) -> None:
        """Ask these from now on.

        Args:
            parts: bytes of some of ``SERVER_PARTS``.
            processes: by the name of each, its process id while there is one; "self" for this.
        """
        self._server, self._processes = parts, processes

    def engine_told(self, parts: Mapping[str, float]) -> None:
        """Bytes by part after a step; nothing where it has just told them."""
        if parts:
            self._engine = parts

    def engine_died(self) -> None:
        self._engine = {}

    def collect(self) -> Iterator[Metric]:
        """Metrics of the memory that is held just now."""
        text = "Memory of the parts that grow with work, by process and part."
        parts = GaugeMetricFamily("keepwarm_memory_bytes", text, labels=("process", "part"))
        for part in SERVER_PARTS:
            count = self._server.get(part)
            parts.add_metric(("server", part), 0 if count is None else count())
        for part in ENGINE_PARTS:
            parts.add_metric(("engine", part), self._engine.get(part, 0))
        yield parts
        text = "Memory that a process takes in all, as the system counts it."
        whole = GaugeMetricFamily("keepwarm_resident_memory_bytes", text, labels=("process",))
        for name, process_id in self._processes.items():
            number = process_id()
            whole.add_metric((name,), 0 if number is None else resident_bytes(number))
        yield whole


def resident_bytes(process_id: int | str) -> int:
    """Memory of a process; 0 where the system does not say."""
    try:
        with open(f"/proc/{process_id}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
