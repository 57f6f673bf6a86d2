"""Launches that may run beside the launches that follow, on a GPU's second stream.

A kernel that waits for memory and one that computes take less time together than one after the
other. In a recording the two become branches.

Always true: what is launched ``beside`` comes after all that was given to the stream before, and
before all that is given to it after ``joined``. Without a GPU there is one order, as written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_cuda: Any = torch.cuda  # its streams have no types


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Launches inside may run beside those that come after, until ``joined``."""
    if device.type != "cuda":
        yield
        return
    side = stream_beside(device)
    side.wait_stream(_cuda.current_stream(device))
    with _cuda.stream(side):
        yield


def joined(device: torch.device) -> None:
    """Launches from here on come after those ``beside``."""
    if device.type == "cuda":
        _cuda.current_stream(device).wait_stream(stream_beside(device))


@cache
def stream_beside(device: torch.device) -> Any:
    """The device's one stream for launches beside the current one."""
    return _cuda.Stream(device)
