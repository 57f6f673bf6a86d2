"""Fine-tunes of one model for several agents: adapters of one server, beside a server for each.

    python -m benchmarks.adapters --json

``random:qwen3-100m``'s shape and four adapters of rank 16 of all its maps, over real sockets. Eight
sessions, two of each fine-tune, play six turns of 300 new tokens at once, 24 tokens out:

- ``adapters``: one server with the model and the four adapters;
- ``merged``: four servers at the same time, each with weights that one adapter is merged into, as
  who has no adapters does it, with as many threads each as there are cores; ``merged_narrow``: with
  one thread each. The faster of the two is what adapters are compared with;
- ``alone``: one server of weights that one of the adapters is merged into, for all sessions: as
  much work, and no adapter.

``seconds`` is the wall clock of all turns, behind one turn of each fine-tune; ``memory_mib`` what
all processes of the servers hold then, without KV that nothing was written to. Servers are started
before their way is timed, the order of ways changes from round to round.
"""

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.engine_loops import benchmark_config, random_tensors, write_folder
from benchmarks.hybrid import say, text
from benchmarks.report import Bar, parser, report
from keepwarm import Client
from keepwarm.demo.child_server import child_server

SIZE = "100m"
ADAPTERS, RANK, SCALE = 4, 16, 0.5
SESSIONS, TURNS, NEW_TOKENS, OUTPUT_TOKENS = 8, 6, 300, 24
WAYS = ("adapters", "merged", "merged_narrow", "alone")
KV_MIB = 512
BARS = {
    "seconds_over_merged": ("<=", 1.0),
    "memory_over_merged": ("<=", 0.5),
    "seconds_over_alone": ("<=", 1.5),
}


class Models:
    """Folders of the model, of its adapters and of what they make of it."""

    def __init__(self, folder: Path) -> None:
        self.plain = folder / "model"
        config = benchmark_config(SIZE)
        weights = random_tensors(config, torch.device("cpu"))
        write_folder(self.plain, config, dict(weights))
        self.adapters = [folder / f"adapter{number}" for number in range(ADAPTERS)]
        self.merged = [folder / f"merged{number}" for number in range(ADAPTERS)]
        for number in range(ADAPTERS):
            pairs = _pairs(weights, seed=number)
            _write_adapter(self.adapters[number], pairs)
            write_folder(self.merged[number], config, _merged(weights, pairs))


def _pairs(weights: Mapping[str, Tensor], *, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """[rank, inputs] and [outputs, rank] for each linear map in a layer, by its module."""
    draw, pairs = torch.Generator().manual_seed(seed), {}
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            outputs, inputs = weight.shape
            down = torch.randn(RANK, inputs, generator=draw) / math.sqrt(inputs)
            up = torch.randn(outputs, RANK, generator=draw) / math.sqrt(RANK)
            pairs[name.removesuffix(".weight")] = down, up
    return pairs


def _write_adapter(folder: Path, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    folder.mkdir()
    tensors = {}
    for module, (down, up) in pairs.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    fields = {"peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")


def _merged(
    weights: Mapping[str, Tensor], pairs: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    merged = dict(weights)
    for module, (down, up) in pairs.items():
        plain = weights[f"{module}.weight"]
        merged[f"{module}.weight"] = (plain.float() + SCALE * up @ down).to(plain.dtype)
    return merged


@contextmanager
def served(way: str, models: Models) -> Iterator[tuple[Sequence[Client], Sequence[str | None]]]:
    """A client and a model's name for each fine-tune."""
    options = ["--kv-cache-mib", str(KV_MIB), "--max-running", str(SESSIONS)]
    folders = models.merged if way.startswith("merged") else models.merged[:1]
    if way == "merged_narrow":
        options += ["--threads", "1"]
    if way == "adapters":
        folders = [models.plain]
        for number, folder in enumerate(models.adapters):
            options += ["--adapter", f"tune{number}={folder}"]
    with ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        clients = []
        for number, folder in enumerate(folders):
            log = Path(logs) / f"log{number}"
            server = stack.enter_context(child_server(["--model", str(folder), *options], log=log))
            clients.append(stack.enter_context(Client(server.url)))
        each = [clients[number % len(clients)] for number in range(ADAPTERS)]
        names = [f"tune{number}" if way == "adapters" else None for number in range(ADAPTERS)]
        yield each, names


def played(way: str, models: Models, seed: int) -> dict[str, float]:
    """All turns of all sessions: seconds, the servers' memory behind them, and what they said."""

    def play(number: int) -> int:
        rng = np.random.default_rng(1000 * seed + number)
        client, name = clients[number % ADAPTERS], names[number % ADAPTERS]
        session = client.session(name=f"s{number}", **({} if name is None else {"model": name}))
        said = [say(session, text(rng, NEW_TOKENS), OUTPUT_TOKENS) for _ in range(TURNS)]
        return sum(response.usage.output_tokens for response in said)

    before = _children()
    with served(way, models) as (clients, names), ThreadPoolExecutor(SESSIONS) as threads:
        for client, name in zip(clients, names, strict=True):
            options = {} if name is None else {"model": name}
            say(client.session(**options), text(np.random.default_rng(seed), 100))
        started = time.perf_counter()
        tokens = sum(threads.map(play, range(SESSIONS)))
        taken = time.perf_counter() - started
        held = sum(_private_bytes(process) for process in _children() - before)
    return {"seconds": taken, "memory_mib": held / (1 << 20), "output_tokens": tokens}


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _private_bytes(process: psutil.Process) -> int:
    """Memory that is the process's own: the files of torch are shared by all."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0


def measure(rounds: int) -> dict[str, float]:
    """Medians over rounds, by way."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        for number in range(rounds):
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                print(f"round {number + 1} of {rounds}, {way}", file=sys.stderr)
                found[way].append(played(way, models, number))
    return {
        f"{way}_{name}": round(statistics.median(row[name] for row in rows), 2)
        for way, rows in found.items()
        for name in rows[0]
    }


def ratios(figures: Mapping[str, float]) -> dict[str, float]:
    """The values that have a bar."""
    return {
        "seconds_over_merged": figures["adapters_seconds"]
        / min(figures["merged_seconds"], figures["merged_narrow_seconds"]),
        "memory_over_merged": figures["adapters_memory_mib"] / figures["merged_memory_mib"],
        "seconds_over_alone": figures["adapters_seconds"] / figures["alone_seconds"],
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    figures: dict[str, Any] = measure(arguments.rounds)
    values = ratios(figures)
    bars = [Bar(name=name, value=values[name], op=op, bar=bar) for name, (op, bar) in BARS.items()]  # type: ignore[arg-type]
    return report("adapters", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
