"""What is counted is the same however it is added up, cut or stored."""

from dataclasses import replace

import orjson
import pytest

from sessions.pages.buckets import Durations, MachineBucket, TurnBucket
from tests.unit.sessions.pages.test_dashboard import REPORT


def turns(count: int) -> TurnBucket:
    bucket = TurnBucket()
    for number in range(count):
        bucket.add(replace(REPORT, status="failed" if number % 3 else "completed"))
    return bucket


def machine(running: float, samples: int) -> MachineBucket:
    bucket = MachineBucket(restarts=1, steps=4, step_error=0.5)
    for _ in range(samples):
        bucket.sample({"running": running, "kv_device": running / 10})
    return bucket


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.01, 0.7, 3.0, 600.0])
def test_a_percentile_is_right_to_a_twentieth(seconds: float) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.percentile(0.5) == pytest.approx(max(seconds, 1e-4), rel=0.051)


def test_percentiles_of_many_are_those_of_all() -> None:
    low, high = Durations(), Durations()
    for number in range(1, 101):
        (low if number <= 50 else high).add(number / 100)
    low.merge(high)
    assert low.percentile(0.5) == pytest.approx(0.5, rel=0.06)
    assert low.percentile(0.95) == pytest.approx(0.95, rel=0.06)
    assert Durations().percentile(0.5) is None


def test_a_bucket_comes_back_from_a_row_as_it_was() -> None:
    bucket = turns(7)
    assert TurnBucket.from_row(orjson.loads(orjson.dumps(bucket.to_row()))) == bucket
    sampled = machine(3.0, 5)
    assert MachineBucket.from_row(orjson.loads(orjson.dumps(sampled.to_row()))) == sampled


@pytest.mark.parametrize("parts", [1, 6, 7])
def test_the_parts_of_a_bucket_have_every_turn_and_token_once(parts: int) -> None:
    bucket, sampled = turns(8), machine(3.0, 5)
    shares = [bucket.part(index, parts) for index in range(parts)]
    for name in ("turns", "failed", "input", "cached", "output", "cost", "saved"):
        assert sum(getattr(share, name) for share in shares) == getattr(bucket, name), name
    assert {share.numbers()["ttft_p95"] for share in shares} == {bucket.numbers()["ttft_p95"]}
    pieces = [sampled.part(index, parts) for index in range(parts)]
    assert sum(piece.restarts for piece in pieces) == 1
    assert pieces[-1].numbers(60.0)["kv_device"] == sampled.numbers(60.0)["kv_device"]
    assert pieces[-1].numbers(60.0)["step_error"] == sampled.numbers(60.0)["step_error"]


def test_both_together_leave_each_as_it_was() -> None:
    one, two = turns(2), turns(3)
    assert one.plus(two).turns == 5
    assert (one.turns, two.turns) == (2, 3)
    assert one.plus(None) is one


def test_of_servers_beside_each_other_turns_add_up_and_shares_are_the_mean() -> None:
    both = machine(2.0, 60).plus(machine(4.0, 60)).numbers(60.0)
    assert (both["running"], both["kv_device"], both["restarts"]) == (6.0, 0.3, 2)
    # One after the other, in the same minute: nobody ran six turns.
    after = machine(2.0, 30).plus(machine(4.0, 30)).numbers(60.0)
    assert (after["running"], after["kv_device"]) == (3.0, 0.3)
    assert MachineBucket().numbers(60.0) == {"restarts": 0, "step_error": None}
