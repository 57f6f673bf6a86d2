"""Questions for a GPU, in parts of at most eight minutes, rehearsed on a CPU.

    tools/gpu_run.sh PART OUT_DIR [--rehearse] [--only NAME ...] [--vllm-python FILE]

Each measurement is a process of its own with a time limit: one that dies, hangs or finds a wrong
value costs its own time and no other's. Its line goes to OUT_DIR/results.jsonl as soon as it has
ended, what it said to OUT_DIR/log.txt. A part ends before its eight minutes: what did not get its
turn is written down as not run. Exit code 0 when every measurement gave its value.

Part 4 plays agents beside vLLM, whose interpreter is given (``tools.peer_wheels install`` makes
it); its first measurement may take all of a part's time, so what is left is run by ``--only``. Part
5 is for models with recurrent layers, part 6 for a machine with two GPUs or more.

``--rehearse`` runs the same commands on small sizes, where there is no GPU under Triton's
interpreter: every path is executed and every file written. No figure of a rehearsal counts.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PART_S = 8 * 60 - 15
"""The time that a part may take; the rest is for packing."""
MOST_BYTES = 15 << 20
"""The most that is kept of one file that is left behind."""
_TAIL = 4000
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One process."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    rehearsed: tuple[str, ...] | None = None
    """The command of a rehearsal; None: the same with ``--rehearse``."""
    interpreted: bool = True
    """A rehearsal runs Triton's kernels in its interpreter; a server would take too long."""
    beside_peer: bool = False
    """Is given the peer's interpreter, where there is one."""


def benchmark(part: str, limit_s: float) -> Measurement:
    """A part of ``benchmarks.gpu``."""
    command = (sys.executable, "-m", "benchmarks.gpu", "--only", part)
    return Measurement(name=part, command=command, limit_s=limit_s)


def module(name: str, limit_s: float, *options: str, rehearsed: Sequence[str] = ()) -> Measurement:
    """A module of ours that prints its figures as one line of JSON."""
    command = (sys.executable, "-m", name)
    return Measurement(
        name=name.rpartition(".")[2],
        command=(*command, *options),
        limit_s=limit_s,
        rehearsed=(*command, *rehearsed),
        interpreted=name != SERVER,
    )


def agent_loop(way: str, limit_s: float) -> Measurement:
    """Agents in a loop beside the peer, one of the ways of ``benchmarks.agent_loop_gpu``. It ends
    itself ten seconds before its time is over."""
    program = (sys.executable, "-m", "benchmarks.agent_loop")
    command = (*program, "--device", "cuda", "--json", "--way", way)
    return Measurement(
        name=f"agent_loop_{way}",
        command=(*command, "--limit-s", str(limit_s - 10)),
        limit_s=limit_s,
        rehearsed=(*command, "--rehearse", "--rounds", "1"),
        interpreted=False,
        beside_peer=True,
    )


SERVER = "tools.gpu_server"
_DEMO = (sys.executable, "-m", "keepwarm", "demo")
_TESTS = (sys.executable, "-m", "pytest", "-q", "tests/gpu")
_NEW_TESTS = (*_TESTS, "tests/model/test_gated_delta.py", "tests/model/test_short_conv.py")
_RECURRENT = "delta or conv or mamba"
_REHEARSED = f"({_RECURRENT}) and not chunks and not channel"
"""Those two take the interpreter more than a minute; ``make kernels`` has them."""
_NEW_KERNELS = f"{_RECURRENT} or shaping or ring or gated or latent or expert or grouped"
PARTS: dict[str, tuple[Measurement, ...]] = {
    "1": (
        module("tools.gpu_versions", 60),
        Measurement(
            name="tests",
            command=(*_TESTS, "-v", "-n", "12", "-W", "default", "-o", "faulthandler_timeout=40"),
            limit_s=120,
            rehearsed=(*_TESTS, "-k", "split_plan or fp8"),
        ),
        module(SERVER, 100, "--sessions", "16", rehearsed=("--sessions", "2", "--turns", "2")),
        Measurement(
            name="demo",
            command=(*_DEMO, "--sessions", "16"),
            limit_s=90,
            rehearsed=(*_DEMO, "--sessions", "2"),
            interpreted=False,
        ),
        benchmark("attention", 60),
        benchmark("steps", 90),
        benchmark("shared_prefix", 40),
        module("tools.gpu_profile", 60, rehearsed=("--rehearse",)),
    ),
    "2": (
        benchmark("sweep", 120),
        benchmark("sweep_verify", 40),
        benchmark("sweep_prefix", 40),
        benchmark("sweep_fp8", 40),
        benchmark("verify", 40),
        benchmark("verified_steps", 60),
        benchmark("graphs", 90),
        benchmark("lookahead", 150),
        benchmark("prefill", 60),
        benchmark("tiers", 40),
        benchmark("peer", 60),
        benchmark("sampling", 60),
        benchmark("fp8_kv", 60),
        benchmark("fp8_products", 60),
        benchmark("experts", 120),
        benchmark("peer_compiled", 150),
    ),
    "3": (
        benchmark("attention", 60),
        benchmark("steps", 90),
        module(
            SERVER,
            300,
            *("--model", "random:qwen3-8b", "--sessions", "64", "--turns", "3", "--fleet-s", "180"),
            rehearsed=(
                *("--model", "random:qwen3-tiny", "--sessions", "2", "--turns", "2"),
                *("--fleet-s", "5"),
            ),
        ),
    ),
    "4": (
        agent_loop("ample", PART_S),
        agent_loop("half", 300),
        agent_loop("defaults", 300),
    ),
    "5": (
        Measurement(
            name="recurrent_tests",
            command=(*_NEW_TESTS, "-k", _NEW_KERNELS, "-W", "default", "-n", "12"),
            limit_s=120,
            rehearsed=(*_NEW_TESTS, "-k", _REHEARSED, "-W", "default"),
        ),
        benchmark("recurrent", 120),
        module(
            SERVER,
            200,
            *("--model", "random:qwen3.5-100m", "--sessions", "16", "--turns", "4"),
            rehearsed=(*("--model", "random:qwen3.5-tiny", "--sessions", "2", "--turns", "2"),),
        ),
        benchmark("experts", 120),
    ),
    "6": (
        module(
            "benchmarks.ranks",
            420,
            *("--json", "--device", "cuda", "--model", "random:qwen3-8b", "--dtype", "bfloat16"),
            rehearsed=("--json", "--model", "random:qwen3-tiny-4", "--ranks", "2"),
        ),
    ),
}


