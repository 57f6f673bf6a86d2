"""The benchmark of full windows reads its loops aright, and judges by the worst of them."""

from typing import Any

import pytest

from benchmarks import context
from benchmarks.context import LOOPS, PARTS, Played, bars_of, main
from benchmarks.context_bad_input import BASELINE, CASES
from benchmarks.context_loops import Loop, Server
from benchmarks.context_neighbours import bars_of as gap_bars


def loop(prompts: list[tuple[int, int]], *cuts: int, computed: int = 60) -> Loop:
    made = Loop(statuses=["completed"] * len(prompts), prompts=prompts, cut_turns=set(cuts))
    summary = {"computed": computed, "cached": 900, "summarised": {"turns": 2}, "ahead": True}
    made.cuts = [dict(summary) for _ in cuts]
    made.with_task = [True] * len(cuts)
    return made


GOOD = [(40, 0), *((tokens, tokens - 100) for tokens in (140, 240, 340)), (200, 40), (300, 190)]


def test_turns_that_cut_and_the_first_are_left_out_of_the_hit_ratio() -> None:
    assert loop(GOOD, 4).hit_ratio == (40 + 140 + 240 + 190) / (140 + 240 + 340 + 300)
    assert loop(GOOD, 4).half_missed == 2 / 5
    assert loop(GOOD, 4).not_shared(45) == 5
    assert loop(GOOD).not_shared(45) == 0


def test_a_transcript_is_what_was_said_and_not_what_is_left_of_it() -> None:
    assert loop(GOOD, 4).transcript == 40 + 100 * 5
    assert loop(GOOD[:1]).transcript == 40
    assert Loop().transcript == 0


def of(name: str, played: Loop | None, turns: int = 6) -> dict[str, bool | None]:
    measured = Played(turns, 1, 0.5)
    measured.head, measured.instruction = 45, 40
    if played is not None:
        measured.loops[name] = played
    return {bar.name: bar.met for bar in bars_of(measured, [name], turns)}


def test_a_loop_that_stumbles_or_computes_too_much_does_not_pass() -> None:
    met = of("chain", loop(GOOD, 4, 5, 5))
    assert met["chain_completed"]
    assert met["chain_behind_cut"]
    assert met["summary_extra_tokens"]
    assert met["chain_cuts"]
    assert not of("chain", loop(GOOD, 4))["chain_cuts"]
    assert met["chain_windows"], "six turns are no 200"
    assert not of("chain", loop(GOOD, 4), turns=2_000)["chain_windows"]
    stumbled = loop(GOOD, 4)
    stumbled.statuses[2] = "failed"
    assert not of("chain", stumbled)["chain_completed"]
    assert not of("chain", loop(GOOD, 4, computed=99))["summary_extra_tokens"]
    assert not of("chain", loop([(40, 0), (900, 0)], 1))["chain_behind_cut"]


@pytest.mark.parametrize("part", LOOPS)
def test_what_was_not_played_is_open(part: str) -> None:
    assert set(of(part, None).values()) == {None}


def test_a_summary_is_compared_with_one_that_a_client_asked_for() -> None:
    measured = Played(6, 1, 0.5)
    measured.loops["chain"] = loop(GOOD, 4)
    measured.client_computed = 1500
    (share,) = bars_of(measured, ["client"], 6)
    assert (share.name, share.value, share.met) == ("summary_over_clients", 60 / 1500, True)


def test_the_widest_gap_counts_and_what_was_answered_wrongly() -> None:
    found: dict[str, Any] = {BASELINE: {"gap_p50_ms": 2.0}, "alone": {"gap_p50_ms": 1.0}}
    found |= {"many_steers": {"gap_p50_ms": 2.5}, "low_threshold": {"gap_p50_ms": 3.1}}
    answered, gap = gap_bars(found)
    assert (answered.value, answered.met) == (1.0, True)
    assert (gap.value, gap.met) == (3.1 / 2.0, False)
    long = {"ordinary_long": {"gap_p50_ms": 9.0}, "endless_summary": {"gap_p50_ms": 18.0}}
    assert gap_bars(found | long)[1].value == 2.0, "a long prompt beside another"
    answered, gap = gap_bars(found | {"low_threshold": {"wrong": "it was taken"}})
    assert (answered.value, answered.met) == (0.5, False)
    assert gap.met
    assert {bar.met for bar in gap_bars({})} == {None}


def test_a_part_that_fails_is_told_and_the_others_are_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def served(self: Played, part: str) -> None:
        if part == "chain":
            raise ConnectionRefusedError("nobody is there")
        self.loops[part] = loop(GOOD, 4)

    monkeypatch.setattr(context.Played, "_served", served)
    assert main(["--parts", "chain", "resent", "--small"]) == 2
    told = capsys.readouterr().out
    assert "nobody is there" in told
    assert "resent_hit_ratio" in told


def test_every_part_has_a_bar_and_every_case_says_what_it_is() -> None:
    assert set(PARTS) == {*LOOPS, "client", "bad_input"}
    assert len(CASES) == 26
    assert callable(Server)
