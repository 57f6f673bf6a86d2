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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.child_environment import child_environment
from runtime.config import EngineConfig
from runtime.importing import child_words
from runtime.log_lines import LogFormat
from runtime.model.config import LoadError
from runtime.model.partition import Partition, part_of
from runtime.model.sources import find_source
from runtime.process import frames, rank_frames
from runtime.process.frame_socket import receive_frame
from runtime.process.rank_frames import RankRoom, RankStart
from runtime.process.watchdog import READING_FOLDER

SAYS_S = 3.0
"""Seconds for the news of a rank's end, where its silence was noticed first."""


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
    has_below: bool = False
    """Its tiers below the device are made."""

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
        """Delete the folder where ranks meet: all have, or never will."""
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
    part_of(config.model, found.config, partition_of(config, 0))


def partition_of(config: EngineConfig, rank: int) -> Partition:
    """A rank's place, as ``config`` says."""
    return Partition(ranks=config.tensor_parallel, rank=rank, whole_experts=config.expert_parallel)


def new_meeting_folder() -> Path:
    """A folder for ranks to meet in, for whoever outlives them to make: ranks that are killed
    before they have met leave it. Raises OSError: there is no place for it."""
    return Path(tempfile.mkdtemp(prefix="keepwarm-ranks-"))


def where_ranks_meet(connection: socket.socket, config: EngineConfig) -> Path | None:
    """The folder that whoever started rank 0 names behind the configuration; None: that has one
    rank.

    Raises:
        FrameError: something else is said.
        EOFError: nobody is there any more.
    """
    if config.tensor_parallel == 1:
        return None
    start = rank_frames.decode(*receive_frame(connection))
    if not isinstance(start, RankStart) or start.rank != 0:
        raise frames.FrameError(f"{type(start).__name__} where rank 0 is told its folder")
    return Path(start.folder)


def other_ranks(
    config: EngineConfig,
    enters: Callable[[str], None],
    log_format: LogFormat,
    folder: Path | None,
) -> RankProcesses | None:
    """The other ranks, started before this one loads torch; None where there are none.

    Args:
        enters: is told which stage of loading comes next.
        folder: where they are to meet.

    Raises:
        LoadError: the model cannot be cut so, or a process cannot be started.
    """
    if config.tensor_parallel > 1:
        enters(READING_FOLDER)
        check_ranks(config)
    try:
        return start_rank_processes(config, log_format, folder)
    except OSError as error:
        raise LoadError(f"another rank cannot be started: {error}") from error


def start_rank_processes(
    config: EngineConfig, log_format: LogFormat, folder: Path | None
) -> RankProcesses | None:
    """Start the other ranks, if ``config`` has any. To be called in the main thread, with which
    they end.

    Args:
        folder: where they are to meet; None: ``config`` has no others.

    Raises:
        OSError: a process cannot be started.
    """
    if folder is None:
        return None
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