def main(
    arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.monotonic
) -> int:
    """Run a part."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("part", choices=PARTS)
    options.add_argument("out", type=Path, metavar="OUT_DIR")
    options.add_argument("--rehearse", action="store_true")
    options.add_argument("--only", nargs="+", metavar="NAME", help="these measurements of the part")
    options.add_argument("--vllm-python", type=Path, metavar="FILE", help="the peer's, for part 4")
    chosen = options.parse_args(arguments)
    measurements = {measurement.name: measurement for measurement in PARTS[chosen.part]}
    names = chosen.only or list(measurements)
    if unknown := set(names) - set(measurements):
        options.error(f"part {chosen.part} has {', '.join(measurements)}, not {min(unknown)}")
    wanted = [beside(measurements[name], chosen.vllm_python) for name in names]
    chosen.out.mkdir(parents=True, exist_ok=True)
    good = run(wanted, chosen.out, rehearse=chosen.rehearse, clock=clock)
    pack_cache(chosen.out)
    return 0 if good else 1


def beside(measurement: Measurement, peer: Path | None) -> Measurement:
    """The measurement with the peer's interpreter, if it takes one."""
    if peer is None or not measurement.beside_peer:
        return measurement
    more = ("--vllm-python", str(peer.absolute()))
    rehearsed = measurement.rehearsed
    return replace(
        measurement,
        command=(*measurement.command, *more),
        rehearsed=None if rehearsed is None else (*rehearsed, *more),
    )


def run(
    measurements: Sequence[Measurement],
    out: Path,
    *,
    rehearse: bool,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run all within a part's time; whether each gave its value."""
    ends, good = clock() + PART_S, True
    for measurement in measurements:
        limit_s = min(measurement.limit_s, ends - clock())
        if limit_s <= 1:
            line: dict[str, Any] = {"name": measurement.name, "outcome": "not run: no time left"}
        else:
            line = take(measurement, out / "log.txt", limit_s, rehearse=rehearse)
        good &= line["outcome"] == "done"
        with (out / "results.jsonl").open("a", encoding="utf-8") as results:
            results.write(json.dumps(line) + "\n")
        print(f"{line['name']}: {line['outcome']}", flush=True)
    return good


def take(measurement: Measurement, log: Path, limit_s: float, *, rehearse: bool) -> dict[str, Any]:
    """Run one and say what came of it. Its last line of JSON is its value."""
    command = measurement.command
    if rehearse:
        command = measurement.rehearsed or (*command, "--rehearse")
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(interpreted=rehearse and measurement.interpreted),
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
        outcome = "done" if process.returncode == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        said = _end(process)
        outcome = f"hung: ended after {limit_s:.0f} s"
    _append(log, f"$ {' '.join(command)}\n{said}\n")
    line = {
        "name": measurement.name,
        "rehearsal": rehearse,
        "outcome": outcome,
        "seconds": round(time.monotonic() - began, 2),
        "value": last_json(said),
    }
    return line if outcome == "done" else line | {"tail": said[-_TAIL:]}


def environment(*, interpreted: bool) -> dict[str, str]:
    """The environment of a measurement's process."""
    own = {"PYTHONUNBUFFERED": "1"}
    if interpreted:
        own |= {"KEEPWARM_KERNELS": "triton", "TRITON_INTERPRET": "1"}
    return dict(os.environ) | own


def last_json(said: str) -> Any:
    """The value of the last line that is a JSON object; None without one."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def _end(process: subprocess.Popen[str]) -> str:
    """End a process and all it has started; what it had said."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # the first has Python say where
        try:
            os.killpg(process.pid, number)
            said, _ = process.communicate(timeout=_GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        else:
            return said
    said, _ = process.communicate()
    return said


def _append(log: Path, text: str) -> None:
    size = log.stat().st_size if log.exists() else 0
    with log.open("a", encoding="utf-8") as file:
        file.write(text[: max(0, MOST_BYTES - size)])


def pack_cache(out: Path) -> None:
    """Triton's cache of compiled kernels, for the next time, if it is small enough to keep."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    if not folder.is_dir():
        return
    packed = out / "triton_cache.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, arcname="cache")
    if packed.stat().st_size > MOST_BYTES:
        packed.unlink()


if __name__ == "__main__":
    sys.exit(main())
