"""Small arrays of the host on their way to the device, without the host waiting for it.

A GPU's stream works off what it is given in order. A copy from ordinary memory returns only when
all that was given before it is done, so one such copy behind a step under way makes the host
wait for the step. From pinned memory it returns at once.

Always true: the array may be changed or dropped as soon as ``upload`` returns. The pinned
memory is torch's, which keeps it until the copy is done.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED_BYTES = 64
_ALIGNED_NUMBERS = 8


def upload(array: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """``array`` on ``device``: a copy there, the very memory on a CPU."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type == "cpu" or tensor.device == device:
        return tensor
    if not tensor.numel():
        return torch.empty_like(tensor, device=device)
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_together(arrays: Sequence[npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """``upload`` of several arrays in one copy. Each begins where any kernel likes: one that is
    compiled for such a place would be compiled again for another."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    rooms = [-(-array.size // _ALIGNED_NUMBERS) * _ALIGNED_NUMBERS for array in arrays]
    packed, at = np.zeros(sum(rooms), dtype=np.int64), 0
    places = []
    for array, room in zip(arrays, rooms, strict=True):
        packed[at : at + array.size] = array.ravel()
        places.append((at, array))
        at += room
    there = upload(packed, device)
    return [there[at : at + array.size].view(array.shape) for at, array in places]


class FixedPlaces:
    """Arrays that are put in the same places of the device again and again, in one copy.

    Always true: a copy under way brings what was written before it; the next writing waits
    until it has been made.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device) -> None:
        """Room for arrays of the shapes and dtypes of ``like``, on the host and on ``device``."""
        size = sum(_room(part) for part in like)
        host = torch.zeros(size, dtype=torch.uint8)
        self._arrived: Any = None
        if device.type != "cpu":
            host = host.pin_memory()
            cuda: Any = torch.cuda  # its events have no types
            self._arrived = cuda.Event()
        self._host, self._device = host, torch.empty(size, dtype=torch.uint8, device=device)
        self._written = _views(self._host, like)
        self.tensors = _views(self._device, like)
        """Where the arrays are on the device, in the order of ``like``."""

    def write(self, arrays: Sequence[Tensor]) -> None:
        """Begin to put new ``arrays`` in place, behind what the device was given before. One may
        be smaller than its place: what is not written stays as it was."""
        if self._arrived is not None:
            self._arrived.synchronize()
        for place, array in zip(self._written, arrays, strict=True):
            place[tuple(map(slice, array.shape))].copy_(array)
        self._device.copy_(self._host, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()


def _room(tensor: Tensor) -> int:
    """Bytes of a place, in whole units that any dtype and kernel likes."""
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    views, at = [], 0
    for part in like:
        size = part.numel() * part.element_size()
        views.append(memory[at : at + size].view(part.dtype).view(part.shape))
        at += _room(part)
    return views
