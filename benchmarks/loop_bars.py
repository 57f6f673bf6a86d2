"""The bars of ``benchmarks.agent_loop``: which run is compared with which, and what came out.

Runs are named SERVER/LOAD. Knows no server: runs are handed in as they are played.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.loop_workload import Played
from benchmarks.report import Bar


class Ratio(NamedTuple):
    """A bar: a figure of one run over the best of others, as the median of the ratios between plays
    with one seed. These are of one round, and of the same texts where the loads are the same: a
    machine that slows down slows both. Runs are named SERVER/LOAD."""

    part: str
    name: str
    over: str
    under: tuple[str, ...]
    bar: float
    bar_amx: float | None = None
    """Where the processor has AMX; None: the same."""
    figure: str = "wall_s"
    op: Literal["<=", ">="] = "<="
    plays: int = 1
    """In each round, with other texts: a bar as near to 1 as two plays on one server are to each
    other takes more of them."""

    @property
    def runs(self) -> tuple[str, ...]:
        return (self.over, *self.under)


RATIOS = (
    Ratio("s8", "s8_wall_over_fcfs", "ours/s8", ("fcfs/s8",), 1.02, plays=3),
    Ratio("s8", "s8_wall_over_before", "ours/s8", ("before/s8", "before_fcfs/s8"), 0.9, 0.75),
    Ratio("s8", "s8_wall_over_llama", "ours/s8", ("llama/s8",), 0.5, 0.18),
    Ratio("s8", "s8_wall_over_vllm", "ours/s8", ("vllm/s8",), 0.9),
    Ratio("s1", "s1_wall_over_fcfs", "ours/s1", ("fcfs/s1",), 1.02, plays=3),
    Ratio("s1", "s1_wall_over_llama", "ours/s1", ("llama/s1",), 0.8, 0.35),
    Ratio("s1", "s1_wall_over_vllm", "ours/s1", ("vllm/s1",), 0.6),
    Ratio("serial", "s8_wall_over_serial", "ours/s8", ("ours/serial",), 0.4),
    Ratio("drafts", "s8_drafts_wall_over_serial", "drafts/s8", ("drafts/serial",), 0.55),
    Ratio("tools", "s8_tools_wall_over_fcfs", "ours/tools", ("fcfs/tools",), 1.02),
    Ratio(
        "mixed32",
        "mixed32_latency_over_fcfs",
        "ours/mixed32",
        ("fcfs/mixed32",),
        0.8,
        figure="latency_mean_s",
    ),
    Ratio(
        "decode8",
        "decode8_over_vllm",
        "ours/decode8",
        ("vllm/decode8",),
        1.0,
        figure="decode_tokens_per_s",
        op=">=",
    ),
)


class Record:
    """The results of the runs of the ratios."""

    def __init__(self) -> None:
        self._played: dict[str, dict[int, Played]] = {}
        """By run and seed."""

    def add(self, run: str, seed: int, played: Played) -> None:
        self._played.setdefault(run, {})[seed] = played

    def has(self, run: str) -> bool:
        return run in self._played

    def plays(self, run: str) -> list[Played]:
        return list(self._played[run].values())

    def ratios(self, run: str, other: str, figure: str) -> list[float]:
        """The figure of a run over that of another, for each seed that both were played with."""
        mine, theirs = self._played.get(run, {}), self._played.get(other, {})
        return [
            mine[seed].figures[figure] / theirs[seed].figures[figure]
            for seed in mine
            if seed in theirs
        ]

    def median(self, run: str, figure: str) -> float:
        return statistics.median(p.figures[figure] for p in self._played[run].values())

    def figures(self) -> dict[str, Any]:
        """Medians of all runs, their digests and how many answers are those of ours."""
        found: dict[str, Any] = {}
        for run, rounds in self._played.items():
            names = next(iter(rounds.values())).figures
            found[run] = {name: round(self.median(run, name), 4) for name in names} | {
                "walls_s": [round(played.wall_s, 3) for played in rounds.values()],
                "digests": [played.digest for played in rounds.values()],
                "alike": self._alike(run),
            }
        return found

    def _alike(self, run: str) -> float | None:
        ours = "ours/" + run.partition("/")[2]
        if ours not in self._played:
            return None
        same = [
            one.text == other.text
            for seed, played in self._played[run].items()
            if seed in self._played[ours]
            for mine, theirs in zip(self._played[ours][seed].sessions, played.sessions, strict=True)
            for one, other in zip(mine, theirs, strict=True)
        ]
        return round(statistics.fmean(same), 3) if same else None


def runs_of(ratios: Sequence[Ratio], lacks: Callable[[str], str | None], *more: str) -> list[str]:
    """The runs that they need and that can be played, each once; ``more`` as well."""
    runs = dict.fromkeys((*(run for ratio in ratios for run in ratio.runs), *more))
    return [run for run in runs if lacks(run) is None]


def plays_of(run: str, ratios: Sequence[Ratio]) -> int:
    """How often a run is played in each round."""
    return max((ratio.plays for ratio in ratios if run in ratio.runs), default=1)


def ratio_bar(
    ratio: Ratio,
    record: Record,
    reasons: dict[str, str],
    lacks: Callable[[str], str | None] = lambda run: None,
) -> Bar:
    """The ratio's bar; where it is open, ``reasons`` gets why. Of several runs to be compared with
    those that cannot be played are left out."""
    value = None
    under = [run for run in ratio.under if lacks(run) is None]
    missing = [run for run in (ratio.over, *under) if not record.has(run)]
    if not under:
        reasons[ratio.name] = lacks(ratio.under[0]) or ""
    elif missing:
        reasons[ratio.name] = f"not played: {', '.join(missing)}"
    else:
        worst = max if ratio.op == "<=" else min
        found = [record.ratios(ratio.over, run, ratio.figure) for run in under]
        if all(found):
            value = worst(map(statistics.median, found))
        else:
            reasons[ratio.name] = "never played in the same round"
    bar = ratio.bar_amx if ratio.bar_amx is not None and has_amx() else ratio.bar
    return Bar(name=ratio.name, value=value, op=ratio.op, bar=bar)


def has_amx() -> bool:
    """Whether the processor multiplies bfloat16 matrices in tiles."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "amx_bf16" in info.read_text().split()
