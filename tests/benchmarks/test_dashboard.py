"""The dashboard's benchmark counts nested scripts once and measures a small crowd."""

import asyncio

import pytest

from benchmarks.dashboard import LISTS, SCRIPT, Crowd, busiest, measure_loop
from tests.support.running_server import RunningServer


def event(name: str, begin: float, length: float, thread: int = 1) -> dict[str, object]:
    return {"ph": "X", "name": name, "ts": begin, "dur": length, "pid": 1, "tid": thread}


def test_nested_scripts_count_once_and_the_busiest_thread_is_told() -> None:
    events = [
        event("FunctionCall", 0, 1000),
        event("FunctionCall", 200, 300),
        event("EventDispatch", 900, 600),
        event("Layout", 0, 9000),
        event("FunctionCall", 0, 1400, thread=2),
    ]
    assert busiest(events, SCRIPT) == pytest.approx(1.5)
    assert busiest([], SCRIPT) == 0.0


def test_every_list_is_measured_and_updates_have_bytes() -> None:
    async def measure() -> None:
        async with RunningServer() as server:
            loop = measure_loop(server, Crowd(server, 60, seed=1), updates=3)
        assert set(loop.ms) == set(LISTS)
        assert loop.bytes_per_update > 100

    asyncio.run(measure())
