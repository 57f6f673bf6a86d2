"""Which implementation of an operation runs: the torch one, or Triton's on a GPU.

``KEEPWARM_KERNELS=torch`` keeps everything on torch, also on a GPU: to tell a kernel's
fault from a model's. ``KEEPWARM_KERNELS=triton`` takes Triton on a CPU as well, where its
interpreter runs the kernels (``TRITON_INTERPRET=1``): for tests, it is very slow. The
variable is read when this module is loaded.

Triton itself is imported only when one of its kernels is first asked for.
"""

import importlib
import importlib.util
import os
from types import ModuleType

import torch

SETTING = os.environ.get("KEEPWARM_KERNELS", "")


def wants_triton(device: torch.device) -> bool:
    """Whether tensors on ``device`` are for Triton kernels."""
    if device.type == "cuda":
        return SETTING != "torch"
    return SETTING == "triton"


def triton_kernels(name: str, like: torch.Tensor) -> ModuleType | None:
    """``kernels.triton_NAME`` where it is to compute on tensors like this one, else None.

    float64 stays on torch.

    Raises:
        ImportError: it is, and Triton is not installed.
    """
    if not like.is_cuda and SETTING != "triton":  # on a CPU this is asked sixty times a step
        return None
    if not wants_triton(like.device) or like.dtype == torch.float64:
        return None
    if importlib.util.find_spec("triton") is None:
        raise ImportError(
            "the kernels for GPUs need Triton: install keepwarm[gpu], or set "
            "KEEPWARM_KERNELS=torch to do without them"
        )
    return importlib.import_module(f"kernels.triton_{name}")
