"""What the leading rank and another say to each other until the first step, as frames.

Afterwards the leading one sends the messages of ``runtime.process.step_channel``, and the other
speaks only to say which orders on its disk are over, and why it ends.
"""

from dataclasses import asdict, dataclass
from typing import Any

from runtime.messages import Loading
from runtime.process.field_types import WrongField, build
from runtime.process.frames import FrameError, decode_object, encode_object


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """To a rank, behind the configuration: which it is, and where it meets the others."""

    rank: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMet:
    """To another rank: all have met, and whoever loads is heard from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProducts:
    """To another rank: the layouts that were chosen (``product_choice``); all None: none was."""

    few: str | None = None
    many: str | None = None
    from_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRoom:
    """A message from another rank: its part is loaded."""

    num_blocks: int
    """How many blocks it has room for."""
    state_slots: int = 0
    """The same of slots for states, and of rings of those that run."""
    state_rings: int = 0
    window_blocks: int = 0
    files: str
    """A digest of what it read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBlocks:
    """To another rank: so many blocks, slots for states and rings does every rank have."""

    num_blocks: int
    state_slots: int = 0
    state_rings: int = 0
    window_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBelow:
    """A message from another rank: its tiers below the device are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMoved:
    """A message from another rank: a move from or to its disk is over."""

    number: int
    ok: bool
    of_states: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """A message from another rank: why it ends, in one line."""

    reason: str


RankMessage = (
    RankStart
    | RankMet
    | RankProducts
    | RankRoom
    | RankBlocks
    | RankBelow
    | RankMoved
    | RankFault
    | Loading
)
_KINDS: dict[str, type[Any]] = {
    "start": RankStart,
    "met": RankMet,
    "products": RankProducts,
    "room": RankRoom,
    "blocks": RankBlocks,
    "below": RankBelow,
    "moved": RankMoved,
    "fault": RankFault,
    "loading": Loading,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(message: RankMessage) -> bytes:
    """A message between ranks as a frame."""
    return encode_object({_NAMES[type(message)]: asdict(message)})


def decode(header: bytes, body: bytes) -> RankMessage:
    """Inverse of ``encode``. Raises FrameError on anything else."""
    value = decode_object(header, body)
    if len(value) != 1:
        raise FrameError(f"a message between ranks has {len(value)} kinds")
    ((name, fields),) = value.items()
    kind = _KINDS.get(name)
    if kind is None:
        raise FrameError(f"unknown message between ranks {name[:40]!r}")
    try:
        message: RankMessage = build(kind, fields)
    except WrongField as error:
        raise FrameError(f"not a message between ranks: {error}") from error
    return message
