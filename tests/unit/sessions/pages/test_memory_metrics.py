"""Memory by part: told from the start, by process, and gone with its engine."""

import mmap
import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.messages import ENGINE_PARTS, StepStats
from sessions.pages.memory_metrics import SERVER_PARTS, resident_bytes
from sessions.pages.metrics import Metrics


def parts(metrics: Metrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.labels["process"], sample.labels.get("part", "")): sample.value
        for family in families
        for sample in family.samples
        if family.name.endswith("memory_bytes")
    }


def test_every_part_is_told_from_the_start() -> None:
    found = parts(Metrics())
    expected = {("server", part) for part in SERVER_PARTS} | {("engine", p) for p in ENGINE_PARTS}
    assert {*found} == expected
    assert {*found.values()} == {0.0}


def test_parts_are_asked_at_each_scrape_and_the_engines_come_with_steps() -> None:
    metrics, held = Metrics(), [100]
    engine: list[int | None] = [os.getpid()]
    metrics.memory.watch(
        {"responses": lambda: held[0]}, {"server": lambda: "self", "engine": lambda: engine[0]}
    )
    metrics.step_finished(StepStats(memory_bytes={"kv": 4096.0}))
    metrics.step_finished(StepStats())
    held[0] = 200
    found = parts(metrics)
    assert (found["server", "responses"], found["engine", "kv"]) == (200.0, 4096.0)
    assert found["server", ""] > 1 << 20
    assert found["engine", ""] == pytest.approx(found["server", ""], rel=0.1)
    metrics.engine_died()
    engine[0] = None
    found = parts(metrics)
    assert (found["engine", "kv"], found["engine", ""]) == (0.0, 0.0)


def test_a_process_that_is_gone_takes_nothing() -> None:
    assert resident_bytes(1 << 30) == 0


def test_resident_memory_grows_with_what_is_held() -> None:
    """Pages of its own: what the allocator hands out may have been resident before."""
    before, size = resident_bytes("self"), 64 << 20
    with mmap.mmap(-1, size) as held:
        for page in range(0, size, mmap.PAGESIZE):
            held[page] = 1
        grown = resident_bytes("self") - before
    assert 0.7 * size <= grown <= 1.3 * size
