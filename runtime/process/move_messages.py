"""Orders on memory below the device, as bytes: the room there, and what moves between tiers.

The leading rank's cache decides what moves; each of the other ranks moves its part
(``runtime.offload.rank_moves``). What goes to the disk is told with what it is of, so that every
rank writes the same to its headers; what comes from there with what the leading rank takes it to
hold, so that a rank whose disk holds anything else says so.

Always true: what ``read_move`` returns names blocks and slots that are there, each once.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from radix_cache.nodes import Tier
from radix_cache.snapshots import SnapshotKind, StateContent
from radix_cache.transfers import NO_ROWS, BlockMove, Content, RunContent
from runtime.model.rank_link import RoomBelow
from runtime.offload.disk import MARK_BYTES
from runtime.process.frames import FrameError

_ROOM: Final = struct.Struct("<5q")
_MOVE: Final = struct.Struct("<qBBBBiiii")
"""Number; where from, where to, whether states move, whether places of rows of layers with a window
follow; moves, marks, whose name in bytes (-1: no content), tokens of the content."""
_CONTENT: Final = struct.Struct("<iI16s")
"""Kind of snapshot (-1: a run of blocks); blocks before; key of these."""
_MOST_NAME_BYTES: Final = 2048
_WAYS: Final = {
    (Tier.DEVICE, Tier.HOST),
    (Tier.HOST, Tier.DEVICE),
    (Tier.DEVICE, Tier.DISK),
    (Tier.HOST, Tier.DISK),
    (Tier.DISK, Tier.HOST),
}
_KINDS: Final = tuple(SnapshotKind)
_RUN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """The order to move blocks, or a state, between tiers."""

    move: BlockMove
    of_states: bool
    marks: tuple[bytes, ...] = ()
    """``MARK_BYTES`` for each source on disk: what it is taken to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """The bounds of moves: how many blocks, or slots for states, each tier has."""

    kv: Mapping[Tier, int]
    states: Mapping[Tier, int]
    near: Mapping[Tier, int]
    """Room for rows of layers with a window, where these have blocks of their own; on disk every
    block has it."""
    block_size: int
    vocab_size: int


def encode_room(room: RoomBelow) -> bytes:
    """The body of the message that says how much room there is below the device."""
    return _ROOM.pack(*room)


def read_room(receive: Callable[[int], bytes]) -> RoomBelow:
    """Inverse of ``encode_room``. Raises FrameError: there is no room at all."""
    room = RoomBelow(*_ROOM.unpack(receive(_ROOM.size)))
    if min(room) < 0 or not room.host_blocks:
        raise FrameError(f"no room below the device: {tuple(room)}")
    return room


def encode_move(order: MoveOrder) -> bytes:
    """The body of the message that orders a move."""
    move, content = order.move, order.move.content
    name, tokens, said = b"", np.empty(0, dtype=np.int32), b""
    if content is not None:
        name = content.tenant.encode()
        if isinstance(content, RunContent):
            tokens, about = content.tokens, (_RUN, content.position, content.parent_key)
        else:
            kind = _KINDS.index(content.kind)
            tokens, about = content.tail, (kind, content.blocks, content.key)
        said = _CONTENT.pack(*about) + name + tokens.astype("<i4").tobytes()
    fixed = _MOVE.pack(
        move.number,
        move.source,
        move.target,
        order.of_states,
        move.source_near is not None,
        len(move.source_blocks),
        len(order.marks),
        -1 if content is None else len(name),
        len(tokens),
    )
    named = (move.source_blocks, move.target_blocks, move.source_near, move.target_near)
    ids = [blocks.astype("<i4").tobytes() for blocks in named if blocks is not None]
    marks = [mark.ljust(MARK_BYTES, b"\0") for mark in order.marks]
    return b"".join((fixed, *ids, *marks, said))


