"""The processes of the other ranks of a model, as the leading one starts them.

``python -m runtime.process.rank`` for each, with a socket pair: its configuration goes there first.
They are started before this process loads torch, so that all load it at once. No torch here.

Always true: they end with the process that started them.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.child_environment import child_environment
from runtime.config import EngineConfig
from runtime.importing import child_words
from runtime.log_lines import LogFormat
from runtime.model.partition import Partition, check_can_be_cut
from runtime.model.sources import find_source
from runtime.process import frames, rank_frames
from runtime.process.rank_frames import RankRoom, RankStart

SAYS_S = 3.0
"""For the news of a rank's end, where its silence was noticed first."""


class Ending(Protocol):
    """A process that can be waited for and killed, as ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


@dataclass(slots=True)
class Peer:
    """The process of another rank."""

    rank: int
    connection: socket.socket
    process: Ending
    stage: str = "starting"
    room: RankRoom | None = None

    def ending(self) -> str:
        """How its process ended, in words."""
        try:
            code = self.process.wait(SAYS_S)
        except subprocess.TimeoutExpired:
            return "closed its socket and goes on"
        if code >= 0:
            return f"ended with status {code}"
        return f"was killed by {signal.Signals(-code).name}"


class RankProcesses:
    """The other ranks' processes, and the folder in which all ranks meet."""

    def __init__(self, peers: Sequence[Peer], folder: Path) -> None:
        self.peers = peers
        self.folder = folder

    def forget_folder(self) -> None:
        """All have met, or never will."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End them at once; who has ended already is left alone."""
        for peer in self.peers:
            peer.process.kill()
            peer.process.wait()
            peer.connection.close()
        self.forget_folder()


def check_ranks(config: EngineConfig) -> None:
    """Whether the model can be cut into as many parts as there are ranks, as far as small files
    tell.

    Raises:
        LoadError: it cannot, or there is no such model.
    """
    if config.tensor_parallel == 1:
        return
    found = find_source(config.model, max_context_tokens=config.max_context_tokens)
    check_can_be_cut(config.model, found, partition_of(config, 0))


def partition_of(config: EngineConfig, rank: int) -> Partition:
    """A rank's place, as ``config`` says."""
    return Partition(ranks=config.tensor_parallel, rank=rank, whole_experts=config.expert_parallel)


def start_rank_processes(config: EngineConfig, log_format: LogFormat) -> RankProcesses | None:
    """Start the other ranks, if ``config`` has any. To be called in the main thread, with which
    they end.

    Raises:
        OSError: a process cannot be started.
    """
    if config.tensor_parallel == 1:
        return None
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-ranks-"))
    ranks = range(1, config.tensor_parallel)
    return RankProcesses([_started(config, rank, folder, log_format) for rank in ranks], folder)


def _started(config: EngineConfig, rank: int, folder: Path, log_format: LogFormat) -> Peer:
    ours, theirs = socket.socketpair()
    with theirs:
        words = ["--log-format", log_format, "--rank", str(rank), "--parent", str(os.getpid())]
        process = subprocess.Popen(
            [*child_words("runtime.process.rank"), *words, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    with suppress(OSError):  # it has ended already, which is noticed where it is waited for
        ours.sendall(frames.encode_config(config))
        ours.sendall(rank_frames.encode(RankStart(rank=rank, folder=str(folder))))
    return Peer(rank=rank, connection=ours, process=process)
