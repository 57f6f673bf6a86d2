"""What a model that several ranks compute asks of the others.

One rank leads: it is told each step, tells the others, and alone has logits. Who the others are,
and by which way they are reached, is ``runtime.process.ranks``' to know.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from radix_cache.snapshots import SaveBelow, SlotOrder
from radix_cache.transfers import BlockMove
from runtime.model.batch import StepBatch
from runtime.model.partition import Partition
from runtime.model.product_choice import ProductChoice
from runtime.model.step_buckets import Bucket


class RunnerBroken(Exception):
    """No step can be computed any more: a rank is gone, or the ranks are not at the same step."""


class Room(NamedTuple):
    """The room that a rank's memory has."""

    num_blocks: int
    state_slots: int = 0
    """Slots for states, and rings of those that run (``state_plan``)."""
    state_rings: int = 0
    window_blocks: int = 0
    """Blocks of layers with a window, where their rows are given back; 0: every block is."""

    def within(self, other: "Room") -> bool:
        """Whether there is no more of anything than in another."""
        return all(one <= most for one, most in zip(self, other, strict=True))


class RoomBelow(NamedTuple):
    """The room of each rank below the device: blocks, and slots for states."""

    host_blocks: int = 0
    host_window_blocks: int = 0
    """The part of these that has room for rows of layers with a window, where rows behind windows
    are given back."""
    host_states: int = 0
    disk_blocks: int = 0
    disk_states: int = 0


class Followers(Protocol):
    """The other ranks, as the leading one has them follow."""

    def send_step(self, batch: StepBatch, tokens: Tensor | None, bucket: Bucket | None) -> None:
        """Have the others compute a step, of these tokens if there are any, in the recording of
        ``bucket``, None: as it comes.

        Raises:
            RunnerBroken: one of them is gone.
        """
        ...

    def send_state(self, order: SlotOrder | SaveBelow) -> None:
        """Have the others carry out an order on their states, as far as it is one on slots of the
        device. Raises RunnerBroken likewise."""
        ...

    def send_below(self, room: "RoomBelow") -> None:
        """Have the others make tiers below the device, each for its part; returns when all have.

        Raises:
            LoadError: one of them cannot; the message says which, and why.
        """
        ...

    def send_move(self, move: BlockMove, marks: Sequence[bytes], *, of_states: bool) -> None:
        """Have the others move their parts of blocks, or of a state, between tiers. Raises
        RunnerBroken likewise.

        Args:
            marks: of blocks that come from the disk, what each is taken to hold.
        """
        ...

    def take_moved(self, *, of_states: bool) -> list[tuple[int, bool]]:
        """Moves from and to the disk that others have said are over: their numbers, and whether
        all is well; once for each of the others. Raises RunnerBroken likewise."""
        ...

    def send_rest(self) -> None:
        """Tell the others that no step comes for now. Raises RunnerBroken likewise."""
        ...

    def broken(self, error: Exception) -> RunnerBroken:
        """What a step has failed for that the others are computing, in words."""
        ...


class RankLink(Protocol):
    """The other ranks of a model, as one of them sees them. Each call is made by all of them, in
    the same order."""

    @property
    def partition(self) -> Partition: ...

    @property
    def followers(self) -> Followers | None:
        """The others, where this one leads."""
        ...

    @property
    def num_sums(self) -> int:
        """Sums that were made since the start."""
        ...

    def rank_sum(self, part: Tensor) -> Tensor:
        """The sum of what all ranks have computed, [tokens, hidden], the same on each."""
        ...

    def products(self, own: ProductChoice | None) -> ProductChoice | None:
        """The leading rank's choice of layouts, whatever ``own`` is elsewhere."""
        ...

    def room(self, own: Room) -> Room:
        """The least of what the ranks have room for, once all have loaded their parts.

        Raises:
            LoadError: a rank cannot load its part; the message says which, and why.
        """
        ...

    def all_can(self, this_can: bool) -> bool:
        """Whether all ranks can do the same."""
        ...

    def pop_wait_s(self) -> float:
        """Seconds in which sums were made and waited for, since this was asked last."""
        ...

    def close(self) -> None:
        """End the other ranks, or let go of the leading one."""
        ...
