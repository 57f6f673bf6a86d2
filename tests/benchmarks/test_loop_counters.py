"""Counters of the servers that agents are played on, and the host's time of a step."""

import random

import pytest

from benchmarks.loop_counters import OURS, PEER, Counters, host_ms_per_step, in_flight_s
from benchmarks.loop_workload import Played, PlayedTurn

SAID = {
    OURS: """# TYPE keepwarm_engine_step_seconds histogram
keepwarm_engine_step_seconds_bucket{le="0.1"} 5
keepwarm_engine_step_seconds_count 7.0
keepwarm_prefill_tokens_total{tenant="a"} 100.0
keepwarm_prefill_tokens_total{tenant="b"} 20.0
""",
    PEER: """# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 900.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 200.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 80.0
""",
}


@pytest.mark.parametrize("server", [OURS, PEER])
def test_counters_are_read_from_either_servers_metrics(server: str) -> None:
    found = Counters.read(server, SAID[server])
    assert found == (120, 7)
    assert found.since(Counters(100, 3)) == (20, 4)


def played(*sessions: list[tuple[float, float]], wall_s: float = 10.0) -> Played:
    return Played(
        sessions=[[PlayedTurn(sent_s=sent, end_s=end) for sent, end in each] for each in sessions],
        wall_s=wall_s,
    )


def test_time_in_which_some_turn_is_answered_counts_once() -> None:
    assert in_flight_s(played([(0, 2), (5, 6)], [(1, 3)], [(5.25, 5.5)])) == 4
    assert in_flight_s(played([(0, 2)], [(2, 3)])) == 3


@pytest.mark.parametrize("seed", range(20))
def test_time_in_flight_is_that_of_moments_in_which_some_turn_is_answered(seed: int) -> None:
    source = random.Random(seed)
    spans = [(at := source.randrange(50), at + source.randrange(1, 9)) for _ in range(12)]
    moments = sum(any(begin <= at < end for begin, end in spans) for at in range(60))
    assert in_flight_s(played(*([span] for span in spans))) == moments


def test_the_hosts_time_is_that_in_which_turns_waited_and_the_card_did_not_run() -> None:
    turns = played([(0, 2), (5, 8)])
    assert host_ms_per_step(turns, 100, 0.4) == pytest.approx(10)
    assert host_ms_per_step(turns, 100, None) is None
    assert host_ms_per_step(turns, 0, 0.4) is None
