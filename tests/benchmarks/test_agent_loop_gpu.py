"""Agents in a loop on a GPU beside vLLM, rehearsed: what a failure of the peer costs."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.agent_loop import main, options
from benchmarks.agent_loop_gpu import (
    PEER,
    RATIOS,
    WAYS,
    Comparison,
    Room,
    Rows,
    check_card,
    gpu_loads,
)
from benchmarks.card_busy import CardBusy
from benchmarks.loop_counters import in_flight_s
from benchmarks.loop_fleet import OutOfTime
from benchmarks.loop_model import successors, write_margin_model
from benchmarks.loop_peers import Peer, vllm_cuda_server
from benchmarks.loop_stand_in import StandIn, StandInServer, handler_of
from benchmarks.loop_transcript import ChatTranscript
from benchmarks.loop_workload import Played, Workload, needed_tokens, pause_s, plan_of, play
from benchmarks.report import DataMissing
from tools.gpu_run import PARTS

VOCAB = 272
LOADS = {name: load for name, load in gpu_loads(rehearse=True).items() if name != "s64_half"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "model"
    write_margin_model(path, "random:qwen3-tiny")
    return path


def breaks_off() -> None:
    raise ConnectionAbortedError


@contextmanager
def stand_in(says: StandIn) -> Iterator[str]:
    with StandInServer(("127.0.0.1", 0), handler_of(says)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class StandIns:
    """A fleet of two stand-ins, of which nothing is measured in earnest."""

    def __init__(self, ours: str, theirs: str, folder: Path, *, plays: int | None = None) -> None:
        self._transcript = ChatTranscript(folder)
        self._urls = {"ours": ours, PEER: theirs}
        self._left = plays
        self.order: list[str] = []

    def peer(self, name: str) -> Peer:
        return Peer(
            kind="vllm",
            url=self._urls[name],
            model="m",
            runs=lambda: True,
            transcript=self._transcript,
            temperature=0.0,
        )

    server = peer

    def play(self, server: str, load: Workload, seed: int) -> Played:
        if self._left is not None and len(self.order) == self._left:
            raise OutOfTime
        self.order.append(server)
        return asyncio.run(play(self.peer(server).agent, load, seed))


def compared(
    folder: Path, *, plays: int | None = None, rounds: int = 2, **fault: Any
) -> tuple[Rows, str | None, list[str]]:
    rows, told = Rows(), list[int]()
    foretold = ChatTranscript(folder).foretold
    follows = successors(VOCAB)
    with (
        stand_in(StandIn(VOCAB)) as ours,
        stand_in(StandIn(VOCAB, ends=breaks_off, **fault)) as theirs,
    ):
        fleet: Any = StandIns(ours, theirs, folder, plays=plays)
        why = Comparison(
            fleet=fleet,
            loads=LOADS,
            rows=rows,
            foretold=lambda count: foretold(follows, count),
            told=lambda: told.append(len(fleet.order)),
        ).measure(rounds)
    assert told == sorted(told)
    return rows, why, fleet.order


def test_equal_work_has_equal_digests_and_rows_of_both(folder: Path) -> None:
    rows, why, order = compared(folder)
    assert why is None
    figures = rows.figures()
    assert set(figures) == {f"{server}/{load}" for server in ("ours", PEER) for load in LOADS}
    for load in LOADS:
        mine, theirs = figures[f"ours/{load}"], figures[f"{PEER}/{load}"]
        assert mine["digests"] == theirs["digests"]
        assert len(set(mine["digests"])) == len(mine["walls_s"]) == 2
        assert theirs["computed_tokens"] == [
            sum(turn.prompt_tokens for session in played.sessions for turn in session)
            for played in rows.played[f"{PEER}/{load}"].values()
        ]
        assert theirs["steps"] == [
            sum(len(turn.token_s) for session in played.sessions for turn in session)
            for played in rows.played[f"{PEER}/{load}"].values()
        ]
    assert order[:4] == ["ours", PEER, PEER, "ours"]
    assert order[6:10] == [PEER, "ours", "ours", PEER]
    bars, reasons = rows.bars(list(LOADS))
    assert [bar.name for bar in bars[:-1]] == [name for name, load, *_ in RATIOS if load in LOADS]
    assert all(bar.value is not None and bar.value > 0 for bar in bars[:-1])
    assert (bars[-1].value, reasons) == (0, {})


def turns_of(*loads: str) -> int:
    return sum(LOADS[load].sessions * LOADS[load].turns for load in loads)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies_after", "vllm: RemoteProtocolError"),
        ("wrong_after", "answers are not the model's"),
    ],
)
@pytest.mark.parametrize("behind", [("s1",), ("s1", "s16_tools")])
def test_a_peer_that_fails_in_mid_run_has_empty_rows_that_say_why_and_ours_stand(
    folder: Path, fault: str, said: str, behind: tuple[str, ...]
) -> None:
    rows, why, order = compared(folder, rounds=1, **{fault: turns_of(*behind) + 1})
    assert why is None
    figures = rows.figures()
    assert all(isinstance(figures[f"ours/{load}"], dict) for load in LOADS)
    for load in LOADS:
        row = figures[f"{PEER}/{load}"]
        assert isinstance(row, dict) if load in behind else "round 1: " in row and said in row
    bars, reasons = rows.bars(list(LOADS))
    open_bars = {bar.name for bar in bars if bar.value is None}
    assert open_bars == set(reasons)
    assert open_bars == {name for name, load, *_ in RATIOS if load in set(LOADS) - set(behind)}
    assert all(said in reason for reason in reasons.values())
    assert order.count(PEER) == len(behind) + 1


def test_an_own_answer_that_is_wrong_is_a_bar_that_is_missed(folder: Path) -> None:
    rows = Rows()
    with stand_in(StandIn(VOCAB, wrong_after=1)) as ours, stand_in(StandIn(VOCAB)) as theirs:
        fleet: Any = StandIns(ours, theirs, folder)
        transcript, follows = ChatTranscript(folder), successors(VOCAB)
        Comparison(
            fleet=fleet,
            loads={"s1": LOADS["s1"]},
            rows=rows,
            foretold=lambda count: transcript.foretold(follows, count),
        ).measure(1)
    assert rows.bars(["s1"])[0][-1].met is False
    assert rows.wrong == ["ours/s1: round 1: 1 answers are not the model's"]


@pytest.mark.parametrize("plays", [0, 3, 8])
def test_a_run_that_ends_at_its_limit_keeps_what_was_played(folder: Path, plays: int) -> None:
    rows, why, _ = compared(folder, plays=plays)
    assert why is not None
    assert sum(map(len, rows.played.values())) == plays
    assert not rows.empty


def test_the_hosts_time_of_a_step_is_told_of_both_where_the_card_is_watched(folder: Path) -> None:
    rows = Rows()
    card = CardBusy()
    transcript, follows = ChatTranscript(folder), successors(VOCAB)
    with stand_in(StandIn(VOCAB)) as ours, stand_in(StandIn(VOCAB)) as theirs:
        fleet: Any = StandIns(ours, theirs, folder)
        playing = fleet.play

        def play_watched(*given: Any) -> Played:
            card.take(0.0)
            return playing(*given)

        fleet.play = play_watched
        Comparison(
            fleet=fleet,
            loads={"s1": LOADS["s1"]},
            rows=rows,
            foretold=lambda count: transcript.foretold(follows, count),
            card=card,
        ).measure(1)
    row, (play_of,) = rows.figures()[f"{PEER}/s1"], rows.played[f"{PEER}/s1"].values()
    assert row["card_busy"] == [0]
    all_idle = 1000 * in_flight_s(play_of) / row["steps"][0]
    assert row["host_ms_per_step"] == [pytest.approx(all_idle, abs=1e-3)]


def test_a_peer_that_does_not_start_says_why(folder: Path, tmp_path: Path) -> None:
    launch = [sys.executable, "-c", "raise SystemExit('no CUDA here')"]
    transcript = ChatTranscript(folder)
    with pytest.raises(DataMissing, match="no CUDA here"):
        with vllm_cuda_server(
            launch, folder, folder=tmp_path, options=["--block-size", 16], transcript=transcript
        ):
            pass
    rows = Rows()
    rows.lose(f"{PEER}/s1", ["s1", "s16_tools"], "no CUDA here")
    assert rows.figures() == {f"{PEER}/s1": "no CUDA here", f"{PEER}/s16_tools": "no CUDA here"}


def test_room_is_a_share_of_what_the_sessions_hold_and_fits_the_card_or_is_refused(
    folder: Path,
) -> None:
    loads = gpu_loads(rehearse=False)
    for way in WAYS.values():
        of_way = [loads[name] for name in way.loads]
        room = Room.of(of_way, 3, way.share)
        most = max(needed_tokens(plan_of(load, seed))[0] for load in of_way for seed in range(3))
        assert room.kv_tokens == pytest.approx(most * way.share, abs=16)
        assert room.longest > 3000
    assert room.kv_mib(folder) << 20 >= room.kv_tokens * 2 * 2 * 2 * 16 * 2
    needed = room.card_bytes(folder)
    check_card(needed, lambda: needed)
    with pytest.raises(DataMissing, match="too little memory on the card: 0 GiB"):
        check_card(needed, lambda: 0)


def test_tools_take_what_the_seed_says_and_texts_are_the_same() -> None:
    load = gpu_loads(rehearse=False)["s16_tools"]
    pauses = [pause_s(load, 1, session, turn) for session in range(16) for turn in range(1, 8)]
    assert 1.0 <= min(pauses) < 1.5 < 4.5 < max(pauses) <= 5.0
    assert pauses[0] == pause_s(load, 1, 0, 1) != pause_s(load, 2, 0, 1)
    assert plan_of(load, 1) == plan_of(replace(load, tool_most_s=0.0), 1)
    assert pause_s(replace(load, tool_most_s=0.0), 1, 0, 1) == 1.0


def test_a_rehearsal_plays_our_own_server_beside_the_stand_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--device", "cuda", "--rehearse", "--way", "half", "--rounds", "1", "--json"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "NaN" not in said
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line.get("partial", False) for line in lines] == [True, True, False]
    rows = lines[-1]["figures"]["rows"]
    mine, theirs = rows["ours/s64_half"], rows[f"{PEER}/s64_half"]
    assert mine["digests"] == theirs["digests"]
    assert mine["prompt_tokens"] == theirs["prompt_tokens"]
    assert 0 < mine["computed_tokens"][0] < mine["prompt_tokens"]
    assert min(mine["steps"][0], theirs["steps"][0]) > 0
    card = torch.cuda.is_available()
    assert card or mine["card_busy"] == mine["host_ms_per_step"] == [None]


def test_agents_beside_the_peer_end_themselves_before_they_are_ended() -> None:
    assert {measurement.name for measurement in PARTS["4"]} == {f"agent_loop_{way}" for way in WAYS}
    for measurement in PARTS["4"]:
        given = options().parse_args(measurement.command[3:])
        assert given.limit_s < measurement.limit_s
        assert options().parse_args((measurement.rehearsed or ())[3:]).rehearse


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda"]) == 2
    assert "too little memory on the card: 0 GiB" in capsys.readouterr().err
