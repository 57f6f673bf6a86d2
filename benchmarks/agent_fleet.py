"""Recorded agent sessions on the real engine: what scheduling and retention are worth there.

The engine runs in this process on the shipped model. Sessions are those of the traces with
lengths divided by 32, N at a time in a closed loop, the KV capacity chosen so that N mean contexts
are 1.9 times as much. Pauses are shortened until what the sessions ask for, each turn by itself,
is 0.7 of the engine's time, as the table of its costs tells that: a faster engine has shorter ones,
as one without load has nothing to schedule. Token contents are made up; a turn ends at its
recorded length. First come first served with plain LRU, then ours, each again in the
simulator, whose device is the engine's table of costs, timed at the start, with what the engine's
steps took beside it on the whole. Figures of the bars are means over several fleets.

``itl_p99_over_bound``: the 99th percentile of the time between two tokens of eight running turns
with contexts of the fleet's mean length, while a prompt of the longest supported length is
computed from its first token to its last, over the gap that the engine says it aims at; median of
three runs.
"""

import argparse
import heapq
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost_fit import LinearFit
from benchmarks.fleet_engine import (
    RecordedLengths,
    engine_for,
    timed_table,
    tokenizer_of,
    with_host,
)
from benchmarks.fleet_gaps import gaps_over_bound
from benchmarks.report import Bar, DataMissing, data_file, machine, parser, report, report_missing
from benchmarks.simulate import SESSIONS_FILE
from benchmarks.simulation import FCFS_LRU, OURS, DeviceProfile, Mode, Setting, Simulation
from benchmarks.trace_sessions import Session, Turn, choose, load_chains
from runtime.config import TOKEN_GAP_MS, EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import (
    FinishReason,
    GenerationRequest,
    ReleaseBranch,
    SamplingParams,
    TokenArray,
)
from runtime.model.runner import load_runner
from runtime.scheduling.costs import CostProfile, CostTable, Kind, StepCosts, StepWork
from runtime.tokenizer import Tokenizer

