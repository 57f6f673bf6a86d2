"""Curves out of the journal: whose, how often, how finely."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from sessions.journal.errors import JournalUnavailable
from sessions.journal.samples import HOUR_S, MINUTE_S
from sessions.pages.past import LEVELS, READ_EVERY_S, Curves, PastCurves, added_up, read
from sessions.pages.recorder import WHOLE, Recorder
from tests.support.clock import FakeClock
from tests.support.memory_journal import MemoryJournal
from tests.unit.sessions.pages.test_dashboard import REPORT
from tests.unit.sessions.pages.test_recorder import count_turn

NOW = 10_000 * MINUTE_S


def recorder_at(minute: int) -> Recorder:
    return Recorder(FakeClock(minute * MINUTE_S))


def journal_with(turns: int, *, minute: int = NOW // MINUTE_S) -> MemoryJournal:
    journal, recorder = MemoryJournal(), recorder_at(minute)
    for _ in range(turns):
        count_turn(recorder, REPORT)
    journal.keep_samples(recorder.so_far())
    return journal


def test_a_minute_is_spread_over_the_buckets_of_the_hour() -> None:
    recorder = recorder_at(5)
    for _ in range(7):
        count_turn(recorder, REPORT)
    minute = [each for each in recorder.so_far() if each.width_s == MINUTE_S]
    hour = added_up([each for each in minute if each.tenant == WHOLE], LEVELS["hour"], NOW)
    assert {at: bucket.turns for at, bucket in hour.turns.items()} == {
        30: 1, 31: 1, 32: 1, 33: 1, 34: 1, 35: 2,
    }  # fmt: skip
    day = added_up(minute, LEVELS["day"], NOW)
    assert {at: bucket.turns for at, bucket in day.turns.items()} == {1: 14}


def test_what_a_server_had_of_this_minute_is_not_spread_over_what_is_to_come() -> None:
    recorder = recorder_at(5)
    count_turn(recorder, REPORT)
    minute = [
        each for each in recorder.so_far() if (each.width_s, each.tenant) == (MINUTE_S, WHOLE)
    ]
    for now, bucket in ((299.0, 30), (300.0, 30), (325.0, 32), (359.0, 35), (900.0, 35)):
        hour = added_up(minute, LEVELS["hour"], now)
        seen = {at: each.turns for at, each in hour.turns.items() if each.turns}
        assert seen == {bucket: 1}, now
        tokens = sum(each.input for each in hour.turns.values())
        assert tokens == REPORT.usage.input_tokens


def test_a_month_is_made_of_hours_and_a_tenants_of_its_own() -> None:
    journal = journal_with(3)
    for tenant in (WHOLE, "acme"):
        month = read(journal, tenant, LEVELS["month"], NOW)
        assert {at: bucket.turns for at, bucket in month.turns.items()} == {NOW // 7200: 3}
    assert read(journal, "other", LEVELS["month"], NOW).turns == {}
    assert read(journal, "acme", LEVELS["month"], NOW).machine == {}
    assert read(journal, WHOLE, LEVELS["month"], NOW + 31 * 86_400).turns == {}
    # Memory has its own day; the journal adds that of others.
    assert read(journal, WHOLE, LEVELS["day"], NOW).turns == {}


def test_it_is_read_once_a_minute_and_only_when_somebody_looks() -> None:
    async def story() -> None:
        clock, journal, reads = FakeClock(0.0), journal_with(1), 0
        failing = False

        async def beside(_: str, work: Callable[[], Curves]) -> Curves:
            nonlocal reads
            reads += 1
            if failing:
                raise JournalUnavailable("gone")
            return work()

        past = PastCurves(journal, beside, clock=clock, wall_clock=lambda: float(NOW))

        async def seen(tenant: str = WHOLE) -> int:
            past.curves("week", tenant)
            for _ in range(3):
                await asyncio.sleep(0)
            return sum(bucket.turns for bucket in past.curves("week", tenant).turns.values())

        assert past.curves("week", WHOLE).turns == {}
        assert (await seen(), await seen(), reads) == (1, 1, 1)
        assert (await seen("other"), reads) == (0, 2)
        recorder = recorder_at(NOW // MINUTE_S)
        for _ in range(5):
            count_turn(recorder, replace(REPORT, tenant="other"))
        journal.keep_samples(recorder.so_far())
        assert (await seen(), reads) == (1, 2)
        clock.advance(READ_EVERY_S)
        assert (await seen(), reads) == (5, 3)
        clock.advance(READ_EVERY_S)
        failing = True
        assert (await seen(), await seen(), reads) == (5, 5, 4)

    asyncio.run(story())


def test_what_cannot_be_added_up_is_not_read_with_each_look() -> None:
    async def story() -> None:
        clock, journal, reads = FakeClock(0.0), journal_with(1), 0
        (hour,) = (each for each in journal.samples(WHOLE, HOUR_S, 0, own=True))
        journal.keep_samples([replace(hour, body=b"[]")])

        async def beside(_: str, work: Callable[[], Curves]) -> Curves:
            nonlocal reads
            reads += 1
            return work()

        past = PastCurves(journal, beside, clock=clock, wall_clock=lambda: float(NOW))
        for _ in range(9):
            assert past.curves("week", WHOLE).turns == {}
            await asyncio.sleep(0)
        assert reads == 1
        clock.advance(READ_EVERY_S)
        past.curves("week", WHOLE)
        await asyncio.sleep(0)
        assert reads == 2

    asyncio.run(story())
