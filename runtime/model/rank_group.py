"""Ranks of one model that exchange tensors: ``torch.distributed`` without its global state.

On a CPU gloo carries them, on loopback alone; on GPUs NCCL, one device for each rank. Ranks find
each other by files in a folder (``FileStore``), in which nobody else may write. Nothing is pickled.

Always true: waiting for another rank ends with that rank's process, or by whoever looks after
processes; the libraries' own limit lies far above.
"""

import os
import stat
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import FileStore, Store

from runtime.model.config import LoadError

_NEVER = timedelta(days=30)
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class RankGroup:
    """The exchange between one rank and the others, which make the same calls in the same order."""

    def __init__(self, backend: Any, ranks: int) -> None:
        """``backend``: a process group of torch's."""
        self._backend = backend
        self._ranks = ranks

    def gathered(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks of this shape and type, in the order of ranks."""
        # As bytes: not every library knows every number type, and nothing is computed.
        plain = x.contiguous()
        found = [torch.empty_like(plain) for _ in range(self._ranks)]
        self._backend.allgather([[_bytes(each) for each in found]], [_bytes(plain)]).wait()
        return found

    def added(self, x: Tensor) -> Tensor:
        """The sum of all ranks' tensors in the library's own order, which may depend on where in
        the tensor a number is; ``x`` is overwritten."""
        whole = x.contiguous()
        self._backend.allreduce([whole]).wait()
        return whole

    def copied_from_first(self, x: Tensor) -> Tensor:
        """Rank 0's tensor on every rank, in ``x``."""
        self._backend.broadcast(x, 0).wait()
        return x


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def gloo_group(store: Store, rank: int, ranks: int) -> RankGroup:
    """Meet the others, over loopback; returns when all are there."""
    kind: Any = distributed.ProcessGroupGloo  # its options have no types
    options = kind._Options()
    options._devices = [kind.create_device(interface=_LOOPBACK)]
    options._threads = 1
    options._timeout = _NEVER
    return RankGroup(kind(store, rank, ranks, options), ranks)


def nccl_group(store: Store, rank: int, ranks: int, device: torch.device) -> RankGroup:
    """A group of ranks on GPUs, ``device`` being this rank's."""
    # Rings and trees sum in other orders: one of them, so that runs are alike.
    os.environ.setdefault("NCCL_ALGO", "Ring")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
    kind: Any = distributed.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = _NEVER
    torch.cuda.set_device(device)
    group = RankGroup(kind(store, rank, ranks, options), ranks)
    group.added(torch.zeros(1, device=device))  # the ranks meet at the first call
    return group


def store_in(folder: Path, ranks: int) -> Store:
    """The place where ranks find each other.

    Raises:
        LoadError: others than this user may write there, and could stand in for a rank.
    """
    found = folder.stat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others or found.st_uid != os.getuid():
        raise LoadError(f"{folder}: others may write there, and ranks would meet whoever does")
    store = FileStore(str(folder / "ranks"), ranks)
    store.set_timeout(_NEVER)
    return store
