"""Agents in a loop on a GPU, beside vLLM on the same card: the part of ``agent_loop`` for one.

    python -m benchmarks.agent_loop --device cuda --vllm-python F [--way NAME] [--json]

Both servers have the same weights in bfloat16 (a model of wide margins, ``loop_model``) and room
for KV of as many tokens; they are started once and play the same greedy turns, fresh texts in each
round, in changing order. Each answer is compared with what the model must say. Nothing is drafted:
with these models every answer would be foretold. The ways, a run each:

    ample     room for 1.25 of what the sessions hold: one session; 16 and 64 with tools of 1 to 5 s
    half      room for .5 of it: 64 sessions
    defaults  as ample, both servers without options but for the room: 16 sessions

``host_ms_per_step`` is what the host costs either engine: the time in which a turn was being
answered and the card ran no kernel, over the engine's steps. The card's share is the driver's, in
moments of a sixth of a second and more (``card_busy``), so that it says little of a short play.

After each play a line of JSON has all figures so far, so that a run that is ended keeps them. A
peer that does not start, ends, or answers wrongly loses its rows from there on, with the reason;
ours stand. Exit codes are those of ``agent_loop``. ``--rehearse``: on this machine's CPU, tiny,
beside ``loop_stand_in`` unless a peer is given; no figure of it counts.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.card_busy import CardBusy, watched_card
from benchmarks.loop_counters import OURS, PEER, Counters, counters, host_ms_per_step
from benchmarks.loop_fleet import NO_DRAFTS, Fleet, OutOfTime
from benchmarks.loop_model import successors, write_margin_model
from benchmarks.loop_peers import PeerFailed, vllm_cuda_server
from benchmarks.loop_simulation import kv_bytes_per_token
from benchmarks.loop_transcript import ChatTranscript
from benchmarks.loop_workload import Played, Workload, WrongLength, needed_tokens, plan_of
from benchmarks.report import Bar, DataMissing, report
from runtime.model.hf_config import read_model_config
from runtime.model.runner import available_cores

BLOCK = 16
BEST: tuple[object, ...] = (
    *("--enable-prefix-caching", "--enable-chunked-prefill", "--async-scheduling"),
    *("--attention-backend", "FLASH_ATTN", "--attention-config", '{"flash_attn_version": 3}'),
    *("--max-num-batched-tokens", 8192, "--performance-mode", "interactivity"),
)
"""vLLM's options where both are at their best; graphs are on unless it is told otherwise."""
SPARE_BYTES = 6 << 30
"""Beside weights and KV, for each server: graphs, activations, what torch keeps."""
_REASON = 2500


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWay:
    """How both are served, and the loads that are played."""

    loads: tuple[str, ...]
    share: float
    """Room for KV over what the sessions of the largest load hold at their ends."""
    best: bool = True


WAYS = {
    "ample": GpuWay(loads=("s1", "s16_tools", "s64_tools"), share=1.25),
    "half": GpuWay(loads=("s64_half",), share=0.5),
    "defaults": GpuWay(loads=("s16_tools",), share=1.25, best=False),
}
RATIOS: tuple[tuple[str, str, str, float], ...] = (
    ("gpu_s1_wall_over_vllm", "s1", "wall_s", 0.8),
    ("gpu_s16_tools_over_vllm", "s16_tools", "wall_s", 0.8),
    ("gpu_s64_tools_over_vllm", "s64_tools", "wall_s", 0.8),
    ("gpu_s64_half_kv_over_vllm", "s64_half", "wall_s", 0.6),
    ("gpu_s1_ttft_over_vllm", "s1", "ttft_p50_ms", 0.6),
    ("gpu_s16_tools_ttft_over_vllm", "s16_tools", "ttft_p50_ms", 0.6),
    ("gpu_s64_tools_ttft_over_vllm", "s64_tools", "ttft_p50_ms", 0.6),
    ("gpu_s64_half_kv_ttft_over_vllm", "s64_half", "ttft_p50_ms", 0.6),
)
"""Bars: name, load, figure of ours over vLLM's, at most."""


