"""Cost of a turn to the prefix cache, in CPU time of the thread.

Every bar is a ratio within one run: to ``compare``, one numpy comparison of two arrays of
100,000 int32, or to the same turn at another length. A turn is begin, allocate, commit and
finish. Medians of 5 repetitions, the garbage collector frozen.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.report import Bar, parser, report
from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from radix_cache.edge import TokenArray

REPETITIONS = 5
BLOCK = 16
TURN = 350
TURNS = 40
VOCABULARY = 1 << 17
TENANT = "tenant"


def random_tokens(rng: np.random.Generator, count: int) -> TokenArray:
    return rng.integers(0, VOCABULARY, count, dtype=np.int32)


def compare_us(rng: np.random.Generator) -> float:
    """Median of one comparison of two fixed arrays of 100k int32."""
    left = random_tokens(rng, 100_000)
    right = left.copy()
    times = []
    for _ in range(200):
        start = time.thread_time_ns()
        (left == right).all()
        times.append(time.thread_time_ns() - start)
    return statistics.median(times) / 1000


def turn_us(
    cache: PrefixCache,
    session: str,
    prompt: TokenArray,
    whole: TokenArray,
    *,
    base: str | None = None,
    base_offset: int | None = None,
) -> float:
    """CPU microseconds of one turn that extends ``prompt`` to ``whole``."""
    needed = cache.blocks_for(len(whole))
    start = time.thread_time_ns()
    sequence = cache.begin(
        branch_id=session,
        tenant=TENANT,
        tokens=prompt,
        base_branch_id=base,
        base_offset=base_offset,
    )
    cache.allocate(sequence, needed - sequence.num_blocks)
    cache.commit(sequence, whole)
    cache.finish(sequence, lease_s=0.0)
    return (time.thread_time_ns() - start) / 1000


def new_cache(num_tokens: int) -> PrefixCache:
    return PrefixCache(
        CacheConfig(num_blocks=num_tokens // BLOCK, block_size=BLOCK), clock=lambda: 0.0
    )


def session_turns(
    rng: np.random.Generator,
    length: int,
    *,
    turns: int = TURNS,
    step: int = TURN,
    by_handle: bool = True,
) -> list[float]:
    """Times of ``turns`` turns of one session that starts with ``length`` cached tokens."""
    tokens = random_tokens(rng, length + step * turns)
    cache = new_cache(len(tokens) + 100 * BLOCK)
    turn_us(cache, "s", tokens[:length], tokens[:length])
    times = []
    for turn in range(turns):
        old = length + step * turn
        prompt, whole = tokens[: old + step * 4 // 7], tokens[: old + step]
        if by_handle:
            times.append(turn_us(cache, "s", prompt, whole, base="s", base_offset=old))
        else:
            times.append(turn_us(cache, "s", prompt, whole))
    return times


def forks(rng: np.random.Generator, *, from_base: bool) -> list[float]:
    """Forks of 5.5k prompts at random points, 150 new tokens each; each prompt once."""
    count, length = 60, 5_500
    cache = new_cache(count * (length + 200))
    times = []
    for number in range(count):
        prompt, base = random_tokens(rng, length), f"base{number}"
        turn_us(cache, base, prompt, prompt)
        at = int(rng.integers(BLOCK, length))
        fork = np.concatenate([prompt[:at], random_tokens(rng, 150)])
        times.append(
            turn_us(cache, f"fork{number}", fork, fork, base=base, base_offset=at)
            if from_base
            else turn_us(cache, f"fork{number}", fork, fork)
        )
    return times


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One play of the fleet; every play of a seed does the same work turn by turn."""

    spent_us: list[float]
    evicted: list[bool]
    new_tokens: list[int]
    """Tokens of the turn that were not cached, its output included."""
    bytes_per_token: float
    hit_ratio: float