LENGTH_SCALE = 32
RHO = 1.9
ASKED = 0.7
"""The part of the engine's time that the sessions ask for if none waits: what pauses divided by 20
made with the engine of 2026-11-21, when the bars were set (seeds 1 to 3: 0.67, 0.68, 0.73)."""
MOST_PAUSE_S = 300.0
KV_TOKENS = 840_000 // LENGTH_SCALE
"""In a written profile: the memory of ``h200_8b`` with the lengths."""
BLOCK = 16
UNMEASURED = (
    Bar(name="mean_gain", value=None, op=">=", bar=2.5),
    Bar(name="simulator_error", value=None, op="<=", bar=0.15),
    Bar(name="itl_p99_over_bound", value=None, op="<=", bar=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The sessions that are played, and the memory they have."""

    fleet: list[Session]
    at_a_time: int
    kv_tokens: int
    gap_scale: float = 1 / 20
    """By which pauses are multiplied."""


class WholeRun(StepCosts):
    """The engine's lessons, and beside them the mean of all its steps: towards the end of a run
    fewer turns run at a time, and the last steps are not like the others."""

    def __init__(self, table: CostTable) -> None:
        super().__init__(deepcopy(table))
        self.mean = LinearFit()
        self._begun = deepcopy(table)
        self._taken: dict[Kind, tuple[int, float]] = {}
        """Steps of a kind, and the seconds that all of them took beyond what the table says."""
        self._steps_s = 0.0

    def observe(self, work: StepWork, *, seconds: float) -> None:
        super().observe(work, seconds=seconds)
        self.mean.observe(work, seconds=seconds)
        self._steps_s += seconds
        steps, beyond_s = self._taken.get(work.kind, (0, 0.0))
        self._taken[work.kind] = steps + 1, beyond_s + seconds - self._begun.step_s(work)

    def device(self, busy_s: float) -> CostTable:
        """The table that the run began with, and what each step took beside it in the mean of its
        kind, with its part of ``busy_s``, all of the time in which there was work."""
        between_s = (busy_s - self._steps_s) / sum(steps for steps, _ in self._taken.values())
        mean_s = {kind: spent_s / steps for kind, (steps, spent_s) in self._taken.items()}
        prefill_s, decode_s = mean_s.get("prefill", 0.0), mean_s.get("decode", 0.0)
        mixed_s = mean_s.get("mixed", prefill_s)
        return with_host(
            self._begun,
            prefill_s=between_s + prefill_s,
            decode_s=between_s + decode_s,
            mixed_s=between_s + mixed_s,
        )


class _Client:
    """One session on its way."""

    __slots__ = ("arrived_s", "index", "length", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.index = 0
        self.length = 0
        self.arrived_s = 0.0

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.index]


class _Coming:
    """The turns to come, in the order of their times, and the sessions that have not begun."""

    def __init__(self, load: Load) -> None:
        self.clients: dict[str, _Client] = {}
        """By the name of the session, from its first turn on."""
        self._sessions = deque(load.fleet)
        self._turns: list[tuple[float, int, _Client]] = []
        self._count = 0

    @property
    def next_s(self) -> float | None:
        """When the next turn comes; None where none is known."""
        return self._turns[0][0] if self._turns else None

    def next_session(self, now: float) -> None:
        """The next session begins, if there is one."""
        if self._sessions:
            client = _Client(self._sessions.popleft())
            self.clients[client.session.name] = client
            self.add(client, now)

    def add(self, client: _Client, at_s: float) -> None:
        """The client's next turn comes at ``at_s``."""
        client.arrived_s = at_s
        self._count += 1
        heapq.heappush(self._turns, (at_s, self._count, client))

    def due(self, now: float) -> Iterator[_Client]:
        """Take out those that have come by now."""
        while self._turns and self._turns[0][0] <= now:
            yield heapq.heappop(self._turns)[2]


def as_words(tokens: TokenArray, vocabulary: int) -> TokenArray:
    """Token ids of a model for those of a recording, which has more of them: the same for the same,
    and otherwise without a pattern, so that texts that have no beginning in common get none."""
    mixed = tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (300 + (mixed >> np.uint64(32)) % np.uint64(vocabulary - 301)).astype(np.int32)


def request_of(client: _Client, vocabulary: int, banned: tuple[int, ...]) -> GenerationRequest:
    turn, name = client.turn, client.session.name
    kept = min(turn.kept_tokens, client.length)
    fresh = as_words(turn.tokens[kept : turn.prompt_tokens], vocabulary)
    return GenerationRequest(
        request_id=name,
        branch_id=name,
        tenant="fleet",
        base_branch_id=name if client.index else None,
        base_offset=kept if client.index else 0,
        new_tokens=fresh,
        max_new_tokens=2048,
        sampling=SamplingParams(seed=client.index),
        banned_tokens=banned,
        expects_tool_call=turn.calls_tool,
    )


_LOOK_S = 0.01
"""Between two looks for turns that are due, or for blocks while all there are wait for them: what
the simulator has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A fleet that has been played on an engine."""

    latencies_s: list[float]
    """Latencies of every turn."""
    hit: float
    """Share of prompt tokens that were cached."""
    busy_s: float
    """How long the engine had work."""


def play(
    engine: Engine,
    tokenizer: Tokenizer,
    load: Load,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Played:
    """Play a fleet with real pauses."""
    emission = engine.emission
    assert isinstance(emission, RecordedLengths)
    banned = tuple(sorted(tokenizer.end_of_turn_ids))
    vocabulary = engine.info.vocab_size
    coming = _Coming(load)
    latencies: list[float] = []
    prompt_tokens = cached_tokens = 0
    busy_s = 0.0
    started_s = clock()
    for _ in range(load.at_a_time):
        coming.next_session(started_s)
    while coming.next_s is not None or engine.has_work:
        begun_s = clock()
        for client in coming.due(begun_s):
            request = request_of(client, vocabulary, banned)
            emission.ends[client.session.name] = client.turn.output_tokens
            client.length = request.base_offset + len(request.new_tokens)
            engine.submit([request])
        worked = engine.has_work
        output = engine.step() if worked else None
        now = clock()
        busy_s += now - begun_s if worked else 0.0
        if output is None:
            if not engine.has_work or engine.pause_s:
                until_s = now + _LOOK_S if coming.next_s is None else coming.next_s
                sleep(max(0.0, min(until_s - now, _LOOK_S)))
            continue
        for answer in output.outputs:
            client = coming.clients[answer.request_id]
            client.length += len(answer.new_tokens)
            if answer.start is not None:
                prompt_tokens += answer.start.input_tokens
                cached_tokens += answer.start.cached_tokens
            if answer.finish is None:
                continue
            if answer.finish is not FinishReason.STOP:
                raise RuntimeError(f"a turn ended with {answer.finish}: {answer.error_message}")
            latencies.append(now - client.arrived_s)
            client.index += 1
            if client.index == len(client.session.turns):
                engine.submit([ReleaseBranch(branch_id=client.session.name)])
                coming.next_session(now)
            else:
                coming.add(client, now + _pause_s(client.turn) * load.gap_scale)
    return Played(latencies_s=latencies, hit=cached_tokens / prompt_tokens, busy_s=busy_s)


def simulation_of(load: Load, mode: Mode, costs: CostProfile | CostTable) -> Simulation:
    """The same fleet in virtual time."""
    profile = DeviceProfile(costs=costs, kv_tokens=load.kv_tokens, reload_token_s=0.0)
    setting = Setting(
        sessions=load.at_a_time,
        profile=profile,
        gap_scale=load.gap_scale,
        block_size=BLOCK,
        stride=1,
        token_gap_ms=TOKEN_GAP_MS,
    )
    return Simulation(load.fleet, mode, setting)


def load_of(chains: list[Session], *, sessions: int, at_a_time: int, seed: int) -> Load:
    """A fleet, and the memory in which it makes the pressure ``RHO``."""
    fleet = choose(chains, sessions, seed)
    contexts = [turn.prompt_tokens for chain in fleet for turn in chain.turns]
    largest = max(len(turn.tokens) for chain in fleet for turn in chain.turns)
    kv_tokens = max(int(at_a_time * statistics.fmean(contexts) / RHO), largest + 1024)
    return Load(fleet=fleet, at_a_time=at_a_time, kv_tokens=kv_tokens // BLOCK * BLOCK)


def gap_scale_of(load: Load, table: CostTable) -> float:
    """By what pauses are multiplied to make the load ``ASKED`` of an engine with these costs."""
    work_s = pauses_s = 0.0
    for session in load.fleet:
        length = 0
        for index, turn in enumerate(session.turns):
            kept = min(turn.kept_tokens, length)
            new, length = turn.prompt_tokens - kept, turn.prompt_tokens + turn.output_tokens
            pairs = new * (kept + new / 2)
            prompt = StepWork(prefill_tokens=new, prefill_pairs=pairs, prefill_chunks=1)
            decode = StepWork(decode_rows=1, decode_context=length)
            work_s += table.step_s(prompt) + turn.output_tokens * table.step_s(decode)
            pauses_s += _pause_s(turn) if index else 0.0
    return work_s * (load.at_a_time / ASKED - 1) / pauses_s


def _pause_s(turn: Turn) -> float:
    """Before a turn, as recorded."""
    return min(turn.gap_s, MOST_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fleet under one mode."""

    latencies_s: list[float]
    hit: float
    simulated_s: float
    """The mean turn latency that the simulator predicts."""
    costs: CostProfile
    gap_scale: float

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.latencies_s)


def outcomes_of(load: Load, config: EngineConfig) -> dict[str, Outcome]:
    """Play one fleet under both modes, and predict each with what its steps cost."""
    config = replace(config, num_blocks=load.kv_tokens // BLOCK)
    runner = load_runner(config)
    tokenizer = tokenizer_of(runner)
    table = timed_table(runner, config)
    load = replace(load, gap_scale=gap_scale_of(load, table))
    outcomes = {}
    for mode in (FCFS_LRU, OURS):
        kind = replace(config, policy=mode.policy, cache_policy="lease" if mode.lease else "lru")
        costs = WholeRun(table)
        engine = engine_for(runner, tokenizer, kind, costs)
        played = play(engine, tokenizer, load)
        device = costs.device(played.busy_s)
        outcomes[mode.name] = Outcome(
            latencies_s=played.latencies_s,
            hit=played.hit,
            simulated_s=simulation_of(load, mode, device).run().mean_s,
            costs=costs.mean.profile,
            gap_scale=load.gap_scale,
        )
    return outcomes


def write_profile(path: Path, outcomes: list[Outcome]) -> None:
    """Write what the engine's steps cost, in the mean, as a device of the simulator."""
    names = [field.name for field in fields(CostProfile)]
    costs = {n: statistics.fmean(getattr(o.costs, n) for o in outcomes) for n in names}
    row = {
        "device": f"{machine()}, default model, fitted by benchmarks.agent_fleet",
        "kv_tokens": KV_TOKENS,
        **{name: float(f"{seconds:.4g}") for name, seconds in costs.items()},
        "reload_token_s": 0.0,
        "lengths_by": LENGTH_SCALE,
        "pauses_by": round(1 / statistics.fmean(o.gap_scale for o in outcomes), 1),
    }
    path.write_text(json.dumps(row, indent=2) + "\n")


def options() -> argparse.ArgumentParser:
    answer = parser(__doc__)
    answer.add_argument("--model", default="default")
    answer.add_argument("--sessions", type=int, default=48, help="in all (default: %(default)s)")
    answer.add_argument("--at-a-time", type=int, default=32, help="(default: %(default)s)")
    answer.add_argument("--turns", type=int, default=16, help="of each (default: %(default)s)")
    answer.add_argument("--threads", type=int, default=None)
    answer.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="one fleet each (default: 1 2 3)"
    )
    answer.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="write what steps cost, for benchmarks.simulate",
    )
    return answer


def main() -> int:
    arguments = options().parse_args()
    try:
        path = data_file(arguments.data, SESSIONS_FILE)
    except DataMissing as error:
        return report_missing("agent_fleet", error, UNMEASURED, as_json=arguments.json)
    chains = load_chains(path, max_turns=arguments.turns, scale=LENGTH_SCALE)
    config = EngineConfig(
        model=arguments.model, block_size=BLOCK, threads=arguments.threads, max_draft_tokens=0
    )
    loads = [
        load_of(chains, sessions=arguments.sessions, at_a_time=arguments.at_a_time, seed=seed)
        for seed in arguments.seeds
    ]
    played = [outcomes_of(load, config) for load in loads]
    figures: dict[str, Any] = {"kv_tokens": [load.kv_tokens for load in loads]}
    means, errors = {}, []
    for mode in (FCFS_LRU, OURS):
        fleets = [outcomes[mode.name] for outcomes in played]
        means[mode.name] = statistics.fmean(fleet.mean_s for fleet in fleets)
        predicted = statistics.fmean(fleet.simulated_s for fleet in fleets)
        errors.append(abs(predicted / means[mode.name] - 1))
        p95s = [float(np.percentile(fleet.latencies_s, 95)) for fleet in fleets]
        figures |= {
            f"{mode.name} mean_s": [round(fleet.mean_s, 4) for fleet in fleets],
            f"{mode.name} simulated mean_s": [round(fleet.simulated_s, 4) for fleet in fleets],
            f"{mode.name} p95_s": [round(value, 4) for value in p95s],
            f"{mode.name} hit": [round(fleet.hit, 4) for fleet in fleets],
            f"{mode.name} costs": [asdict(fleet.costs) for fleet in fleets],
        }
    if arguments.profile is not None:
        write_profile(arguments.profile, [outcomes[OURS.name] for outcomes in played])
    contexts = [t.prompt_tokens for load in loads for chain in load.fleet for t in chain.turns]
    ratios, gaps = gaps_over_bound(config, context=int(statistics.fmean(contexts)), runs=3)
    divided = [round(1 / outcomes[OURS.name].gap_scale, 1) for outcomes in played]
    figures |= {"turns": len(contexts), "pauses divided by": divided} | gaps
    gain = means[FCFS_LRU.name] / means[OURS.name]
    values = (gain, max(errors), statistics.median(ratios))
    bars = [
        replace(bar, value=round(value, 4)) for bar, value in zip(UNMEASURED, values, strict=True)
    ]
    return report("agent_fleet", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
