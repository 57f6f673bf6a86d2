"""Worth of scheduling and retention: recorded agent fleets in virtual time.

The engine's scheduler, cost model and prefix cache serve N sessions at a time in a closed
loop, on the device of a profile; see ``benchmarks.simulation``. rho is N times the mean
context over the KV capacity. Three modes: first come first served with plain LRU, a
Continuum-like one, and ours. "Session time" is the sum of a session's turn latencies. The
slot-bound setting has KV without limit and 8 places for turns. Means are over seeds.

The bars of the loads are the smaller of the gains in mean turn latency and session time.
"""

import argparse
import importlib
import statistics
from collections.abc import Sequence as Many
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.generated_fleets import generate
from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from benchmarks.simulation import (
    CONTINUUM_LIKE,
    FCFS_LRU,
    OURS,
    DeviceProfile,
    Mode,
    Run,
    Setting,
    Simulation,
)
from benchmarks.trace_sessions import Session, choose, load_chains

SESSIONS_FILE = "traces/claude_code.sessions.jsonl"
SMOKE_FILE = "traces/smoke.sessions.jsonl"
PROFILES = Path(__file__).parent / "profiles"
DEFAULT_PROFILE = PROFILES / "h200_8b.json"
"""The device of the bars."""
FLEET = 64
SEEDS = (1, 2, 3)
LOADS = {"1_1": 12, "1_5": 16, "1_9": 20, "2_3": 24, "3": 32}
"""rho -> sessions at a time."""
GENERATED = {"generated_24": 24, "generated_40": 40}
"""The same for ``--fleet generated``, which no bar is about."""
SHORT_TOKENS = 256
GAIN_BARS = {"1_5": 1.6, "1_9": 2.4, "2_3": 2.6, "1_1": 0.98}
CONTINUUM_BARS = {"1_5": 1.25, "1_9": 1.5, "2_3": 1.8}
HIT_BARS = {"1_5": 0.80, "1_9": 0.74, "2_3": 0.70}
MODES = (FCFS_LRU, CONTINUUM_LIKE, OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One simulation to run."""

    load: str
    mode: Mode
    setting: Setting
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The kept figures of a run."""

    mean_s: float
    session_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    first_token_s: float
    hit: float
    short_s: float
    """Mean latency of tool calls of at most SHORT_TOKENS tokens."""
    wall_s: float
    """Mean time from a session's first arrival to its end, pauses included."""
    preemptions: float
    latencies_s: tuple[float, ...]

    @classmethod
    def of(cls, run: Run) -> "Outcome":
        short = [t.latency_s for t in run.turns if t.calls_tool and t.output_tokens <= SHORT_TOKENS]
        return cls(
            mean_s=run.mean_s,
            session_s=run.mean_s * len(run.turns) / len(run.session_s),
            p50_s=run.percentile_s(0.5),
            p95_s=run.percentile_s(0.95),
            p99_s=run.percentile_s(0.99),
            first_token_s=run.first_token_mean_s,
            hit=run.hit_ratio,
            short_s=statistics.fmean(short) if short else 0.0,
            wall_s=run.session_mean_s,
            preemptions=run.preemptions,
            latencies_s=tuple(t.latency_s for t in run.turns),
        )


FIGURES = ("mean_s", "session_s", "p50_s", "p95_s", "p99_s", "first_token_s", "hit", "short_s")


def mean_of(outcomes: Many[Outcome], name: str) -> float:
    return statistics.fmean(getattr(outcome, name) for outcome in outcomes)


Results = dict[tuple[str, str], list[Outcome]]
"""(load, name of the mode) -> one outcome per seed."""


def gain(results: Results, load: str, base: Mode, name: str, other: Mode = OURS) -> float:
    """How many times smaller the figure is than with ``base``."""
    before, after = results[load, base.name], results[load, other.name]
    return mean_of(before, name) / mean_of(after, name)


def bars(results: Results) -> list[Bar]:
    """The bars, without a value where the load was not run."""

    def bar(name: str, value: float | None, bound: float, *, most: bool = False) -> Bar:
        rounded = None if value is None else round(value, 4)
        return Bar(name=name, value=rounded, op="<=" if most else ">=", bar=bound)

    def both(load: str, base: Mode) -> float | None:
        if (load, base.name) not in results:
            return None
        return min(gain(results, load, base, "mean_s"), gain(results, load, base, "session_s"))

    def ours(load: str, name: str) -> float | None:
        return mean_of(results[load, OURS.name], name) if (load, OURS.name) in results else None

    answer = [bar(f"mean_gain_rho_{r}", both(r, FCFS_LRU), b) for r, b in GAIN_BARS.items()]
    answer += [
        bar(f"vs_continuum_rho_{r}", both(r, CONTINUUM_LIKE), b) for r, b in CONTINUUM_BARS.items()
    ]
    answer += [bar(f"hit_rho_{r}", ours(r, "hit"), b) for r, b in HIT_BARS.items()]
    p99 = 1 / gain(results, "3", FCFS_LRU, "p99_s") if ("3", OURS.name) in results else None
    answer.append(bar("p99_ratio_rho_3", p99, 1.0, most=True))
    slots = ("slots", OURS.name) in results
    answer.append(
        bar("short_turn_gain", gain(results, "slots", FCFS_LRU, "short_s") if slots else None, 4.0)
    )
    overall = [gain(results, "slots", FCFS_LRU, n) for n in ("mean_s", "p95_s")] if slots else None
    answer.append(bar("short_turn_overall", min(overall) if overall else None, 1.0))
    answer.append(bar("host_tier_gain", host_gain(results), 2.5))
    return answer


def host_gain(results: Results) -> float | None:
    """Ours with host memory against first come, first served without, at the same load."""
    if ("1_5", FCFS_LRU.name) not in results or ("host", OURS.name) not in results:
        return None
    before, after = results["1_5", FCFS_LRU.name], results["host", OURS.name]
    return min(mean_of(before, n) / mean_of(after, n) for n in ("mean_s", "session_s"))


def jobs(profile: DeviceProfile, loads: Many[str], stride: int) -> list[Job]:
    """Every mode under every load, and the slot-bound setting without the Continuum-like."""
    answer = []
    for load in loads:
        if load == "slots":
            setting = Setting(
                sessions=48,
                profile=profile,
                unlimited_kv=True,
                max_running=8,
                max_gap_s=60.0,
                stride=stride,
            )
            modes: tuple[Mode, ...] = (FCFS_LRU, OURS)
        elif load == "host":
            at_a_time = LOADS["1_5"]
            setting = Setting(sessions=at_a_time, profile=profile, host_tier=True, stride=stride)
            modes = (FCFS_LRU, OURS)
        else:
            setting = Setting(sessions=LOADS[load], profile=profile, stride=stride)
            modes = MODES if load in CONTINUUM_BARS else (FCFS_LRU, OURS)
        answer += [
            Job(load=load, mode=mode, setting=setting, seed=seed)
            for mode in modes
            for seed in SEEDS
        ]
    return answer


def generated_jobs(profile: DeviceProfile, stride: int) -> list[Job]:
    """Every mode under sessions that nobody recorded."""
    return [
        Job(load=load, mode=mode, seed=seed, setting=setting)
        for load, sessions in GENERATED.items()
        for setting in [Setting(sessions=sessions, profile=profile, stride=stride)]
        for mode in MODES
        for seed in SEEDS
    ]


def quick_jobs(profile: DeviceProfile, chains: list[Session]) -> list[Job]:
    """The smoke sessions, six at a time, in a pool that makes rho 1.9 of them."""
    contexts = [turn.prompt_tokens for chain in chains for turn in chain.turns]
    capacity = int(6 * statistics.fmean(contexts) / 1.9)
    largest = max(len(turn.tokens) for chain in chains for turn in chain.turns)
    small = replace(profile, kv_tokens=max(capacity, 2 * largest))
    setting = Setting(sessions=6, profile=small, stride=16)
    return [Job(load="quick", mode=mode, setting=setting, seed=1) for mode in MODES]


def play(job: Job, chains: list[Session]) -> Outcome:
    """Run one job."""
    if job.load in GENERATED:
        fleet = generate(FLEET, job.seed)
    else:
        fleet = chains if job.load == "quick" else choose(chains, FLEET, job.seed)
    return Outcome.of(Simulation(fleet, job.mode, job.setting).run())


def _play_group(group: list[Job], path: Path | None) -> list[Outcome]:
    """All jobs of one process: the trace, if there is one, is read once."""
    scale = group[0].setting.profile.lengths_by if group else 1
    chains = [] if path is None else load_chains(path, scale=scale)
    return [play(job, chains) for job in group]


def play_all(work: list[Job], path: Path | None, processes: int) -> Results:
    """Run the jobs on that many cores."""
    if processes == 1:
        outcomes = _play_group(work, path)
    else:
        groups = [work[i::processes] for i in range(processes)]
        with ProcessPoolExecutor(processes) as pool:
            parts = list(pool.map(_play_group, groups, [path] * processes))
        outcomes = [parts[i % processes][i // processes] for i in range(len(work))]
    results: Results = {}
    for job, outcome in zip(work, outcomes, strict=True):
        results.setdefault((job.load, job.mode.name), []).append(outcome)
    return results


def table(results: Results) -> str:
    """One line per load and mode."""
    lines = [f"{'rho':<14}{'mode':<27}" + "".join(f"{name:>14}" for name in FIGURES)]
    for (load, mode), outcomes in results.items():
        cells = "".join(f"{mean_of(outcomes, name):>14.3f}" for name in FIGURES)
        lines.append(f"{load.replace('_', '.'):<14}{mode:<27}{cells}")
    return "\n".join(lines)


def draw(results: Results, path: Path) -> None:
    """Write the latency distributions as a picture. Needs matplotlib."""
    pyplot = importlib.import_module("matplotlib.pyplot")

    loads = list(dict.fromkeys(load for load, _ in results))
    figure, axes = pyplot.subplots(1, len(loads), figsize=(5 * len(loads), 4), squeeze=False)
    for axis, load in zip(axes[0], loads, strict=True):
        for (other, mode), outcomes in results.items():
            if other == load:
                latencies = sorted(s for outcome in outcomes for s in outcome.latencies_s)
                shares = [i / len(latencies) for i in range(len(latencies))]
                axis.plot(latencies, shares, label=mode)
        axis.set(title=f"rho {load.replace('_', '.')}", xlabel="turn latency, s", xscale="log")
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("share of turns")
    figure.tight_layout()
    figure.savefig(path)


def options() -> argparse.ArgumentParser:
    answer = parser(__doc__)
    answer.add_argument("--quick", action="store_true", help="12 short sessions, seconds")
    answer.add_argument(
        "--fleet",
        choices=("recorded", "generated"),
        default="recorded",
        help="generated: sub-agents, bursts, heavy tails, compaction; has no bars",
    )
    answer.add_argument(
        "--loads",
        default=",".join([*LOADS, "slots", "host"]),
        metavar="RHO,...",
        help="which loads to run (default: %(default)s)",
    )
    answer.add_argument("--profile", type=Path, default=DEFAULT_PROFILE, metavar="FILE")
    answer.add_argument("--stride", type=int, default=8, help="device steps per simulated step")
    answer.add_argument("--jobs", type=int, default=1, help="cores to use")
    answer.add_argument("--picture", type=Path, metavar="FILE", help="needs matplotlib")
    return answer


def main() -> int:
    arguments = options().parse_args()
    generated = arguments.fleet == "generated"
    path = None
    try:
        if not generated:
            path = data_file(arguments.data, SMOKE_FILE if arguments.quick else SESSIONS_FILE)
    except DataMissing as error:
        return report_missing("simulate", error, bars({}), as_json=arguments.json)
    profile = DeviceProfile.load(arguments.profile)
    if path is None:
        work = generated_jobs(profile, arguments.stride)
    elif arguments.quick:
        work = quick_jobs(profile, load_chains(path))
    else:
        work = jobs(profile, arguments.loads.split(","), arguments.stride)
    results = play_all(work, path, arguments.jobs)
    if not arguments.json:
        print(table(results))
    if arguments.picture is not None:
        draw(results, arguments.picture)
    figures = {
        f"{load} {mode}": {name: round(mean_of(outcomes, name), 4) for name in FIGURES}
        | {
            "wall_s": round(mean_of(outcomes, "wall_s"), 1),
            "preemptions": mean_of(outcomes, "preemptions"),
        }
        for (load, mode), outcomes in results.items()
    }
    if generated:
        return report("simulate_generated", figures, [], as_json=arguments.json)
    if arguments.quick:
        value = round(gain(results, "quick", FCFS_LRU, "mean_s"), 4)
        quick = Bar(name="mean_gain_quick", value=value, op=">=", bar=1.0)
        return report("simulate", figures, [quick], as_json=arguments.json)
    judged = bars(results) if arguments.profile.resolve() == DEFAULT_PROFILE.resolve() else []
    return report("simulate", figures, judged, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
