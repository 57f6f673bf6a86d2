"""Model folders that try to cost more than a model: each refused, in one line, for little.

    python -m benchmarks.ground_folders --json

A row for each folder and command: ``cpu_s`` and ``mib`` (the largest process) of ``keepwarm serve``
and ``keepwarm doctor`` until they have ended, children included, above what they take with a good
folder of the shipped model (``serve`` until it is ready, and stopped); ``lines`` on standard error,
of which one is wanted from ``serve``; ``doctor`` may have more to say on standard output.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, parser, report

GOOD = Path(__file__).parent.parent / "runtime/assets/default_model"
SMALL = ("--kv-cache-mib", "16", "--threads", "1", "--startup-profile-ms", "0", "--port", "0")
SMALL += ("--load-hung-after-s", "20")
"""Who waits for a pipe is given up after that; ``doctor`` after three minutes."""
PATIENCE_S = 240.0
MOST_CPU_S, MOST_MIB = 5.0, 256.0
SPAWN = """
import json, os, sys
files = [(os.POSIX_SPAWN_OPEN, n, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
         for n, path in ((1, sys.argv[1]), (2, sys.argv[2]))]
pid = os.posix_spawn(sys.executable, sys.argv[3:], os.environ, file_actions=files)
print(pid, flush=True)
_, status, used = os.wait4(pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime,
                  used.ru_maxrss / 1024]))
"""
"""Starts a command from a small process: what its parent takes would count as its own."""
BIG = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took."""

    status: int
    cpu_s: float
    mib: float
    out: str
    err: str


Spoil = Callable[[Path], None]


def _header(header: bytes, data: bytes = b"") -> Spoil:
    def spoil(folder: Path) -> None:
        content = struct.pack("<Q", len(header)) + header + data
        (folder / "model.safetensors").write_bytes(content)

    return spoil


def _entry(shape: list[int], end: int = 4) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}


def _tensors(entries: Mapping[str, Any]) -> Spoil:
    return _header(json.dumps(entries).encode(), b"\0" * 4)


def _instead(name: str, make: Spoil) -> Spoil:
    """``make`` in the place of the file."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return spoil


def _holes(size: int) -> Spoil:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def _repeated(begin: bytes, part: bytes, times: int, end: bytes) -> Spoil:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.write(begin)
            for _ in range(16):
                file.write(part * (times // 16))
            file.write(end)

    return make


def _changed(name: str, **fields: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return spoil


def _many_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = {f"model.layers.{n}.weight": f"model-{n:06}.safetensors" for n in range(300_000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _shard_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = {"model.embed_tokens.weight": "../../../../../../../dev/zero"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _gguf(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    counts = struct.pack("<IQQ", 3, 1 << 60, 1 << 60)
    (folder / "model.gguf").write_bytes(b"GGUF" + counts + bytes(1 << 20))


PUBLISHED: dict[str, Spoil] = {
    **{
        f"shape_{sizes}": _tensors({"a": _entry([BIG] * sizes)})
        for sizes in (20_000, 80_000, 300_000)
    },
    "shape_of_9_sizes": _tensors({"a": _entry([1] * 9)}),
    "small_objects": _instead(
        "model.safetensors",
        _repeated(struct.pack("<Q", 15_000_009) + b'{"a":[', b"{},", 5_000_000, b"{}]}"),
    ),
}
"""Headers that were seen to cost minutes, hours or gigabytes (issue 49)."""
OWN: dict[str, Spoil] = {
    "header_of_a_terabyte": _instead("model.safetensors", _holes(1 << 40)),
    "many_tensors": _tensors({f"t{n}": _entry([0], 0) for n in range(100_000)}),
    "long_names": _tensors({"x" * 100_000 + str(n): _entry([0], 0) for n in range(150)}),
    "weights_are_a_device": _instead(
        "model.safetensors", lambda path: path.symlink_to("/dev/zero")
    ),
    "weights_are_a_pipe": _instead("model.safetensors", os.mkfifo),
    "weights_link_to_themselves": _instead(
        "model.safetensors", lambda path: path.symlink_to(path.name)
    ),
    "many_shards": _many_shards,
    "shard_elsewhere": _shard_elsewhere,
    "gguf_of_many_entries": _gguf,
    "config_of_holes": _instead("config.json", _holes(1 << 40)),
    "config_is_a_pipe": _instead("config.json", os.mkfifo),
    "config_of_brackets": _instead("config.json", _repeated(b"", b"[", 40 << 20, b"")),
    "many_layers": _changed("config.json", num_hidden_layers=10**9),
    "large_vocabulary": _changed("config.json", vocab_size=10**12),
    "tokenizer_of_objects": _instead("tokenizer.json", _repeated(b"[", b"{},", 40_000_000, b"{}]")),
    "tokenizer_is_a_device": _instead("tokenizer.json", lambda path: path.symlink_to("/dev/zero")),
    "tokenizer_config_of_holes": _instead("tokenizer_config.json", _holes(1 << 33)),
    "template_of_holes": _instead("chat_template.jinja", _holes(1 << 33)),
    "template_that_counts": _instead(
        "chat_template.jinja",
        lambda path: path.write_text("{% for n in range(10 ** 12) %}{{ n }}{% endfor %}") and None,
    ),
    "template_of_a_gigabyte": _instead(
        "chat_template.jinja", lambda path: path.write_text("{{ 'x' * (2 ** 31) }}") and None
    ),
}
"""Other ways."""


def run(command: str, folder: Path, *, ready: bool = False) -> Cost:
    """Run ``keepwarm`` with a model's folder until it ends; ``ready``: it is stopped when it has
    said its first line."""
    with tempfile.TemporaryDirectory() as name:
        out, err = Path(name) / "out", Path(name) / "err"
        words = [sys.executable, "-m", "keepwarm", command, "--model", str(folder), *SMALL]
        started = [sys.executable, "-S", "-c", SPAWN, str(out), str(err), *words]
        environment = _environment()
        with subprocess.Popen(
            started, stdout=subprocess.PIPE, text=True, env=environment
        ) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            if ready:
                _stop_when_ready(child, out, parent)
            try:
                told, _ = parent.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.kill(child, 9)
                told, _ = parent.communicate()
        status, cpu_s, mib = json.loads(told)
        return Cost(status, cpu_s, mib, out.read_text(), err.read_text())


def _environment() -> dict[str, str]:
    """Without options of whoever runs this."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KEEPWARM_")}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return kept | {"PYTHONPATH": path, "KEEPWARM_CONFIG": "", "KEEPWARM_JOURNAL": ":memory:"}