def read_move(receive: Callable[[int], bytes], limits: MoveLimits) -> MoveOrder:
    """Inverse of ``encode_move``. Raises FrameError: it names what is not there, or is not what
    such a move is told with."""
    number, source, target, states, near, *counts = _MOVE.unpack(receive(_MOVE.size))
    count, marks, name, tokens = counts
    if (source, target) not in _WAYS or states not in (0, 1) or number < 0:
        raise FrameError(f"a move {number} from {source} to {target}, {states}")
    source, target = Tier(source), Tier(target)
    there = limits.states if states else limits.kv
    if not 1 <= count <= min(there[source], there[target]) or (states and count > 1):
        raise FrameError(f"a move of {count}")
    if marks != (count if source == Tier.DISK else 0):
        raise FrameError(f"a move of {count} with {marks} marks")
    sources = _ids(receive(4 * count), there[source])
    targets = _ids(receive(4 * count), there[target])
    if near != (not states and limits.near[Tier.DEVICE] > 0):
        raise FrameError(f"a move with places of rows of windows {near}")
    sides = (source, target) if near else ()
    rows = [_near(receive(4 * count), limits.near[side]) for side in sides]
    if near and ((rows[0] < 0) != (rows[1] < 0)).any():
        raise FrameError("rows of a window that go along from nowhere, or to nowhere")
    told = tuple([receive(MARK_BYTES) for _ in range(marks)])
    content = None
    if target == Tier.DISK:
        most = limits.block_size - 1 if states else count * limits.block_size
        if not 0 <= name <= _MOST_NAME_BYTES or not (0 if states else most) <= tokens <= most:
            raise FrameError(f"a move to disk of {tokens} tokens, a name of {name} bytes")
        content = _content(receive, name, tokens, limits.vocab_size)
        if isinstance(content, StateContent) != bool(states):
            raise FrameError("a move to disk of something else than it says")
    elif name != -1 or tokens:
        raise FrameError("a move with content, and not to disk")
    move = BlockMove(
        number=number,
        source=source,
        target=target,
        source_blocks=sources,
        target_blocks=targets,
        content=content,
        source_near=rows[0] if near else None,
        target_near=rows[1] if near else None,
    )
    return MoveOrder(move=move, of_states=bool(states), marks=told)


def _ids(data: bytes, limit: int) -> npt.NDArray[np.int32]:
    ids = np.frombuffer(data, dtype="<i4").astype(np.int32)
    if int(ids.min()) < 0 or int(ids.max()) >= limit:
        raise FrameError(f"a block or slot that is not among {limit}")
    if len(np.unique(ids)) < len(ids):
        raise FrameError("a block or slot that moves twice")
    return ids


def _near(data: bytes, limit: int) -> npt.NDArray[np.int32]:
    """Places of rows of layers with a window, each once; -1: there are none."""
    places = np.frombuffer(data, dtype="<i4").astype(np.int32)
    held = places[places != NO_ROWS]
    if len(held) and (int(held.min()) < 0 or int(held.max()) >= limit):
        raise FrameError(f"rows of a window that are not among {limit}")
    if len(np.unique(held)) < len(held):
        raise FrameError("rows of a window that move twice")
    return places


def _content(receive: Callable[[int], bytes], name: int, tokens: int, vocab_size: int) -> Content:
    kind, blocks, key = _CONTENT.unpack(receive(_CONTENT.size))
    if not _RUN <= kind < len(_KINDS):
        raise FrameError(f"a snapshot of kind {kind}")
    try:
        tenant = receive(name).decode()
    except UnicodeDecodeError as error:
        raise FrameError("a tenant's name that is none") from error
    told = np.frombuffer(receive(4 * tokens), dtype="<i4").astype(np.int32)
    if len(told) and not 0 <= int(told.min()) <= int(told.max()) < vocab_size:
        raise FrameError("a token that is not in the vocabulary")
    if kind == _RUN:
        return RunContent(tenant=tenant, position=blocks, parent_key=key, tokens=told)
    return StateContent(tenant=tenant, kind=_KINDS[kind], blocks=blocks, key=key, tail=told)
