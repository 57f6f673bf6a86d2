"""Another rank than the leading one: loads its part of the model and computes what it is told.

``python -m runtime.process.rank`` is started by ``runtime.process.ranks`` with a socket. It reads
its configuration from there and says how far loading is; then it reads steps and runs each as the
leading rank runs it. It draws nothing, keeps no session, and ends with its socket or with the
process that started it, whichever it notices first.
"""

import argparse
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from runtime.collection import keep_short
from runtime.config import EngineConfig
from runtime.log_lines import LogFormat
from runtime.logs import log_to_stderr
from runtime.messages import Loading
from runtime.model.config import LoadError
from runtime.model.partition import Partition
from runtime.model.product_choice import RANK, ProductChoice
from runtime.model.rank_group import RankGroup
from runtime.model.rank_link import Room
from runtime.model.rank_sum import RankSum
from runtime.model.runner import ModelRunner, load_runner
from runtime.offload.checksums import HostMemoryDamaged
from runtime.offload.opening import open_tiers
from runtime.process import frames, rank_frames
from runtime.process.frame_socket import receive_exactly, receive_frame
from runtime.process.frames import FrameError
from runtime.process.move_messages import MoveOrder
from runtime.process.one_line import in_one_line
from runtime.process.rank_files import files_digest
from runtime.process.rank_frames import (
    RankBelow,
    RankBlocks,
    RankFault,
    RankMet,
    RankMoved,
    RankProducts,
    RankRoom,
    RankStart,
)
from runtime.process.rank_memory import RankMemory
from runtime.process.rank_processes import partition_of
from runtime.process.ranks import (
    MEETING,
    MET,
    all_can,
    group_in,
    own_device,
    sum_kind,
)
from runtime.process.step_channel import (
    BelowOrder,
    ChangeOrder,
    ChannelLimits,
    EndOrder,
    RestOrder,
    read_order,
)

log = logging.getLogger(__name__)

_DEATH_SIGNAL: Final = 1
"""Linux's prctl(2), PR_SET_PDEATHSIG."""

Heard = TypeVar("Heard")
Meet = Callable[[Path, EngineConfig, Partition], RankGroup]


class FollowingRank:
    """A ``RankLink`` to the leading rank."""

    def __init__(
        self,
        connection: socket.socket,
        config: EngineConfig,
        partition: Partition,
        meet: Meet,
        folder: Path,
    ) -> None:
        """Meets the other ranks.

        Args:
            meet: returns when all are there.
            folder: where they meet.
        """
        self.partition = partition
        self.followers = None
        self._connection = connection
        self._config = config
        self._files = ""
        self._saying = threading.Lock()
        self.enters(MEETING)
        self.group = meet(folder, config, partition)
        self.enters(MET)
        self._hear(RankMet)
        self._sum = RankSum(self.group, sum_kind(config, partition))

    def enters(self, stage: str) -> None:
        """Say which phase the rank is in now."""
        self._say(Loading(stage=stage, memory_bytes=0))

    def products(self, own: ProductChoice | None) -> ProductChoice | None:
        """See ``RankLink.products``."""
        told = self._hear(RankProducts)
        self._files = files_digest(self._config.model)
        return _choice(told)

    def room(self, own: Room) -> Room:
        """See ``RankLink.room``."""
        files = self._files + files_digest(self._config.model)
        self._say(RankRoom(**own._asdict(), files=files))
        heard = self._hear(RankBlocks)
        told = Room(heard.num_blocks, heard.state_slots, heard.state_rings, heard.window_blocks)
        if told.num_blocks < 2 or not told.within(own):
            raise FrameError(f"{told} where there is {own}")
        return told

    @property
    def num_sums(self) -> int:
        """See ``RankLink.num_sums``."""
        return self._sum.count

    def rank_sum(self, part: Tensor) -> Tensor:
        """See ``RankLink.rank_sum``."""
        return self._sum(part)

    def all_can(self, this_can: bool) -> bool:
        """See ``RankLink.all_can``."""
        return all_can(self.group, this_can, own_device(self._config, self.partition))

    def pop_wait_s(self) -> float:
        """See ``RankLink.pop_wait_s``."""
        return self._sum.pop_wait_s()

    def close(self) -> None:
        """See ``RankLink.close``."""
        self._connection.close()

    def below_is_there(self) -> None:
        """Say that the tiers below the device are made."""
        self._say(RankBelow())

    def moved(self, number: int, ok: bool, of_states: bool) -> None:
        """Say that a move from or to the disk is over, from any thread; nobody may hear it any
        more."""
        with contextlib.suppress(OSError):
            self._say(RankMoved(number=number, ok=ok, of_states=of_states))

    def _say(self, message: rank_frames.RankMessage) -> None:
        with self._saying:
            self._connection.sendall(rank_frames.encode(message))

    def _hear(self, kind: type[Heard]) -> Heard:
        message = rank_frames.decode(*receive_frame(self._connection))
        if not isinstance(message, kind):
            raise FrameError(f"{type(message).__name__} where {kind.__name__} comes next")
        return message


