"""The neighbours' benchmark plays attacks beside a tenant that behaves, and judges by the worst."""

import json

import pytest

from benchmarks.attacks import ATTACKS
from benchmarks.neighbours import FOR_MEMORY, UNREAD_LOG, bars_of, main

GOOD = {
    "gap_p50_ms": 4.0,
    "gap_p99_ms": 20.0,
    "gap_bound_ms": 100.0,
    "tokens_per_s": 100.0,
    "kept_tokens": 1.0,
    "new_grammar_s": 0.1,
    "health_p99_ms": 5.0,
    "rss_growth_mib": 10.0,
}


def bars(**attacks: dict[str, float]) -> dict[str, tuple[float | None, bool | None]]:
    found = {"ordinary": GOOD, "silent_sockets": GOOD} | attacks
    return {bar.name: (bar.value, bar.met) for bar in bars_of(found)}


def test_one_bad_attack_is_enough() -> None:
    assert all(met for _, met in bars().values())
    assert bars(polls=GOOD | {"gap_p99_ms": 151.0})["worst_gap_p99_ms"] == (151.0, False)
    wide = GOOD | {"gap_p99_ms": 160.0, "gap_bound_ms": 200.0}
    assert bars(polls=wide)["worst_gap_p99_ms"][1]
    assert bars(polls=GOOD | {"gap_p50_ms": 16.0})["worst_gap_p50_ratio"] == (4.0, False)
    assert bars(polls=GOOD | {"tokens_per_s": 30.0})["worst_throughput_share"] == (0.3, False)
    assert not bars(polls=GOOD | {"kept_tokens": 0.5})["victim_kept_tokens"][1]
    assert not bars(polls=GOOD | {"new_grammar_s": 3.5})["worst_new_grammar_s"][1]
    assert bars(polls=GOOD | {"rss_growth_mib": 600.0})["rss_growth_mib"] == (344.0, False)
    assert bars(polls=GOOD | {"health_p99_ms": 150.0})["health_p99_ms"][1]
    assert not bars(silent_sockets=GOOD | {"health_p99_ms": 150.0})["health_p99_ms"][1]


def test_what_was_not_measured_is_open() -> None:
    assert {bar.met for bar in bars_of({"ordinary": GOOD})} == {None}


def test_attacks_are_named_as_they_are_elsewhere() -> None:
    assert {*FOR_MEMORY, UNREAD_LOG, "ordinary"} <= set(ATTACKS)


@pytest.mark.slow
def test_a_run_has_every_figure_of_its_attack(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--quick", "--only", "log_lines"])
    told = json.loads(capsys.readouterr().out)
    attacks = told["figures"]["attacks"]
    assert set(attacks) == {"ordinary", "log_lines"}
    for seen in attacks.values():
        assert set(GOOD) <= set(seen)
        assert seen["attack_done"]["sent"] > 0
        assert seen["attack_cpu_s"] > 0
    assert [bar["met"] for bar in told["bars"]][-1] is None
