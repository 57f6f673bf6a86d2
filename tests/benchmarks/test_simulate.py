"""What the simulator's figures become as bars."""

import pytest

from benchmarks.simulate import Outcome, bars, table
from benchmarks.simulation import CONTINUUM_LIKE, FCFS_LRU, OURS


def outcome(mean_s: float, *, hit: float = 0.5) -> Outcome:
    return Outcome(
        mean_s=mean_s,
        session_s=mean_s * 10,
        p50_s=mean_s,
        p95_s=mean_s,
        p99_s=mean_s,
        first_token_s=mean_s,
        hit=hit,
        short_s=mean_s,
        wall_s=mean_s,
        preemptions=0,
        latencies_s=(mean_s,),
    )


def test_a_gain_is_the_ratio_of_the_means_over_the_seeds() -> None:
    results = {
        ("1_5", FCFS_LRU.name): [outcome(10.0), outcome(30.0)],
        ("1_5", CONTINUUM_LIKE.name): [outcome(10.0), outcome(10.0)],
        ("1_5", OURS.name): [outcome(4.0, hit=0.8), outcome(6.0, hit=0.9)],
    }
    values = {bar.name: bar.value for bar in bars(results)}
    assert values["mean_gain_rho_1_5"] == 4.0
    assert values["vs_continuum_rho_1_5"] == 2.0
    assert values["hit_rho_1_5"] == pytest.approx(0.85)


def test_host_memory_is_held_against_the_baseline_without() -> None:
    results = {
        ("1_5", FCFS_LRU.name): [outcome(10.0)],
        ("1_5", CONTINUUM_LIKE.name): [outcome(9.0)],
        ("1_5", OURS.name): [outcome(8.0)],
        ("host", FCFS_LRU.name): [outcome(5.0)],
        ("host", OURS.name): [outcome(4.0)],
    }
    assert {bar.name: bar.value for bar in bars(results)}["host_tier_gain"] == 2.5


def test_what_was_not_run_has_no_value_and_no_verdict() -> None:
    assert {bar.met for bar in bars({})} == {None}


def test_the_table_has_a_line_per_load_and_mode() -> None:
    results = {("1_9", mode.name): [outcome(1.0)] for mode in (FCFS_LRU, OURS)}
    assert len(table(results).splitlines()) == 3
