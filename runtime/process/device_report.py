"""The report of torch and the compiled kernels on this machine, for ``keepwarm doctor``.

Runs in a process of its own (``python -m runtime.process.device_report [CONFIG]``), so that a
broken torch is a report and not a crash; prints one JSON object. With an engine's configuration, in
JSON, it has what ``runtime.process.model_report`` finds as ``model``.
"""

import importlib.metadata
import json
import sys
from dataclasses import asdict, dataclass

import torch

from kernels.native_library import build_name
from runtime.config import EngineConfig
from runtime.process.field_types import build
from runtime.process.model_report import model_report


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """The device that a model would run on."""

    torch: str
    """Version, with the name of its build."""
    cuda: str | None
    """Version that torch was built for; None: a CPU build."""
    gpus: tuple[str, ...]
    """Each with its memory in GiB."""
    threads: int
    """CPU threads of a forward pass."""
    cpu_kernels: str
    """Name of the library that is compiled for this machine; ``none`` where torch has to do."""
    triton: str | None
    """Version; None: not installed."""


def device_report() -> DeviceReport:
    """Look. Compiles the CPU kernels if that was not done before, which takes up to a minute."""
    return DeviceReport(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        gpus=tuple(_gpu(number) for number in range(torch.cuda.device_count())),
        threads=torch.get_num_threads(),
        cpu_kernels=build_name(),
        triton=_triton(),
    )


def _gpu(number: int) -> str:
    properties = torch.cuda.get_device_properties(number)
    return f"{properties.name}, {properties.total_memory / (1 << 30):.0f} GiB"


def _triton() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    told: dict[str, object] = asdict(device_report())
    if len(sys.argv) > 1:
        config = build(EngineConfig, json.loads(sys.argv[1]))
        told["model"] = asdict(model_report(config))
    json.dump(told, sys.stdout)