def _stop_when_ready(child: int, out: Path, parent: "subprocess.Popen[str]") -> None:
    while parent.poll() is None and "\n" not in (out.read_text() if out.exists() else ""):
        time.sleep(0.05)
    if parent.poll() is None:
        os.kill(child, 15)


def rows(
    kinds: Iterable[str], commands: Iterable[str] = ("serve", "doctor")
) -> list[dict[str, Any]]:
    """A row for each kind and command."""
    found = []
    chosen, commands = list(kinds), list(commands)
    with tempfile.TemporaryDirectory() as name:
        for command in commands:
            good = Path(name) / f"good_{command}"
            shutil.copytree(GOOD, good)
            plain = run(command, good, ready=command == "serve")
            assert plain.status == 0, plain
            for kind in chosen:
                folder = Path(name) / f"{kind}_{command}"
                shutil.copytree(GOOD, folder)
                (PUBLISHED | OWN)[kind](folder)
                cost = run(command, folder)
                shutil.rmtree(folder)
                found.append(row(kind, command, cost, plain))
    return found


def row(kind: str, command: str, cost: Cost, plain: Cost) -> dict[str, Any]:
    """What a folder cost above a good one, and how it was told."""
    told = cost.err if command == "serve" else cost.out
    most = (1,) if command == "serve" else (1, 2)  # of the model, and what it stands in the way of
    said = [line for line in told.splitlines() if "error: " in line or line.startswith("fault: ")]
    return {
        "folder": kind,
        "command": command,
        "status": cost.status,
        "cpu_s": round(cost.cpu_s - plain.cpu_s, 2),
        "mib": round(cost.mib - plain.mib, 1),
        "lines": len(said),
        "told": len(said) in most and cost.status in (1, 2),
        "traceback": "Traceback" in cost.out + cost.err,
        "said": said[0][:300] if said else cost.err[-300:],
    }


def options() -> argparse.ArgumentParser:
    """The command line."""
    found = parser(__doc__)
    found.add_argument("--only", metavar="KIND", action="append", help="these kinds alone")
    return found


def main() -> int:
    """Measure, print, and return the exit code."""
    given = options().parse_args()
    table = rows(given.only or [*PUBLISHED, *OWN])
    bars = [
        Bar(name="cpu_s", value=max(row["cpu_s"] for row in table), op="<=", bar=MOST_CPU_S),
        Bar(name="mib", value=max(row["mib"] for row in table), op="<=", bar=MOST_MIB),
        Bar(
            name="not_told_in_one_line",
            value=sum(not row["told"] for row in table),
            op="<=",
            bar=0,
        ),
        Bar(name="tracebacks", value=sum(row["traceback"] for row in table), op="<=", bar=0),
    ]
    return report("ground_folders", {"rows": table}, bars, as_json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
