"""The benchmark of agents in a loop does equal work, and says so."""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from safetensors.torch import load_file

from benchmarks.agent_loop import (
    EXACT_RUNS,
    PARTS,
    loads_of,
    main,
    measure,
    options,
    played,
    round_of,
)
from benchmarks.loop_bars import RATIOS, Record, ratio_bar, runs_of
from benchmarks.loop_fleet import PEERS, SERVERS, gauge
from benchmarks.loop_model import write_loop_model
from benchmarks.loop_workload import (
    PlannedTurn,
    Played,
    PlayedTurn,
    SessionAgent,
    Workload,
    WrongLength,
    gaps_beside_prompt,
    own_agents,
    plan_of,
    play,
)
from benchmarks.report import DataMissing
from keepwarm.demo.child_server import child_server
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment
from tools_api.sdk.answers import Response, Usage

ROOT = Path(__file__).parents[2]
MODEL = "random:qwen3-tiny"
SMALL = ["--model", MODEL, "--sessions", "2", "--turns", "2", "--single-turns", "2"]
SMALL += ["--rounds", "1", "--threads", "1", "--kv-mib", "64", "--system", "200"]


def given(*words: str) -> argparse.Namespace:
    return options().parse_args([*SMALL, *words])


def benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.agent_loop", "--json", *SMALL, *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop") / "model"
    write_loop_model(folder, MODEL)
    return folder


@pytest.mark.slow
def test_policies_and_drafts_answer_alike_and_are_reported() -> None:
    ran = benchmark("--parts", "exact")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["benchmark"] == "agent_loop"
    assert answer["bars"] == [
        {"name": "exact_digests", "value": 1, "op": "<=", "bar": 1, "met": True}
    ]
    figures = answer["figures"]
    assert set(figures) >= {"model", "rounds", "sessions", "turns", "amx", "open", "runs", "exact"}
    assert set(figures["exact"]) == set(EXACT_RUNS)
    assert len(set(figures["exact"].values())) == 1


async def test_a_fleet_and_gaps_are_timed_on_a_server(model: Path, tmp_path: Path) -> None:
    load = Workload(
        sessions=3,
        turns=2,
        system_tokens=100,
        result_tokens=(5, 60),
        answer_tokens=(70, 90),
        stagger_s=0.01,
    )
    given = ["--model", str(model), "--threads", "1", "--kv-cache-mib", "64"]
    bound: list[float | None] = []
    with child_server([*given, "--max-draft-tokens", "0"], log=tmp_path / "log") as server:
        played = await play(own_agents(server.url, None), load, seed=3)
        serial = replace(load, sessions=1, one_at_a_time=True)
        again = await play(own_agents(server.url, None), serial, seed=4)
        gaps = await gaps_beside_prompt(
            own_agents(server.url, None),
            load=replace(load, answer_tokens=(900, 900)),
            prompt_tokens=1000,
            seed=5,
            look=lambda: bound.append(gauge(server.url, "keepwarm_turns_running")),
        )
    lengths = [[turn.answer_tokens for turn in turns] for turns in plan_of(load, 3).sessions]
    assert [[len(turn.token_s) for turn in turns] for turns in played.sessions] == lengths
    texts = [turn.text for turns in played.sessions for turn in turns]
    assert len(set(texts)) == 6
    assert played.digest != again.digest
    figures = played.figures
    assert 0 < figures["ttft_p50_ms"] < 1000 * figures["latency_p95_s"] < 1000 * figures["wall_s"]
    assert min(gaps) > 0
    assert bound[0] is not None


async def test_a_turn_that_ends_early_is_an_error() -> None:
    async def stream(*_: Any, **__: Any) -> AsyncIterator[Response]:
        yield Response(
            id="resp_1",
            status="completed",
            output=(),
            usage=Usage(input_tokens=5, output_tokens=3),
            keepwarm={},
            ttft_s=None,
            duration_s=0.1,
            raw={},
        )

    session: Any = SimpleNamespace(stream_turn=stream)
    turn = PlannedTurn(text="go", answer_tokens=4, seed=0)
    with pytest.raises(WrongLength, match="3 tokens, not 4"):
        await SessionAgent(session).play(turn, PlayedTurn(sent_s=0.0))


class _Forgetful:
    """A fleet whose peer leaves a token out of its first answers."""

    peers: ClassVar[dict[str, Path]] = {"vllm": Path("python")}

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.seeds: list[int] = []

    def play(self, server: str, load: Workload, seed: int) -> str:
        self.seeds.append(seed)
        if len(self.seeds) <= self.failing:
            raise ExceptionGroup("sessions", [WrongLength("31 tokens, not 32")])
        return server