def gpu_loads(*, rehearse: bool) -> dict[str, Workload]:
    """The workloads by name; contexts of up to some 5,000 tokens, or tiny ones."""
    tools = Workload(
        texts="tools16",
        sessions=16,
        turns=5,
        result_tokens=(20, 2000),
        answer_tokens=(8, 128),
        tool_s=1.0,
        tool_most_s=5.0,
    )
    loads = {
        "s1": Workload(texts="one", sessions=1, turns=20),
        "s16_tools": tools,
        "s64_tools": replace(tools, texts="tools64", sessions=64, turns=3),
        "s64_half": replace(tools, texts="half64", sessions=64, turns=4),
    }
    if not rehearse:
        return loads
    return {
        name: replace(
            load,
            sessions=min(load.sessions, 3),
            turns=2,
            system_tokens=60,
            result_tokens=(5, 60),
            answer_tokens=(3, 9),
            tool_s=0.0,
            tool_most_s=min(load.tool_most_s, 0.02),
        )
        for name, load in loads.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a way's servers are given, in tokens."""

    kv_tokens: int
    longest: int
    """The longest context of any session, with a little to spare."""

    @classmethod
    def of(cls, loads: Sequence[Workload], rounds: int, share: float) -> "Room":
        """For these workloads with the texts of that many rounds."""
        needed = [needed_tokens(plan_of(load, seed)) for load in loads for seed in range(rounds)]
        longest = max(most for _, most in needed) + BLOCK
        kv_tokens = max(max(whole for whole, _ in needed) * share, longest)
        return cls(kv_tokens=-(-int(kv_tokens) // BLOCK) * BLOCK, longest=longest)

    def kv_mib(self, model: Path) -> int:
        """Memory for that KV of the model in a folder."""
        return -(-self.kv_tokens * kv_bytes_per_token(model) // (1 << 20))

    def card_bytes(self, model: Path) -> int:
        """Memory that both servers take together on one card."""
        weights = (model / "model.safetensors").stat().st_size
        return 2 * (weights + (self.kv_mib(model) << 20) + SPARE_BYTES)


def check_card(needed: int, free: Callable[[], int]) -> None:
    """Raises DataMissing: the card has less than ``needed`` bytes free, or there is none."""
    found = free()
    if found < needed:
        raise DataMissing(
            f"too little memory on the card: {found >> 30} GiB are free, both servers take "
            f"{-(-needed >> 30)} GiB; a smaller --model fits"
        )


def free_on_card() -> int:
    """Bytes, asked for in another process: this one keeps no context on the card."""
    said = "import torch; print(torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0)"
    ran = subprocess.run([sys.executable, "-c", said], check=True, capture_output=True, text=True)
    return int(ran.stdout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a server did for a play."""

    counted: Counters
    busy: float | None
    """The share of the time in which the card ran kernels; None: nobody said."""
    host_ms_per_step: float | None


@dataclass(slots=True, kw_only=True)
class Rows:
    """What was played, and why what was not."""

    played: dict[str, dict[int, Played]] = field(default_factory=dict)
    """By run, SERVER/LOAD, and seed."""
    work: dict[str, list[Work]] = field(default_factory=dict)
    """What servers did for it, of each play."""
    empty: dict[str, str] = field(default_factory=dict)
    """Runs that have no row, with the reason."""
    lost: str | None = None
    """Why the peer is asked no more."""
    wrong: list[str] = field(default_factory=list)
    """Plays of ours whose answers were not those that the model must give."""

    def lose(self, run: str, loads: Sequence[str], why: str) -> None:
        """The peer failed in ``run``: it and all runs of the peer that were not yet played
        have no row."""
        self.lost = why
        self.played.pop(run, None)
        for load in loads:
            if f"{PEER}/{load}" not in self.played:
                self.empty[f"{PEER}/{load}"] = why

    def figures(self) -> dict[str, Any]:
        """Medians of each run, or the reason."""
        found: dict[str, Any] = dict(self.empty)
        for run, by_seed in self.played.items():
            plays = list(by_seed.values())
            medians = {
                name: _rounded(statistics.median(play.figures[name] for play in plays))
                for name in plays[0].figures
            }
            whole = {
                "walls_s": [round(play.wall_s, 3) for play in plays],
                "digests": [play.digest for play in plays],
            }
            found[run] = medians | whole | _columns(self.work.get(run, ()))
        return found

    def bars(
        self, loads: Sequence[str], *, rehearsal: bool = False
    ) -> tuple[list[Bar], dict[str, str]]:
        """The bars of these loads, and why those that are open are; those of a rehearsal are that
        all was played, and rightly."""
        bars, reasons = [], {}
        for name, load, figure, most in () if rehearsal else RATIOS:
            if load not in loads:
                continue
            mine, theirs = (self.played.get(f"{server}/{load}", {}) for server in (OURS, PEER))
            both = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
            found = [one.figures[figure] / other.figures[figure] for one, other in both]
            if not found:
                reasons[name] = self.empty.get(f"{PEER}/{load}", "not played")
            value = statistics.median(found) if found else None
            bars.append(Bar(name=name, value=value, op="<=", bar=most))
        if rehearsal:
            bars.append(Bar(name="gpu_empty_rows", value=len(self.empty), op="<=", bar=0))
        bars.append(Bar(name="gpu_wrong_answers", value=len(self.wrong), op="<=", bar=0))
        return bars, reasons


def _columns(work: Sequence[Work]) -> dict[str, list[float | None]]:
    """What was done, of each play."""
    return {
        "computed_tokens": [each.counted.computed_tokens for each in work],
        "steps": [each.counted.steps for each in work],
        "card_busy": [_rounded(each.busy) for each in work],
        "host_ms_per_step": [_rounded(each.host_ms_per_step) for each in work],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both servers and what is played on them."""

    fleet: Fleet
    loads: Mapping[str, Workload]
    rows: Rows
    foretold: Callable[[int], str]
    """The text of an answer of so many tokens."""
    card: CardBusy = field(default_factory=CardBusy)
    told: Callable[[], None] = lambda: None
    """Called when ``rows`` has one play more."""

    def measure(self, rounds: int) -> str | None:
        """Play all. Why it is not finished, or None."""
        try:
            for seed in range(rounds):
                for number, load in enumerate(self.loads):
                    for server in (OURS, PEER) if (seed + number) % 2 == 0 else (PEER, OURS):
                        if server == OURS or self.rows.lost is None:
                            self._play(server, load, seed)
                            self.told()
        except OutOfTime:
            return "the time was over before all was played"
        return None

    def _play(self, server: str, name: str, seed: int) -> None:
        """One play of a load, into ``rows``."""
        run, load = f"{server}/{name}", self.loads[name]
        try:
            at = self.fleet.server(server) if server == OURS else self.fleet.peer(server)
            before, begun_s = counters(at.url, server), time.perf_counter()
            found = self.fleet.play(server, load, seed)
            busy = self.card.share(begun_s, time.perf_counter())
            counted = counters(at.url, server).since(before)
        except (DataMissing, PeerFailed, OSError, ExceptionGroup) as error:
            if server == OURS or (why := _peers_fault(error)) is None:
                raise
            self.rows.lose(run, list(self.loads), f"round {seed + 1}: {why}"[:_REASON])
            return
        if unlike := unlike_answers(found, load, seed, self.foretold):
            said = f"round {seed + 1}: {unlike} answers are not the model's"
            if server == PEER:
                self.rows.lose(run, list(self.loads), said)
                return
            self.rows.wrong.append(f"{run}: {said}")
        self.rows.played.setdefault(run, {})[seed] = found
        self.rows.work.setdefault(run, []).append(
            Work(
                counted=counted,
                busy=busy,
                host_ms_per_step=host_ms_per_step(found, counted.steps, busy),
            )
        )


def _peers_fault(error: Exception) -> str | None:
    """What a peer did, in words; None where it is not the peer's fault."""
    if isinstance(error, ExceptionGroup):
        theirs, others = error.split((WrongLength, PeerFailed, OSError))
        return None if others or not theirs else _peers_fault(theirs.exceptions[0])
    return str(error) or type(error).__name__


def unlike_answers(found: Played, load: Workload, seed: int, foretold: Callable[[int], str]) -> int:
    """Answers that the model cannot have given."""
    return sum(
        turn.text != foretold(planned.answer_tokens)
        for session, plans in zip(found.sessions, plan_of(load, seed).sessions, strict=True)
        for turn, planned in zip(session, plans, strict=True)
    )


def _written(model: Path, name: str, room: Room, *, on_card: bool) -> dict[str, Any]:
    """Write the model into a folder, where both servers fit the card; returns figures of both.

    Raises:
        DataMissing: there is no card, or too little memory on it.
    """
    figures: dict[str, Any] = {}
    if on_card:
        check_card(1, free_on_card)
        figures["card"] = torch.cuda.get_device_name()
    device = torch.device("cuda" if on_card else "cpu")
    figures["parameters"] = write_margin_model(model, name, device=device)
    if on_card:
        torch.cuda.empty_cache()
        check_card(room.card_bytes(model), free_on_card)
    return figures


def run_on_gpu(given: argparse.Namespace) -> int:
    """Measure a way and print; the servers have ended in any case.

    Raises:
        DataMissing: there is no card, too little memory on it, or no such model.
    """
    way = WAYS[given.way]
    every = gpu_loads(rehearse=given.rehearse)
    loads = {name: every[name] for name in way.loads}
    model_name = "random:qwen3-tiny" if given.rehearse else given.model
    device = "cpu" if given.rehearse else "cuda"
    room = Room.of(list(loads.values()), given.rounds, way.share)
    figures: dict[str, Any] = {"way": given.way, "model": model_name, "rehearsal": given.rehearse}
    figures |= {"kv_tokens": room.kv_tokens, "longest": room.longest, "rounds": given.rounds}
    deadline_s = time.monotonic() + given.limit_s
    rows = Rows()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        model = folder / model_name.replace(":", "-")
        figures |= _written(model, model_name, room, on_card=not given.rehearse)
        transcript = ChatTranscript(model)
        fleet = Fleet(
            stack=stack,
            folder=folder,
            model=model_name,
            before=None,
            peers={PEER: given.vllm_python or Path(sys.executable)},
            options=("--kv-cache-mib", str(room.kv_mib(model)), "--device", device),
            sessions=max(load.sessions for load in loads.values()),
            threads=available_cores(),
            deadline_s=deadline_s,
            ways={OURS: (*NO_DRAFTS, *(("--dtype", "bfloat16") if given.rehearse else ()))},
            programs={PEER: ("--vllm-python", _starter(given, way, room, transcript, deadline_s))},
            temperature=0.0,
            start_timeout_s=given.limit_s,
        )
        fleet.parameters[model_name] = figures["parameters"]
        if given.vllm_python is None and not given.rehearse:
            rows.lose("", list(loads), "no --vllm-python was given")
        follows = successors(read_model_config(model).vocab_size)

        def told() -> None:
            print(json.dumps({"partial": True, "figures": figures | {"rows": rows.figures()}}))
            sys.stdout.flush()

        comparison = Comparison(
            fleet=fleet,
            loads=loads,
            rows=rows,
            foretold=partial(transcript.foretold, follows),
            card=stack.enter_context(watched_card()),
            told=told,
        )
        figures["unfinished"] = comparison.measure(given.rounds)
    bars, figures["open"] = rows.bars(list(loads), rehearsal=given.rehearse)
    figures |= {"rows": rows.figures(), "wrong": rows.wrong}
    code = report("agent_loop_gpu", figures, bars, as_json=given.json)
    return 1 if figures["unfinished"] or any(bar.met is False for bar in bars) else code


def _starter(
    given: argparse.Namespace,
    way: GpuWay,
    room: Room,
    transcript: ChatTranscript,
    deadline_s: float,
) -> Callable[..., Any]:
    """What starts the peer for ``Fleet``."""
    options: list[object] = ["--num-gpu-blocks-override", room.kv_tokens // BLOCK]
    options += ["--block-size", BLOCK, "--max-model-len", room.longest]
    options += ["--gpu-memory-utilization", 0.45]
    options += BEST if way.best else ()

    def start(python: Path, model: Path, *, folder: Path, **_: Any) -> Any:
        launch: tuple[object, ...] = (python.absolute(), "-m")
        stand_in = given.rehearse and given.vllm_python is None
        module = "benchmarks.loop_stand_in" if stand_in else "vllm.entrypoints.openai.api_server"
        return vllm_cuda_server(
            (*launch, module),
            model,
            folder=folder,
            options=options,
            transcript=transcript,
            start_timeout_s=deadline_s - time.monotonic(),
        )

    return start
