"""Which implementation of an operation runs: the torch one, or Triton's on a GPU.

``KEEPWARM_KERNELS=torch`` keeps everything on torch, also on a GPU: to tell a kernel's
fault from a model's.
"""

import os

import torch


def wants_triton(device: torch.device) -> bool:
    """Whether tensors on ``device`` are for Triton kernels."""
    return device.type == "cuda" and os.environ.get("KEEPWARM_KERNELS", "") != "torch"