def _choice(told: RankProducts) -> ProductChoice | None:
    if told.few is None:
        return None
    few = next((name for name in RANK if name == told.few), None)
    many = (
        None
        if told.many is None
        else next((name for name in ("widened", *RANK) if name == told.many), None)
    )
    if few is None or (many is None) != (told.many is None):
        raise FrameError(f"no layouts: {told.few[:40]!r}, {str(told.many)[:40]!r}")
    return ProductChoice(few=few, many=many, from_rows=told.from_rows)


def serve_rank(connection: socket.socket, meet: Meet = group_in) -> None:
    """Load a part as the socket says, and compute steps until it says that there are no more.

    Raises:
        LoadError: the part cannot be loaded.
        FrameError: the leading rank said something that is no message.
        EOFError: it is gone.
    """
    config = frames.decode_config(*receive_frame(connection))
    start = rank_frames.decode(*receive_frame(connection))
    if not isinstance(start, RankStart):
        raise FrameError(f"{type(start).__name__} where RankStart comes first")
    link = FollowingRank(
        connection, config, partition_of(config, start.rank), meet, Path(start.folder)
    )
    link.enters("reading its part of the folder")
    runner = load_runner(
        config, folder_read=lambda: link.enters("loading its part of the model"), ranks=link
    )
    keep_short()
    memory = RankMemory(runner, partial(open_tiers, config, runner, None, ended=link.moved))
    try:
        follow(runner, memory, partial(receive_exactly, connection), link)
    finally:
        memory.close()


class Following(Protocol):
    """The link of another rank while it follows: the group that it sums in, and what it says."""

    @property
    def group(self) -> RankGroup: ...

    def enters(self, stage: str) -> None: ...

    def below_is_there(self) -> None: ...


def follow(
    runner: ModelRunner, memory: RankMemory, receive: Callable[[int], bytes], link: Following
) -> None:
    """Carry out the orders that ``receive`` brings until the last.

    Raises:
        FrameError: a message is not one of ours.
        ValueError: one does not fit where states are.
        LoadError: tiers below the device cannot be had.
        HostMemoryDamaged: what went up to the device is not what came down.
        KeyError: a step is to run in a recording that is not there.
        EOFError: the leading rank is gone.
    """
    config, number = runner.model.config, 0
    limits = ChannelLimits(
        vocab_size=config.vocab_size,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        max_context_tokens=config.max_context_tokens,
        state_slots=0 if runner.states is None else runner.states.num_slots,
        window_blocks=runner.window_blocks or 0,
        adapters=len(runner.model.adapters),
    )
    while True:
        order = read_order(receive, limits, number)
        if isinstance(order, EndOrder):
            return
        if isinstance(order, RestOrder):
            runner.rest()
            continue
        if isinstance(order, ChangeOrder):
            memory.change(order.change)
            continue
        if isinstance(order, MoveOrder):
            memory.move(order)
            continue
        if isinstance(order, BelowOrder):
            link.enters("making its memory below the device")
            memory.open_below(order.room)
            limits = replace(limits, below=order.room)
            link.below_is_there()
            continue
        memory.settle(order.batch)
        tokens = None
        if order.tokens_follow:
            count, device = order.batch.num_tokens, runner.model.device
            empty = torch.empty(count, dtype=torch.int64, device=device)
            tokens = link.group.copied_from_first(empty)
        runner.run_in(order.bucket, order.batch, tokens)
        number += 1


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when ``parent`` ends, also where it is stopped or waits
    in a library. Elsewhere than on Linux the end of the socket has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


def main() -> int:
    """Entry point: the last argument is the number of the inherited socket."""
    parser = argparse.ArgumentParser(description="A rank of Keepwarm's engine; started by it.")
    parser.add_argument("--log-format", default="text", choices=get_args(LogFormat))
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("socket_fd", type=int)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(arguments.parent)
    log_to_stderr("info", arguments.log_format, process=f"rank {arguments.rank}")
    with socket.socket(fileno=arguments.socket_fd) as connection:
        try:
            serve_rank(connection)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return 0
        except (Exception, HostMemoryDamaged) as error:
            said = isinstance(error, LoadError | HostMemoryDamaged)
            reason = str(error) if said else in_one_line(error)
            log.error("this rank ends: %s", reason)
            with contextlib.suppress(OSError):
                connection.sendall(rank_frames.encode(RankFault(reason=reason)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
