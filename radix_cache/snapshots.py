"""Why states are kept, and what is to be done with the memory they are in.

The tail of a transcript, less than a block, goes with its state: its keys and values are copied to
and from the block that comes with each slot, in each tier.
"""

import enum
from dataclasses import dataclass

from radix_cache.edge import TokenArray
from radix_cache.nodes import Tier


class SnapshotKind(enum.StrEnum):
    """Why a state was kept."""

    END = "end"
    """A turn ended there: the slot it ran on was donated."""
    HEADER = "header"
    """A position that the request named: instructions and tools end there, or others fork."""
    JUNCTION = "junction"
    """Keys and values were found up to there and no state."""
    PAUSE = "pause"
    """A turn was preempted or cancelled there."""
    INTERVAL = "interval"
    """Every so many tokens of a long prompt: in host memory alone, while nothing else wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginState:
    """A sequence runs on ``slot`` from ``position`` on, with the state of ``source`` (None: of an
    empty transcript); ``tail_block`` of its own gets the keys and values of the source's."""

    slot: int
    source: int | None
    position: int
    tail_block: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """The state of a running ``slot`` at ``position`` is copied to ``target``, and keys and values
    of its ``tail_block`` to the target's."""

    slot: int
    target: int
    position: int
    tail_block: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveBelow:
    """The state of a running ``slot`` at ``position``, where a block ends, is copied to ``target``,
    a slot of host memory."""

    slot: int
    target: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndState:
    """No sequence runs on ``slot`` any more; it is to hold the state at ``position`` (None:
    nothing) and keys and values of ``tail_block``."""

    slot: int
    position: int | None
    tail_block: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateContent:
    """What a state on disk is of: enough to find it again after a restart."""

    tenant: str
    """The key of its owner (``Owner.key``); empty for what is published under no adapter."""
    kind: SnapshotKind
    blocks: int
    """Whole blocks before it."""
    key: bytes
    """Chained key of these, 16 bytes (``radix_cache.keys.chain_keys``)."""
    tail: TokenArray
    """int32, less than a block: the tokens behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A state that an earlier process has left on disk."""

    content: StateContent
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMove:
    """The state in a slot of ``source``, and its tail, are copied to a slot of ``target``. Between
    device and host the order counts as done once it is given; from and to the disk it ends with
    ``PrefixCache.moved``."""

    number: int
    """0 between device and host."""
    source: Tier
    target: Tier
    source_slot: int
    target_slot: int
    content: StateContent | None = None
    """For orders to the disk."""


SlotOrder = BeginState | SaveState | EndState
"""On slots of the device alone."""
StateOrder = SlotOrder | SaveBelow | StateMove
"""To be carried out in the order in which they were given."""
