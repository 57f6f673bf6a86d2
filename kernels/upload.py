"""Small arrays of the host on their way to the device, without the host waiting for it.

A GPU's stream works off what it is given in order. A copy from ordinary memory returns only when
all that was given before it is done, so one such copy behind a step under way makes the host
wait for the step. From pinned memory it returns at once.

Always true: the array may be changed or dropped as soon as ``upload`` returns. The pinned
memory is torch's, which keeps it until the copy is done.
"""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """``array`` on ``device``: a copy there, the very memory on a CPU."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type == "cpu" or tensor.device == device:
        return tensor
    if not tensor.numel():
        return torch.empty_like(tensor, device=device)
    return tensor.pin_memory().to(device, non_blocking=True)
