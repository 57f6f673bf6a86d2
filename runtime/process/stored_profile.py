"""Times of steps at earlier starts, kept in a file of their machine and model.

Whether the times still hold is for ``runtime.process.startup_profile`` to find out.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.native_library import build_name
from runtime.config import EngineConfig
from runtime.machine_files import MachineFile, processor
from runtime.model.runner import ModelRunner

LONGEST_STEP_S = 3600.0
_TIMED = "each sequence in blocks of its own"
"""How steps are timed; times that were taken otherwise are others."""
Times = dict[tuple[int, int], float]
"""Seconds of steps by (prompt tokens, decode rows), as ``startup_profile`` keys them."""


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """The step times that a file keeps from start to start."""

    file: MachineFile

    @classmethod
    def of(cls, runner: ModelRunner, config: EngineConfig) -> "StoredProfile | None":
        """Those of a runner in ``config.startup_profile_folder``; None: there is no such."""
        facts = facts_of(runner, config)
        file = MachineFile.of(config.startup_profile_folder, "step_times", facts)
        return None if file is None else cls(file)

    @property
    def path(self) -> Path:
        return self.file.path

    def read(self) -> Times:
        """The times; none where there are none that can be used."""
        return self.file.read(_times) or {}

    def write(self, times: Times) -> None:
        """Replace the stored times."""
        rows = [[tokens, decodes, seconds] for (tokens, decodes), seconds in sorted(times.items())]
        self.file.write(rows)


def _times(rows: Any) -> Times:
    """Raises ValueError or TypeError where ``rows`` are no times."""
    times: Times = {}
    for tokens, decodes, seconds in rows:
        if type(tokens) is not int or type(decodes) is not int or type(seconds) is not float:
            raise TypeError(f"a row is {[tokens, decodes, seconds]!r}")
        possible = math.isfinite(seconds) and 0.0 < seconds < LONGEST_STEP_S
        if min(tokens, decodes) < 0 or not possible:
            raise ValueError(f"a row is {[tokens, decodes, seconds]!r}")
        times[tokens, decodes] = seconds
    return times


def facts_of(runner: ModelRunner, config: EngineConfig) -> dict[str, str]:
    """The facts on which the time of a step depends."""
    model = runner.model
    on_gpu = model.device.type == "cuda"
    several = config.tensor_parallel > 1
    return {
        "processor": torch.cuda.get_device_name(model.device) if on_gpu else processor(),
        "threads": str(torch.get_num_threads()),
        "timed": _TIMED,
        "torch": torch.__version__,
        "kernels": build_name(),
        "dtype": str(model.dtype),
        "quantization": config.quantization,
        "kv": f"{config.kv_cache_dtype} in blocks of {config.block_size}",
        "model": hashlib.sha256(repr(model.config).encode()).hexdigest(),
        "products": repr(model.decoder.choice),
    } | ({"ranks": str(config.tensor_parallel)} if several else {})
