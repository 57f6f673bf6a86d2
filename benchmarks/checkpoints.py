"""Times and memory of published formats: memory, decoding, prompts and loading beside the same
model in bf16.

    python -m benchmarks.checkpoints [--json] [--shape 500m] [--rounds 3] [--only NAME ...]

One random model of half a billion weights is written in each format, and another with its weights
in experts, of which nothing but the experts is in few bits. Each is loaded in a process of its own,
reads a prompt of 1,024 tokens and writes; rounds go over all of them in turn, and medians count.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Bar, parser, report

PROMPT, WRITTEN = 1024, 48
RUNS: Mapping[str, tuple[str, int]] = {
    "bf16": ("bf16", 16),
    "own_int4": ("bf16", 4),
    "fp8": ("fp8", 16),
    "int4_group32": ("int4_group32", 16),
    "int4_group128": ("int4_group128", 16),
    "awq": ("awq", 16),
    "gptq": ("gptq", 16),
    "nvfp4": ("nvfp4", 16),
    "gguf_q8_0": ("gguf_q8_0", 16),
    "gguf_q4_0": ("gguf_q4_0", 16),
    "gguf_q4_k": ("gguf_q4_k", 16),
    "experts_bf16": ("experts_bf16", 16),
    "experts_own_int4": ("experts_bf16", 4),
    "experts_mxfp4": ("experts_mxfp4", 16),
}
"""The runs: a folder, and the bits to which it is quantised when loaded."""
WIDENED = ("nvfp4", "gguf_q4_k")
"""Formats that take more memory than their file."""
_OWN = ("bf16", "own_int4", "experts_bf16", "experts_own_int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one process."""

    load_s: float
    held_over_file: float
    prefill_s: float
    decode_tokens_s: float


def measure(folder: Path, bits: int, machine: Path) -> Figures:
    """In this process: it has loaded no other model."""
    import numpy as np
    import torch

    from runtime.heap_free import give_back_heap
    from runtime.model.batch import TRIAL_STATE, SequenceInput
    from runtime.model.runner import ModelRunner
    from runtime.model.weights import load_model

    before = _anonymous_bytes()
    has_experts = folder.name.startswith("experts")
    with in_16_bits_but_for_experts(folder) if has_experts else nullcontext():
        model = load_model(
            folder,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            bits=4 if bits == 4 else 16,
            machine_folder=str(machine),
        )
    table = np.arange(72, dtype=np.int32)
    runner = ModelRunner(model, num_blocks=72, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, PROMPT + WRITTEN, dtype=np.int32)

    def step(start: int, end: int) -> float:
        began = time.perf_counter()
        part = SequenceInput(
            tokens=tokens[start:end],
            start=start,
            block_table=table,
            num_logits=1,
            state_slot=TRIAL_STATE,
        )
        runner.run([part])
        return time.perf_counter() - began

    step(0, 64)
    prefill = min(step(0, PROMPT) for _ in range(3))
    decode = statistics.median(step(PROMPT + at, PROMPT + at + 1) for at in range(WRITTEN))
    pool = sum(keys.nbytes + values.nbytes for keys, values in runner.pool.layers)
    give_back_heap()  # what a prompt's steps have let go of is no weight
    held = _anonymous_bytes() - before - pool
    stored = folder if folder.is_file() else folder / "model.safetensors"
    return Figures(
        load_s=model.load_s,
        held_over_file=held / stored.stat().st_size,
        prefill_s=prefill,
        decode_tokens_s=1 / decode,
    )


@contextmanager
def in_16_bits_but_for_experts(folder: Path) -> Iterator[None]:
    """A folder in MXFP4 has its experts in few bits, and nothing else: so has what it is compared
    with. No other matrix has the experts' inner width."""
    from torch import Tensor

    from runtime.model.layers import Linear, MapLoader, Matrix

    quantised = MapLoader.made
    width = json.loads((folder / "config.json").read_text())["intermediate_size"]

    def made(loader: MapLoader, weights: Sequence[Matrix], bias: Tensor | None) -> Linear:
        if isinstance(weights[0], Tensor) and width not in weights[0].shape:
            loader = replace(loader, bits=16)
        return quantised(loader, weights, bias)

    with patch.object(MapLoader, "made", made):
        yield


