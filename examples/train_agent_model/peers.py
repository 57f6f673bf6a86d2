"""Processes that train one model together, each on its share of the batches.

Every process holds the whole model; the gradients of a step are averaged over loopback, after
which all take the same step.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.multiprocessing.spawn import spawn


class Peers:
    """This process among those that train; alone unless ``count`` says otherwise."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace the contents of ``tensors`` by the means over all processes, which must all
        call this with tensors of the same shapes and dtypes."""
        if self.count == 1:
            return
        every = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in every])
        torch.distributed.all_reduce(flat)
        flat /= self.count
        start = 0
        for tensor in every:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def run_together(count: int, meeting: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(peers, *arguments)`` in ``count`` processes, and wait for all.

    Args:
        meeting: a file that does not exist, by which the processes find each other.
        work: a function of a module, since the processes import it.
    """
    if count == 1:
        work(Peers(), *arguments)
        return
    spawn(_begin, (count, meeting, work, arguments), count)  # type: ignore[no-untyped-call]


def _begin(
    rank: int, count: int, meeting: Path, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting.absolute()}", rank=rank, world_size=count
    )
    work(Peers(rank, count), *arguments)
    torch.distributed.destroy_process_group()
