"""Curves count what ended when it ended, within their bounds."""

from dataclasses import replace

import pytest

from runtime.messages import StepStats
from sessions.pages.history import LEVELS, MAX_TENANTS, History
from tests.unit.sessions.pages.test_dashboard import REPORT

WIDTH_S, BUCKETS = LEVELS["hour"]


def test_turns_fall_into_the_bucket_of_their_end_on_every_level() -> None:
    history = History()
    history.turn_finished(REPORT, 5.0)
    history.turn_finished(REPORT, 6.0)
    history.turn_finished(replace(REPORT, status="failed"), 25.0)
    found = history.turns("hour", ["acme"], 30.0)
    assert {at: (bucket.turns, bucket.failed) for at, bucket in found.items()} == {
        0: (2, 0),
        2: (1, 1),
    }
    (day,) = history.turns("day", ["acme"], 30.0).values()
    numbers = day.numbers()
    assert (numbers["input"], numbers["cached"], numbers["cost"]) == (300, 240, 3.0)
    assert numbers["ttft_p95"] == pytest.approx(0.5, rel=0.06)
    assert history.turns("hour", ["other"], 30.0) == {}


def test_tenants_are_added_up_without_being_changed() -> None:
    history = History()
    history.turn_finished(REPORT, 5.0)
    history.turn_finished(replace(REPORT, tenant="other"), 5.0)
    for _ in range(2):
        assert history.turns("hour", ["acme", "other"], 9.0)[0].turns == 2
    assert history.turns("hour", ["acme"], 9.0)[0].turns == 1


def test_old_buckets_go_whether_or_not_new_ones_come() -> None:
    history = History()
    for number in range(BUCKETS + 20):
        history.turn_finished(REPORT, number * WIDTH_S)
    now = (BUCKETS + 19) * WIDTH_S
    assert len(history.turns("hour", ["acme"], now)) == BUCKETS
    assert len(history.turns("hour", ["acme"], now + 100 * WIDTH_S)) == BUCKETS - 100
    assert history.turns("hour", ["acme"], now + 1e6) == {}


def test_only_so_many_tenants_have_curves_and_the_quietest_goes() -> None:
    history = History()
    for number in range(MAX_TENANTS + 1):
        history.turn_finished(replace(REPORT, tenant=f"t{number}"), 1.0)
        history.turn_finished(replace(REPORT, tenant="t1"), 1.0)
    assert len(history.known_tenants()) == MAX_TENANTS
    assert "t0" not in history.known_tenants()
    assert "t1" in history.known_tenants()


def test_the_machine_is_sampled_and_its_predictions_judged() -> None:
    history = History()
    history.sample(StepStats(running=2, blocks_total=10, blocks_free=5), 1.0)
    history.sample(StepStats(running=4, blocks_total=10, blocks_free=10), 2.0)
    history.steps_finished(StepStats(steps_cost_ratio=[0.5, 1.0, 1.5]), 3.0)
    history.engine_restarted(3.0)
    (bucket,) = history.machine("hour", 4.0).values()
    numbers = bucket.numbers(10.0)
    assert (numbers["running"], numbers["kv_device"], numbers["restarts"]) == (3.0, 0.25, 1)
    assert numbers["step_error"] == pytest.approx(1 / 3, abs=1e-4)