def fleet(seed: int) -> FleetRun:
    """1,000 sessions of 4k to 64k tokens over a pool of 8M: 32 active ones take turns of 100
    to 600 tokens, and every tenth turn one of them goes and another comes back."""
    count, active_count, turns = 1_000, 32, 2_500
    rng = np.random.default_rng(seed)
    cache = new_cache(8_000_000)
    shared = random_tokens(rng, 2_000)
    room = 600 * 60
    sessions: list[TokenArray] = []
    lengths = [0] * count
    run = FleetRun([], [], [], 0.0, 0.0)

    def turn(number: int, new: int) -> None:
        old = lengths[number]
        whole = sessions[number][: old + new]
        prompt = whole[: max(1, len(whole) - new // 2)]
        name = f"s{number}"
        before = cache.stats()
        run.spent_us.append(turn_us(cache, name, prompt, whole, base=name, base_offset=old))
        after = cache.stats()
        lengths[number] = len(whole)
        run.new_tokens.append(len(whole) - (after.hit_tokens - before.hit_tokens))
        run.evicted.append(after.evicted_tokens != before.evicted_tokens)

    for number in range(count):
        length = int(rng.integers(4_000, 64_000))
        sessions.append(np.concatenate([shared, random_tokens(rng, length - 2_000 + room)]))
        turn(number, length)
    active = rng.choice(count, active_count, replace=False)
    for _ in range(turns):
        slot = int(rng.integers(active_count))
        if rng.random() < 0.1:
            active[slot] = rng.integers(count)
        number, new = int(active[slot]), int(rng.integers(100, 600))
        if lengths[number] + new <= len(sessions[number]):
            turn(number, new)
    stats = cache.stats()
    cached = stats.idle + stats.leased + stats.queued + stats.running
    return replace(
        run,
        bytes_per_token=stats.tree_bytes / (cached * BLOCK),
        hit_ratio=stats.hit_tokens / stats.prompt_tokens,
    )


def fleet_figures(seed: int) -> dict[str, float]:
    """The fleet played 5 times. A turn's time is its median over the plays, so that a timer
    tick or another process that hits one play of it does not count as the cache's tail."""
    runs = [fleet(seed) for _ in range(REPETITIONS)]
    compare = statistics.median(compare_us(np.random.default_rng(seed)) for _ in runs)
    times = np.median([run.spent_us for run in runs], axis=0)
    evicted = np.array(runs[0].evicted)
    new = np.array(runs[0].new_tokens)
    short, cold = times[evicted & (new <= 700)], times[evicted & (new >= 4_000)]
    return {
        "fleet_compare_us": compare,
        "fleet_p50_us": float(np.percentile(short, 50)),
        "fleet_p99_us": float(np.percentile(short, 99)),
        "fleet_p99_single_play_us": statistics.median(
            float(np.percentile(np.array(run.spent_us)[evicted & (new <= 700)], 99)) for run in runs
        ),
        "fleet_cold_p50_us": float(np.percentile(cold, 50)),
        "fleet_evicting_turns": len(short),
        "fleet_evicting_cold_turns": len(cold),
        "fleet_bytes_per_token": runs[0].bytes_per_token,
        "fleet_hit_ratio": runs[0].hit_ratio,
    }


def measure(seed: int) -> dict[str, float]:
    """All figures of one repetition."""
    rng = np.random.default_rng(seed)
    figures: dict[str, float] = {}

    def note(name: str, times: Callable[[], list[float]]) -> None:
        """Median time, and its ratio to the comparisons made just before and after."""
        before = compare_us(rng)
        figures[f"{name}_us"] = statistics.median(times())
        figures["compare_us"] = (before + compare_us(rng)) / 2
        figures[f"{name}_over_compare"] = figures[f"{name}_us"] / figures["compare_us"]

    for length in (2_000, 8_000, 33_000, 100_000, 131_000):
        note(f"handle_{length // 1000}k", partial(session_turns, rng, length))
    note("cold_100k", lambda: session_turns(rng, 100_000, by_handle=False))
    note("fork", lambda: forks(rng, from_base=False))
    note("fork_of_known_base", lambda: forks(rng, from_base=True))
    note("next_turn_1m", lambda: session_turns(rng, 1_000_000, turns=24))
    note("next_turn_100k", lambda: session_turns(rng, 100_000, turns=24))
    grown = session_turns(rng, 2_000, turns=300, step=98_000 // 300)
    figures["first_20_turns_us"] = statistics.median(grown[:20])
    figures["last_20_turns_us"] = statistics.median(grown[-20:])
    return figures


def bars(runs: list[dict[str, float]], fleet_run: dict[str, float]) -> list[Bar]:
    """The bars; a ratio is the median over the runs of the ratio within a run."""

    def over_compare(name: str) -> float:
        return statistics.median(run[f"{name}_over_compare"] for run in runs)

    def ratio(over: str, under: str) -> float:
        return statistics.median(run[f"{over}_us"] / run[f"{under}_us"] for run in runs)

    def fleet_ratio(over: str) -> float:
        return fleet_run[over] / fleet_run["fleet_compare_us"]

    def bar(name: str, value: float, most: float) -> Bar:
        return Bar(name=name, value=round(value, 3), op="<=", bar=most)

    return [
        bar("handle_turn_100k", over_compare("handle_100k"), 1.4),
        bar("handle_flatness", ratio("handle_131k", "handle_2k"), 1.3),
        bar("cold_turn_100k", over_compare("cold_100k"), 4.0),
        bar("session_300_turns", ratio("last_20_turns", "first_20_turns"), 1.3),
        bar("fork", over_compare("fork"), 3.0),
        bar("next_turn_1m", ratio("next_turn_1m", "next_turn_100k"), 2.0),
        bar("bytes_per_token", fleet_run["fleet_bytes_per_token"], 7.0),
        bar("evicting_turn_p99", fleet_ratio("fleet_p99_us"), 3.0),
        bar("evicting_cold_p50", fleet_ratio("fleet_cold_p50_us"), 12.0),
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    seeds = range(arguments.seed, arguments.seed + REPETITIONS)
    gc.collect()
    gc.freeze()
    gc.disable()
    runs = [measure(seed) for seed in seeds]
    fleet_run = fleet_figures(arguments.seed)
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]} | fleet_run
    rounded = {name: round(value, 3) for name, value in figures.items()}
    return report("radix_cache", rounded, bars(runs, fleet_run), as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
