"""Why states are kept, and what is to be done with the memory they are in.

The tail of a transcript, less than a block, goes with its state: its keys and values are copied to
and from the block that comes with each slot.
"""

import enum
from dataclasses import dataclass


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
class EndState:
    """No sequence runs on ``slot`` any more; it is to hold the state at ``position`` (None:
    nothing) and keys and values of ``tail_block``."""

    slot: int
    position: int | None
    tail_block: int | None


StateOrder = BeginState | SaveState | EndState
"""To be carried out in the order in which they were given."""
