"""The dashboard's benchmark counts nested scripts once and measures a small crowd."""

import asyncio

import pytest

from benchmarks import open_page
from benchmarks.dashboard import LISTS, SCRIPT, Crowd, busiest, measure_loop
from benchmarks.stored_months import FIRST_S, MONTHS_S, drawn_sessions, measure, stores
from sessions.journal.usage_reading import UsageAsked
from tests.support.running_server import RunningServer
from tools.screenshots import chromium

ALL_MONTHS = UsageAsked(
    first_hour=FIRST_S // 3600, end_hour=(FIRST_S + MONTHS_S) // 3600 + 24, bucket="1mo"
)


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


@pytest.mark.parametrize("store", stores())
def test_every_question_to_the_months_has_an_answer(store: str) -> None:
    with stores()[store]() as journal:
        found = measure(journal, 60, seed=1, rounds=1)
        total = journal.usage(ALL_MONTHS, None, 1)[1]
    assert total.turns == 300
    assert len(found.list_ms) == 80
    assert len(found.usage_ms) == 36
    assert min([*found.list_ms.values(), *found.usage_ms.values()]) > 0


def test_sessions_of_the_months_are_the_same_for_a_seed_and_five_turns_long_in_the_mean() -> None:
    one, other = drawn_sessions(50, 1), drawn_sessions(50, 2)
    assert one == drawn_sessions(50, 1) != other
    assert sum(each.turns for each in other) == 250


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no chromium")
def test_gaps_are_measured_with_a_page_open_and_without() -> None:
    told, bars = open_page.figures(1, 2.0)
    assert [len(told["gaps_ms"][way]) for way in ("open", "closed")] == [1, 1]
    assert all(bar.value is not None for bar in bars)
