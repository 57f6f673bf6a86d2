"""What goes to the journal's database, and when."""

from dataclasses import replace

import orjson

from runtime.messages import StepStats
from sessions.durable.ledger import TurnReport
from sessions.journal.samples import HOUR_S, MINUTE_S, Sample
from sessions.pages.history import History
from sessions.pages.recorder import MOST_TENANTS, SLACK, WHOLE, Recorder
from tests.support.clock import FakeClock
from tests.unit.sessions.pages.test_dashboard import REPORT


def count_turn(recorder: Recorder, report: TurnReport) -> None:
    for bucket in recorder.turns_now(report.tenant):
        bucket.add(report)


def turns(samples: list[Sample], tenant: str = WHOLE) -> dict[tuple[int, int], int]:
    return {
        (each.width_s, each.number): orjson.loads(each.body)["turns"]["turns"]
        for each in samples
        if each.tenant == tenant
    }


def test_a_minute_is_handed_out_once_and_with_it_the_hour_so_far() -> None:
    clock = FakeClock(59 * MINUTE_S)
    recorder = Recorder(clock)
    count_turn(recorder, REPORT)
    assert recorder.ended() == []
    clock.advance(MINUTE_S)
    assert turns(recorder.ended()) == {(MINUTE_S, 59): 1, (HOUR_S, 0): 1}
    assert recorder.ended() == []
    count_turn(recorder, REPORT)
    clock.advance(MINUTE_S)
    assert turns(recorder.ended(), REPORT.tenant) == {(MINUTE_S, 60): 1, (HOUR_S, 1): 1}
    count_turn(recorder, REPORT)
    count_turn(recorder, REPORT)
    assert turns(recorder.so_far()) == {(MINUTE_S, 61): 2, (HOUR_S, 1): 3}


def test_a_clock_that_is_set_back_a_little_ends_no_minute() -> None:
    clock = FakeClock(100 * MINUTE_S)
    recorder = Recorder(clock)
    count_turn(recorder, REPORT)
    clock.advance(-SLACK * MINUTE_S)
    assert recorder.ended() == []
    clock.advance(-MINUTE_S)
    assert turns(recorder.ended())[MINUTE_S, 100] == 1


def test_many_tenants_are_all_counted_and_few_by_name() -> None:
    recorder = Recorder(FakeClock(0.0))
    for number in range(MOST_TENANTS + 10):
        count_turn(recorder, replace(REPORT, tenant=f"t{number}"))
    count_turn(recorder, replace(REPORT, tenant="t1"))
    written = recorder.so_far()
    assert len({each.tenant for each in written}) == MOST_TENANTS + 1
    assert set(turns(written).values()) == {MOST_TENANTS + 11}
    assert set(turns(written, "t1").values()) == {2}


def test_what_the_history_counts_of_the_machine_is_recorded_for_the_whole_server_alone() -> None:
    history = History()
    history.recorder = Recorder(FakeClock(0.0))
    history.turn_finished(REPORT, 0.0)
    history.sample(StepStats(running=3), 0.0)
    history.engine_restarted(0.0)
    history.steps_finished(StepStats(steps_cost_ratio=[1.5]), 0.0)
    for each in history.recorder.so_far():
        row = orjson.loads(each.body)
        assert ("machine" in row) == (each.tenant == WHOLE)
        if each.tenant == WHOLE:
            machine = row["machine"]
            assert (machine["sums"]["running"], machine["restarts"]) == (3.0, 1)
            assert (machine["steps"], machine["step_error"]) == (1, 0.5)