def _anonymous_bytes() -> int:
    """Memory of this process that is in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    named = {line.split(":")[0]: line.split(":")[1] for line in lines}
    return sum(int(named[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def in_a_process(folder: Path, bits: int, machine: Path) -> Figures:
    command = [sys.executable, "-m", "benchmarks.checkpoints", "--measure", str(folder)]
    command += ["--bits", str(bits), "--machine", str(machine)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return Figures(**json.loads(result.stdout.splitlines()[-1]))


def run(shape: str, rounds: int, only: Sequence[str], place: Path) -> dict[str, Figures]:
    """Medians of every run."""
    from benchmarks.checkpoint_folders import SHAPES, write

    wanted = {name: each for name, each in RUNS.items() if not only or name in only}
    folders = {
        name: write(name, SHAPES[shape], place / name)
        for name in dict.fromkeys(folder for folder, _ in wanted.values())
    }
    taken: dict[str, list[Figures]] = {name: [] for name in wanted}
    for number in range(rounds + 1):  # the first one fills the caches
        for name, (folder, bits) in wanted.items():
            figures = in_a_process(folders[folder], bits, place / "machine")
            if number or rounds == 1:
                taken[name].append(figures)
    fields = Figures.__dataclass_fields__
    return {
        name: Figures(**{
            field: statistics.median(getattr(each, field) for each in found) for field in fields
        })
        for name, found in taken.items()
    }  # fmt: skip


def bars(found: Mapping[str, Figures]) -> list[Bar]:
    def over(one: str, other: str, field: str) -> float | None:
        if one not in found or other not in found:
            return None
        ratio: float = getattr(found[one], field) / getattr(found[other], field)
        return ratio

    made = [
        Bar(name=name, value=over(one, other, "decode_tokens_s"), op=">=", bar=bar)
        for name, one, other, bar in (
            ("int4_group32_over_own_int4", "int4_group32", "own_int4", 0.95),
            ("group128_over_group32", "int4_group128", "int4_group32", 0.97),
            ("mxfp4_over_own_int4", "experts_mxfp4", "experts_own_int4", 0.8),
            ("fp8_over_bf16", "fp8", "bf16", 1.15),
        )
    ]
    for name in RUNS:
        if name in _OWN:
            continue
        plain = "experts_bf16" if name.startswith("experts") else "bf16"
        prompt = over(plain, name, "prefill_s")
        made.append(Bar(name=f"{name}_prefill_over_bf16", value=prompt, op=">=", bar=0.85))
        load = over(name, plain, "load_s")
        made.append(Bar(name=f"{name}_load_over_bf16_load", value=load, op="<=", bar=2.5))
        if name not in WIDENED:
            held = found[name].held_over_file if name in found else None
            made.append(Bar(name=f"{name}_resident_over_file", value=held, op="<=", bar=1.15))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--shape", default="500m", choices=("500m", "tiny"))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", nargs="*", default=[], choices=list(RUNS))
    for hidden in ("--measure", "--machine"):
        options.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    options.add_argument("--bits", type=int, default=16, help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    if given.measure is not None:
        figures = measure(given.measure, given.bits, given.machine)
        print(json.dumps({name: getattr(figures, name) for name in Figures.__dataclass_fields__}))
        return 0
    with tempfile.TemporaryDirectory() as place:
        found = run(given.shape, given.rounds, given.only, Path(place))
    figures_by_name: dict[str, Any] = {
        name: {field: round(getattr(each, field), 4) for field in Figures.__dataclass_fields__}
        for name, each in found.items()
    }
    return report("checkpoints", figures_by_name, bars(found), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
