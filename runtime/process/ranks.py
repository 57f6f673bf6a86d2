"""The leading rank's view of the others: meeting them, telling them each step, noticing their end.

Each of the others is a child process (``runtime.process.rank_processes``) with a socket pair to
this one: every step goes there, and its end is seen there at once, by a thread of its own. Sums go
by ``runtime.model.rank_group``, in which nobody notices who is gone.

Always true: no other rank outlives this process; the loss of one while steps may run ends it, in
one line that says which rank, and how.
"""

import logging
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from radix_cache.snapshots import SaveBelow, SlotOrder
from radix_cache.transfers import BlockMove
from runtime.config import EngineConfig
from runtime.messages import Loading
from runtime.model.batch import StepBatch
from runtime.model.config import LoadError
from runtime.model.partition import Partition
from runtime.model.product_choice import ProductChoice
from runtime.model.rank_group import RankGroup, gloo_group, nccl_group, store_in
from runtime.model.rank_link import Room, RoomBelow, RunnerBroken
from runtime.model.rank_sum import RankSum, SumKind
from runtime.model.runner import device_of, resolve_device
from runtime.model.step_buckets import Bucket
from runtime.process import frames, rank_frames
from runtime.process.ending import LAST_WORDS
from runtime.process.frame_socket import receive_frame
from runtime.process.move_messages import MoveOrder
from runtime.process.rank_files import files_digest
from runtime.process.rank_frames import (
    RankBelow,
    RankBlocks,
    RankFault,
    RankMet,
    RankMoved,
    RankProducts,
    RankRoom,
)
from runtime.process.rank_processes import SAYS_S, Peer, RankProcesses, partition_of
from runtime.process.step_channel import (
    StepOrder,
    encode_below,
    encode_change,
    encode_end,
    encode_move_order,
    encode_rest,
    encode_step,
)

MEETING = "meeting the other ranks"
"""The stage of another rank that is about to meet the others."""
MET = "waiting for the other ranks to meet"
"""And of one that has; not before all have may the place where they do be gone."""
_DEAD_S = 0.02
"""Seconds for a look at a process that may be dead."""
_ENDS_S = 2.0
"""Seconds for another rank that has been told to end; then it is killed."""


@dataclass(slots=True)
class _State:
    """What is shared with the thread that listens."""

    news: threading.Condition = field(default_factory=threading.Condition)
    serving: bool = False
    """The loss of a rank ends this process; before, whoever loads is told."""
    closing: bool = False
    lost: str | None = None
    moved: dict[bool, list[tuple[int, bool]]] = field(default_factory=lambda: {False: [], True: []})
    """Moves from and to the disk that others have said are over: of KV, and of states."""


