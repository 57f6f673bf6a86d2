"""What steps took at earlier starts, in a file beside the compiled kernels.

A file belongs to one processor, number of threads, model shape, number type and build: its name is
a digest of these, and it says them again inside. What cannot be read, or says it belongs elsewhere,
is named in one line and counts as nothing. Whether the times still hold is for
``runtime.process.startup_profile`` to find out.

Always true: a file is replaced whole or not at all; nothing in it makes a start fail.
"""

import hashlib
import json
import logging
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.native_library import compiled_library
from runtime.config import EngineConfig
from runtime.model.runner import ModelRunner

log = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 1 << 16
LONGEST_STEP_S = 3600.0
Times = dict[tuple[int, int], float]
"""Seconds of steps by (prompt tokens, decode rows), as ``startup_profile`` keys them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """One file and what it has to be about."""

    path: Path
    facts: Mapping[str, str]

    @classmethod
    def of(cls, runner: ModelRunner, config: EngineConfig) -> "StoredProfile | None":
        """The file of a runner in ``config.startup_profile_folder``; None: there is no such."""
        if not config.startup_profile_folder:
            return None
        facts = facts_of(runner, config)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        folder = Path(config.startup_profile_folder).expanduser()
        return cls(path=folder / f"step_times-{digest[:20]}.json", facts=facts)

    def read(self) -> Times:
        """The times; none where there is no file, or none that can be used."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
            return self._times(raw)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            log.warning("stored step times %s not used, timed anew: %s", self.path, reason)
            return {}

    def write(self, times: Times) -> None:
        """Replace the file; where that fails, one line says so."""
        rows = [[tokens, decodes, seconds] for (tokens, decodes), seconds in sorted(times.items())]
        content = {"format": FORMAT, "facts": dict(self.facts), "times": rows}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".step_times-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=1)
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("step times not stored in %s: %s", self.path, error)

    def _times(self, raw: bytes) -> Times:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"longer than {MOST_BYTES} bytes")
        content: Any = json.loads(raw)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT}")
        if content["facts"] != dict(self.facts):
            names = sorted(
                name
                for name in {*self.facts, *content["facts"]}
                if self.facts.get(name) != content["facts"].get(name)
            )
            raise ValueError(f"of another machine or model: {', '.join(names)} differ")
        times: Times = {}
        for tokens, decodes, seconds in content["times"]:
            if type(tokens) is not int or type(decodes) is not int or type(seconds) is not float:
                raise TypeError(f"a row is {[tokens, decodes, seconds]!r}")
            if min(tokens, decodes) < 0 or not (
                math.isfinite(seconds) and 0.0 < seconds < LONGEST_STEP_S
            ):
                raise ValueError(f"a row is {[tokens, decodes, seconds]!r}")
            times[tokens, decodes] = seconds
        return times


def facts_of(runner: ModelRunner, config: EngineConfig) -> dict[str, str]:
    """What the time of a step depends on."""
    model = runner.model
    library = compiled_library()
    device = model.device
    on_gpu = device.type == "cuda"
    return {
        "processor": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "kernels": "none" if library is None else Path(library._name).stem,
        "dtype": str(model.dtype),
        "quantization": config.quantization,
        "kv": f"{config.kv_cache_dtype} in blocks of {config.block_size}",
        "model": hashlib.sha256(repr(model.config).encode()).hexdigest(),
        "products": repr(model.decoder.choice),
    }


def _processor() -> str:
    """Name and features of the CPU, as the system tells them."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [
        next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
        for name in ("model name", "flags", "Features")
    ]
    return " ".join([platform.machine(), *named]).strip()
