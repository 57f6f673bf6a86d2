"""How every benchmark answers: figures, bars, one JSON line, an exit code.

Exit code 0: all bars are met. 1: one is not. 2: the data to measure on are not there, and
the bars have no value.
"""

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure that must not get worse than ``bar``; ``value`` None was not measured."""

    name: str
    value: float | None
    op: Literal["<=", ">="]
    bar: float

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bar if self.op == "<=" else self.value >= self.bar


class DataMissing(Exception):
    """A file of the data folder is not there; the message names it."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", action="store_true", help="print one line of JSON")
    options.add_argument(
        "--data",
        type=Path,
        default=Path("../shared"),
        metavar="DIR",
        help="folder of traces and schemas (default: %(default)s)",
    )
    return options


def data_file(data: Path, name: str) -> Path:
    """The file ``name`` of the data folder.

    Raises:
        DataMissing: it is not there.
    """
    path = data / name
    if not path.is_file():
        raise DataMissing(f"{path} is missing; give the folder with --data DIR")
    return path


def machine() -> str:
    """Processor, cores in use, system and Python, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def report(
    benchmark: str, figures: Mapping[str, Any], bars: Sequence[Bar], *, as_json: bool
) -> int:
    """Print the answer and return the exit code."""
    answer = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(),
        "figures": _finite(figures),
        "bars": [
            {"name": b.name, "value": _finite(b.value), "op": b.op, "bar": b.bar, "met": b.met}
            for b in bars
        ],
    }
    if as_json:
        print(json.dumps(answer, allow_nan=False))
    else:
        print(f"{benchmark}: {answer['machine']}, {answer['date']}")
        for name, figure in figures.items():
            print(f"  {name}: {json.dumps(figure)}")
        for b in bars:
            value = "not measured" if b.value is None else f"{b.value:.4g}"
            verdict = {True: "met", False: "NOT MET", None: "open"}[b.met]
            print(f"  {b.name:<28}{value:>14}  must be {b.op} {b.bar:g}: {verdict}")
    if any(bar.met is None for bar in bars):
        return 2
    return 0 if all(bar.met for bar in bars) else 1


def _finite(figure: Any) -> Any:
    """A figure as JSON has it: null for one that is no number, or infinite."""
    if isinstance(figure, float):
        return figure if math.isfinite(figure) else None
    if isinstance(figure, Mapping):
        return {name: _finite(each) for name, each in figure.items()}
    if isinstance(figure, list | tuple):
        return [_finite(each) for each in figure]
    return figure


def report_missing(
    benchmark: str, error: DataMissing, bars: Sequence[Bar], *, as_json: bool
) -> int:
    """Print the bars without values, say on stderr what is missing, and return 2."""
    print(error, file=sys.stderr)
    return report(benchmark, {"missing": str(error)}, bars, as_json=as_json)