@pytest.mark.parametrize(("failing", "given"), [(0, "vllm"), (1, "vllm"), (2, None)])
def test_a_run_of_a_peer_that_fails_is_played_again_once_and_named(
    failing: int, given: str | None
) -> None:
    loads = {"s8": Workload(sessions=1, turns=1)}
    figures: dict[str, Any] = {}
    fleet: Any = _Forgetful(failing)
    assert played(fleet, loads, "vllm/s8", 2, figures) == given
    failures = ["seed 2: vllm/s8: 31 tokens, not 32"] * failing
    assert figures.get("failed_peers", []) == failures
    assert len(set(fleet.seeds)) == min(failing + 1, 2)


def test_a_run_of_our_own_that_fails_ends_the_comparison() -> None:
    fleet: Any = _Forgetful(1)
    with pytest.raises(ExceptionGroup) as raised:
        played(fleet, {"s8": Workload(sessions=1, turns=1)}, "ours/s8", 0, {})
    assert raised.group_contains(WrongLength)


class _Played:
    """A fleet of our own servers whose runs take no time, one of which leaves the machine busy."""

    peers: ClassVar[dict[str, Path]] = {}

    def __init__(self) -> None:
        self.calls: list[str] = []

    def lacks(self, run: str) -> str | None:
        return "none was given" if run.partition("/")[0] in PEERS else None

    def rest(self, run: str) -> bool:
        self.calls.append(f"rest before {run}")
        return len(self.calls) > 1

    def play(self, server: str, load: Workload, seed: int) -> Played:
        self.calls.append(server)
        turn = PlayedTurn(sent_s=0.0, token_s=[1.0, 2.0], end_s=2.0)
        return Played(sessions=[[turn]], wall_s=2.0)


def test_each_run_begins_on_a_quiet_machine_and_those_that_do_not_are_counted() -> None:
    fleet: Any = _Played()
    figures: dict[str, Any] = {"open": {}}
    measure(fleet, given("--parts", "s1", "--rounds", "2"), figures)
    ours, fcfs = ["rest before ours/s1", "ours"], ["rest before fcfs/s1", "fcfs"]
    assert fleet.calls == [*ours, *fcfs, *fcfs, *ours] * 3
    assert figures["restless"] == 1


def test_what_is_nearly_alike_is_played_three_times_a_round_with_other_texts() -> None:
    runs = runs_of(RATIOS, lambda run: None)
    played = [round_of(runs, number, RATIOS) for number in range(5)]
    seeds: dict[str, list[int]] = {}
    for run, seed in itertools.chain.from_iterable(played):
        seeds.setdefault(run, []).append(seed)
    assert all(len(set(of_run)) == len(of_run) for of_run in seeds.values())
    often = {run for run, of_run in seeds.items() if len(of_run) == 15}
    assert often == {"ours/s8", "fcfs/s8", "ours/s1", "fcfs/s1"}
    assert all(len(of_run) == 5 for run, of_run in seeds.items() if run not in often)


def test_letters_are_tokens_and_what_must_not_be_sampled_is_banned(model: Path) -> None:
    tokenizer = Tokenizer.load(model, model_type="qwen3")
    load = Workload(sessions=1, turns=1)
    plan = plan_of(load, 0)
    assert len(tokenizer.encode([Segment(plan.system)])) == 1500
    assert len(tokenizer.encode([Segment(plan.sessions[0][0].text)])) == 150
    head = load_file(model / "model.safetensors")["lm_head.weight"]
    banned = {token for token, row in enumerate(head) if row[0] < 0}
    assert banned >= set(tokenizer.specials.values()) | tokenizer.end_of_turn_ids
    allowed = set(range(tokenizer.vocab_size)) - banned
    assert all(tokenizer.token_bytes(token).decode().isprintable() for token in allowed)


def test_each_workload_and_each_seed_has_texts_of_its_own() -> None:
    loads = loads_of(given())
    assert len({load.texts for load in loads.values()}) == len(loads)
    alike = replace(loads["serial"], texts=loads["s8"].texts)
    assert plan_of(loads["s8"], 1) == plan_of(alike, 1) != plan_of(loads["serial"], 1)
    assert plan_of(loads["s8"], 1) != plan_of(loads["s8"], 2)
    mixed = plan_of(loads["mixed32"], 1)
    results = [len(turn.text) for session in mixed.sessions for turn in session]
    answers = [turn.answer_tokens for session in mixed.sessions for turn in session]
    assert len(mixed.sessions) == 32
    assert 20 <= min(results) < 40 < 1000 < max(results) <= 2000
    assert 8 <= min(answers) < 16 < 64 < max(answers) <= 128