class LeadingRank:
    """A ``RankLink`` and its ``Followers``, as the rank that plans and draws."""

    def __init__(
        self,
        config: EngineConfig,
        peers: Sequence[Peer],
        *,
        enters: Callable[[str], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """
        Args:
            peers: the other ranks in their order, started; they end with this.
            enters: is told which stage of loading the slowest of them is at.
            on_loss: is called in a thread when one of them is lost while steps may run.
        """
        self.partition = partition_of(config, 0)
        self.followers = self
        self._config = config
        self._peers = peers
        self._enters = enters
        self._on_loss = on_loss
        self._state = _State()
        self._number = 0
        self._files = ""
        self._group: RankGroup | None = None
        self._sum: RankSum | None = None
        self._listening = threading.Thread(target=self._listen, name="ranks", daemon=True)
        self._listening.start()

    # Loading

    def meet(self, group: Callable[[], RankGroup]) -> None:
        """Have ``group``, which returns when all ranks are there, once the others are about to
        call it.

        Raises:
            LoadError: one of them cannot.
        """
        self._wait(lambda peer: peer.stage == MEETING)
        self._serve(True)  # whoever waits in there hears nothing
        self._group = group()
        self._serve(False)
        self._wait(lambda peer: peer.stage == MET)
        self._tell_who_load(rank_frames.encode(RankMet()))
        self._sum = RankSum(self._group, sum_kind(self._config, self.partition))

    def products(self, own: ProductChoice | None) -> ProductChoice | None:
        """See ``RankLink.products``."""
        self._files = files_digest(self._config.model)
        told = RankProducts()
        if own is not None:
            told = RankProducts(few=own.few, many=own.many, from_rows=own.from_rows)
        self._tell_who_load(rank_frames.encode(told))
        return own

    def room(self, own: Room) -> Room:
        """See ``RankLink.room``."""
        self._wait(lambda peer: peer.room is not None)
        rooms = [peer.room for peer in self._peers if peer.room is not None]
        files = self._files + files_digest(self._config.model)
        for peer, room in zip(self._peers, rooms, strict=True):
            if room.files != files:
                raise LoadError(
                    f"{self._config.model}: rank {peer.rank} has read other files than rank 0: "
                    "the folder was changed meanwhile"
                )
        least = Room(
            num_blocks=min(own.num_blocks, *(room.num_blocks for room in rooms)),
            state_slots=min(own.state_slots, *(room.state_slots for room in rooms)),
            state_rings=min(own.state_rings, *(room.state_rings for room in rooms)),
            window_blocks=min(own.window_blocks, *(room.window_blocks for room in rooms)),
        )
        self._serve(True)
        self._tell_who_load(rank_frames.encode(RankBlocks(**least._asdict())))
        return least

    def _wait(self, is_there: Callable[[Peer], bool]) -> None:
        """Return when all others are so far; says meanwhile what the slowest does."""
        said = ""
        with self._state.news:
            while self._state.lost is None:
                late = next((peer for peer in self._peers if not is_there(peer)), None)
                if late is None:
                    return
                stage = f"{late.stage} (rank {late.rank})"
                if stage != said:
                    said = stage
                    self._enters(stage)
                self._state.news.wait()
            raise LoadError(self._state.lost)

    def _serve(self, serving: bool) -> None:
        """From now on the loss of a rank ends this process, or is told to whoever loads.

        Raises:
            LoadError: one has been lost already.
        """
        with self._state.news:
            if self._state.lost is not None:
                raise LoadError(self._state.lost)
            self._state.serving = serving

    # Steps

    @property
    def num_sums(self) -> int:
        """See ``RankLink.num_sums``."""
        return 0 if self._sum is None else self._sum.count

    def rank_sum(self, part: Tensor) -> Tensor:
        """See ``RankLink.rank_sum``."""
        assert self._sum is not None
        return self._sum(part)

    def all_can(self, this_can: bool) -> bool:
        """See ``RankLink.all_can``."""
        assert self._group is not None
        return all_can(self._group, this_can, own_device(self._config, self.partition))

    def send_step(self, batch: StepBatch, tokens: Tensor | None, bucket: Bucket | None) -> None:
        """See ``Followers.send_step``; on a CPU the tokens go with the message."""
        follow = tokens is not None and tokens.is_cuda
        if tokens is not None and not follow:
            batch = batch.with_tokens(tokens.numpy())
        order = StepOrder(number=self._number, batch=batch, bucket=bucket, tokens_follow=follow)
        self._number += 1
        try:
            self._tell(encode_step(order))
            if follow and tokens is not None and self._group is not None:
                self._group.copied_from_first(tokens.contiguous())
        except Exception as error:
            raise self.broken(error) from error

    def send_state(self, order: SlotOrder | SaveBelow) -> None:
        """See ``Followers.send_state``."""
        self._order(encode_change(order))

    def send_below(self, room: RoomBelow) -> None:
        """See ``Followers.send_below``."""
        self._serve(False)
        self._order(encode_below(room))
        self._wait(lambda peer: peer.has_below)
        self._serve(True)

    def send_move(self, move: BlockMove, marks: Sequence[bytes], *, of_states: bool) -> None:
        """See ``Followers.send_move``."""
        self._order(
            encode_move_order(MoveOrder(move=move, of_states=of_states, marks=tuple(marks)))
        )

    def take_moved(self, *, of_states: bool) -> list[tuple[int, bool]]:
        """See ``Followers.take_moved``."""
        with self._state.news:
            if self._state.lost is not None:
                raise RunnerBroken(self._state.lost)
            told, self._state.moved[of_states] = self._state.moved[of_states], []
        return told

    def send_rest(self) -> None:
        """See ``Followers.send_rest``."""
        self._order(encode_rest())

    def _order(self, message: bytes) -> None:
        """Raises RunnerBroken: one of them is gone, and why."""
        try:
            self._tell(message)
        except OSError as error:
            raise self.broken(error) from error

    def broken(self, error: Exception) -> RunnerBroken:
        """See ``Followers.broken``."""
        with self._state.news:
            self._state.news.wait_for(lambda: self._state.lost, SAYS_S)
            return RunnerBroken(self._state.lost or f"rank 0 failed in a step: {error}")

    def pop_wait_s(self) -> float:
        """See ``RankLink.pop_wait_s``."""
        return 0.0 if self._sum is None else self._sum.pop_wait_s()

    def _tell_who_load(self, message: bytes) -> None:
        """Raises LoadError: one of them is gone, and why."""
        try:
            self._tell(message)
        except OSError as error:
            raise LoadError(str(self.broken(error))) from error

    def _tell(self, message: bytes) -> None:
        for peer in self._peers:
            peer.connection.sendall(message)

    # The others' ends

    def _listen(self) -> None:
        by_socket = {peer.connection: peer for peer in self._peers}
        while not self._state.closing and self._state.lost is None:
            for connection in select.select(list(by_socket), [], [])[0]:
                lost = self._heard(by_socket[connection])
                if lost is not None:
                    self._note(lost)
                    return

    def _heard(self, peer: Peer) -> str | None:
        """Take in what another rank says; in words what happened, where it can do no more."""
        try:
            message = rank_frames.decode(*receive_frame(peer.connection))
        except (EOFError, OSError):
            return f"rank {peer.rank} {peer.ending()}"
        except frames.FrameError as error:
            return f"rank {peer.rank} said something that is no message: {error}"
        if isinstance(message, RankFault):
            return self._killed() or f"rank {peer.rank}: {message.reason}"
        with self._state.news:
            if isinstance(message, Loading):
                peer.stage = message.stage
            elif isinstance(message, RankRoom):
                peer.room = message
            elif isinstance(message, RankBelow):
                peer.has_below = True
            elif isinstance(message, RankMoved):
                self._state.moved[message.of_states].append((message.number, message.ok))
            else:
                return f"rank {peer.rank} said {type(message).__name__}"
            self._state.news.notify_all()
        return None

    def _killed(self) -> str | None:
        """Another rank that was killed, in words: those that were waiting for it fail as well, and
        may say so first."""
        for peer in self._peers:
            with suppress(subprocess.TimeoutExpired):
                if peer.process.wait(_DEAD_S) < 0:
                    return f"rank {peer.rank} {peer.ending()}"
        return None

    def _note(self, lost: str) -> None:
        with self._state.news:
            if self._state.closing:
                return
            self._state.lost = lost
            serving = self._state.serving
            self._state.news.notify_all()
        if serving:
            self._kill()
            self._on_loss(lost)

    def _kill(self) -> None:
        for peer in self._peers:
            peer.process.kill()

    def close(self) -> None:
        """See ``RankLink.close``; those that do not end at once are killed."""
        with self._state.news:
            self._state.closing = True
        with suppress(OSError):
            self._tell(encode_end())
        self._group = self._sum = None  # who waits in a sum is told that this rank has gone
        for peer in self._peers:
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)
            try:
                peer.process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()
        self._listening.join(_ENDS_S)
        for peer in self._peers:
            peer.connection.close()


def own_device(config: EngineConfig, partition: Partition) -> torch.device:
    """A rank's device. Raises LoadError: there is none for it."""
    return device_of(partition, resolve_device(config.device))


def sum_kind(config: EngineConfig, partition: Partition) -> SumKind:
    """How ranks sum where ``config`` has them run."""
    return "exact" if own_device(config, partition).type == "cpu" else "fast"


def all_can(group: RankGroup, this_can: bool, device: torch.device) -> bool:
    """See ``RankLink.all_can``."""
    told = group.gathered(torch.tensor([this_can], dtype=torch.uint8, device=device))
    return all(bool(each.item()) for each in told)


def group_in(folder: Path, config: EngineConfig, partition: Partition) -> RankGroup:
    """Meet the other ranks in a folder, by what the device has for it.

    Raises:
        LoadError: others may write there, or a rank has no device.
    """
    store = store_in(folder, partition.ranks)
    device = own_device(config, partition)
    if device.type == "cuda":
        return nccl_group(store, partition.rank, partition.ranks, device)
    return gloo_group(store, partition.rank, partition.ranks)


def end_process(reason: str) -> None:
    """End this process, whatever its other threads wait for."""
    LAST_WORDS.say(reason)
    logging.shutdown()
    os._exit(1)


def lead(
    processes: RankProcesses, config: EngineConfig, enters: Callable[[str], None]
) -> LeadingRank:
    """Meet the other ranks, which end with this one's process from now on.

    Raises:
        LoadError: one of them cannot start.
    """
    leading = LeadingRank(config, processes.peers, enters=enters, on_loss=end_process)
    try:
        leading.meet(lambda: group_in(processes.folder, config, leading.partition))
    except BaseException:
        leading.close()
        raise
    finally:
        processes.forget_folder()
    return leading
