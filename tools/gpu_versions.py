"""Versions and devices of a machine to measure on, as one line of JSON: versions, device, what a
copy reaches.

python -m tools.gpu_versions
"""

import json
import platform
import sys
from importlib import metadata

import torch

from benchmarks.gpu_cases import copy_rate
from benchmarks.gpu_plan import FULL, REHEARSAL

PACKAGES = ("torch", "triton", "numpy", "transformers", "pytest-xdist", "llguidance", "pydantic")


def versions() -> dict[str, str | None]:
    """The version of each package; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def main() -> int:
    """Print them."""
    there = torch.cuda.is_available()
    device = torch.device("cuda" if there else "cpu")
    with torch.inference_mode():
        rate = copy_rate(FULL if there else REHEARSAL, device)
    name = torch.cuda.get_device_name(device) if there else "none"
    print(json.dumps({"versions": versions(), "gpu": name, "copy_bytes_per_s": rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
