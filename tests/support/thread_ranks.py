"""Ranks of a model as threads of this process: what they compute and say is what processes do.

For tests that load many models; ``tests/model/test_rank_processes.py`` has the processes.
"""

import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch._C._distributed_c10d import HashStore

from runtime.config import EngineConfig
from runtime.model.partition import Partition
from runtime.model.rank_group import RankGroup, gloo_group
from runtime.process import frames, rank_frames
from runtime.process.rank import Meet, serve_rank
from runtime.process.rank_frames import RankStart
from runtime.process.rank_processes import Peer
from runtime.process.ranks import LeadingRank


class ThreadEnding:
    """A thread in the place of a process: cannot be killed, and its fault is kept."""

    pid = 0

    def __init__(self, run: Callable[[], None], connection: socket.socket) -> None:
        self.fault: BaseException | None = None
        self._run = run
        self._connection = connection
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as fault:
            self.fault = fault
            reason = f"{type(fault).__name__}: {fault}"
            if not isinstance(fault, EOFError):
                self._connection.sendall(rank_frames.encode(rank_frames.RankFault(reason=reason)))
        finally:
            self._connection.close()

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None: ...


def thread_ranks(
    config: EngineConfig,
    *,
    others: EngineConfig | None = None,
    on_loss: Callable[[str], None] = lambda reason: None,
    run: Callable[[socket.socket, Meet], None] = serve_rank,
) -> LeadingRank:
    """The leading rank of ``config``, which the others have met.

    Args:
        others: another configuration for these.
        run: what they do.
    """
    store = HashStore()

    def meet(folder: Path, config: EngineConfig, partition: Partition) -> RankGroup:
        return gloo_group(store, partition.rank, partition.ranks)

    peers = []
    for rank in range(1, config.tensor_parallel):
        ours, theirs = socket.socketpair()
        ours.sendall(frames.encode_config(others or config))
        ours.sendall(rank_frames.encode(RankStart(rank=rank, folder="")))
        ending = ThreadEnding(partial(run, theirs, meet), theirs)
        peers.append(Peer(rank=rank, connection=ours, process=ending))
    leading = LeadingRank(config, peers, enters=lambda stage: None, on_loss=on_loss)
    try:
        leading.meet(lambda: meet(Path(), config, leading.partition))
    except BaseException:
        leading.close()
        raise
    return leading