def test_each_run_is_played_once_and_only_where_it_can_be() -> None:
    everything = runs_of(RATIOS, lambda run: None)
    assert len(everything) == len(set(everything)) == 19
    without = runs_of(RATIOS, lambda run: "none" if run.startswith("before") else None)
    assert set(everything) - set(without) == {"before/s8", "before_fcfs/s8"}
    assert {ratio.part for ratio in RATIOS} | {
        "simulator",
        "gap",
        "spread",
        "exact",
        "load",
    } == set(PARTS)
    assert {run.partition("/")[2] for run in everything} <= set(loads_of(given()))
    assert {run.partition("/")[0] for run in everything} <= {*SERVERS, *PEERS}


def test_other_models_and_folders_that_are_no_checkout_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("default", "random:qwen3-none"):
        with pytest.raises(DataMissing):
            write_loop_model(tmp_path, name)
    assert main([*SMALL, "--before", str(tmp_path)]) == 2
    assert "no checkout" in capsys.readouterr().err


def test_when_the_time_is_over_no_server_is_started_and_what_is_known_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--json", *SMALL, "--parts", "s1", "--limit-s", "0"]) == 1
    printed = capsys.readouterr()
    assert "not finished in 0 s" in printed.err
    answer = json.loads(printed.out)
    assert [bar["met"] for bar in answer["bars"]] == [None] * 3
    assert "fcfs/s1" in answer["figures"]["open"]["s1_wall_over_fcfs"]


def test_a_ratio_is_the_median_of_those_between_plays_of_one_seed() -> None:
    """Those of a machine that becomes slower, of which another's plays are missing in part."""
    turn = PlayedTurn(sent_s=0.0, token_s=[1.0], end_s=2.0)
    record = Record()
    for seed, (ours_s, theirs_s) in enumerate([(4.0, 5.0), (5.0, 10.0), (9.0, 12.0), (8.0, None)]):
        record.add("ours/s8", seed, Played(sessions=[[turn]], wall_s=ours_s))
        if theirs_s is not None:
            record.add("fcfs/s8", seed, Played(sessions=[[turn]], wall_s=theirs_s))
    (fcfs,) = (ratio for ratio in RATIOS if ratio.name == "s8_wall_over_fcfs")
    assert ratio_bar(fcfs, record, {}).value == 0.75
    record.add("llama/s8", 99, Played(sessions=[[turn]], wall_s=1.0))
    reasons: dict[str, str] = {}
    (llama,) = (ratio for ratio in RATIOS if ratio.name == "s8_wall_over_llama")
    assert ratio_bar(llama, record, reasons).value is None
    assert reasons == {"s8_wall_over_llama": "never played in the same round"}
    better = Played(sessions=[[turn]], wall_s=3.0)
    record.add("before/s8", 0, better)
    record.add("before_fcfs/s8", 0, replace(better, wall_s=16.0))
    (before,) = (ratio for ratio in RATIOS if ratio.name == "s8_wall_over_before")
    assert ratio_bar(before, record, {}).value == 4.0 / 3.0


def test_what_has_nothing_to_be_compared_with_is_open_and_says_why() -> None:
    played = Played(sessions=[[PlayedTurn(sent_s=0.0, token_s=[1.0, 2.0], end_s=2.0)]], wall_s=2.0)
    record = Record()
    record.add("ours/s8", 0, played)
    record.add("fcfs/s8", 0, replace(played, wall_s=4.0))
    reasons: dict[str, str] = {}
    bars = [ratio_bar(ratio, record, reasons) for ratio in RATIOS if ratio.part == "s8"]
    assert {bar.name: bar.value for bar in bars} == {
        "s8_wall_over_before": None,
        "s8_wall_over_fcfs": 0.5,
        "s8_wall_over_llama": None,
        "s8_wall_over_vllm": None,
    }
    assert "before/s8" in reasons["s8_wall_over_before"]
    assert len(reasons) == 3
    lacks = {"llama/s8": "no --llama-server was given", "before/s8": "none"}.get
    (llama,) = (ratio for ratio in RATIOS if ratio.name == "s8_wall_over_llama")
    assert ratio_bar(llama, record, reasons, lacks).value is None
    assert reasons["s8_wall_over_llama"] == "no --llama-server was given"
    record.add("before_fcfs/s8", 0, replace(played, wall_s=5.0))
    (before,) = (ratio for ratio in RATIOS if ratio.name == "s8_wall_over_before")
    assert ratio_bar(before, record, reasons, lacks).value == 0.4
    figures = record.figures()["fcfs/s8"]
    assert (figures["gap_p99_ms"], figures["alike"]) == (1000.0, 1.0)
