"""What the leading rank tells the others of each step, as bytes.

A message is a fixed head and the arrays of a ``StepBatch`` that the others do not follow from:
tokens, where each sequence's begin, contexts, block tables, rows with logits, the slots of states
where a model has any, the numbers of adapters where a sequence has one, and the window blocks where
rows behind windows are given back. Positions and slots of KV are worked out anew where it arrives,
so that they cannot name a place outside the pool. Between steps a message orders what the cache
wants of one slot for states (``radix_cache.snapshots``), or of the tiers below the device
(``runtime.process.move_messages``).

Always true: what ``read_order`` returns writes blocks and slots of this pool alone, and looks up
tokens of this vocabulary; anything else is refused before it is computed. No byte of a message is
code.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from radix_cache.nodes import Tier
from radix_cache.snapshots import BeginState, EndState, SaveBelow, SaveState, SlotOrder
from runtime.model.batch import NO_ADAPTER, NO_STATE, TRIAL_STATE, StepBatch
from runtime.model.rank_link import RoomBelow
from runtime.model.step_buckets import Bucket
from runtime.process.frames import FrameError
from runtime.process.move_messages import (
    MoveLimits,
    MoveOrder,
    encode_move,
    encode_room,
    read_move,
    read_room,
)

MAGIC: Final = b"KWS1"
_STEP, _REST, _END, _CHANGE, _BELOW, _MOVE = 1, 2, 3, 4, 5, 6
_HEAD = struct.Struct("<4sBBBBQ5i6i")
"""Magic, kind, whether tokens come over the device, whether slots of states and numbers of adapters
follow, number of the step; tokens, sequences, blocks of a table, rows with logits, blocks of a
table of window blocks; the bucket's sizes, all 0 where there is none."""
_ONE_CHANGE = struct.Struct("<4iq")
"""Kind of change, the slot, another slot, the block of the tail, the position; of the last three -1
is none."""
_BEGIN, _SAVE, _LAST, _SAVE_BELOW = 1, 2, 3, 4
_NONE = -1
HEAD_BYTES: Final = _HEAD.size
MOST_TOKENS: Final = 1 << 18
"""Of one step; the largest that an option allows, with all its drafts, is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What the messages of one model and pool stay within."""

    vocab_size: int
    num_blocks: int
    block_size: int
    max_context_tokens: int
    state_slots: int = 0
    """Slots of a model with recurrent layers; else there are none."""
    window_blocks: int = 0
    """Blocks of layers with a window, where they have such of their own."""
    adapters: int = 0
    """How many the model has."""
    below: RoomBelow | None = None
    """The room below the device; None: no such order has come."""

    @property
    def moves(self) -> MoveLimits:
        """Limits of moves between tiers."""
        below = self.below or RoomBelow()
        return MoveLimits(
            kv={
                Tier.DEVICE: self.num_blocks,
                Tier.HOST: below.host_blocks,
                Tier.DISK: below.disk_blocks,
            },
            states={
                Tier.DEVICE: self.state_slots,
                Tier.HOST: below.host_states,
                Tier.DISK: below.disk_states,
            },
            near={
                Tier.DEVICE: self.window_blocks,
                Tier.HOST: below.host_window_blocks,
                Tier.DISK: below.disk_blocks,
            },
            block_size=self.block_size,
            vocab_size=self.vocab_size,
        )

    @property
    def table_blocks(self) -> int:
        """The longest block table."""
        return min(self.num_blocks, -(-self.max_context_tokens // self.block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """The order to compute a step."""

    number: int
    batch: StepBatch
    bucket: Bucket | None
    """The recording to run it in; None: as it comes."""
    tokens_follow: bool
    """Whether its tokens come over the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOrder:
    """The order to change a slot for states; one that is to be copied below is brought to its
    position."""

    change: SlotOrder | SaveBelow


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowOrder:
    """The order to make tiers below the device."""

    room: RoomBelow


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOrder:
    """The order to rest: no step comes for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOrder:
    """The order to end: there is nothing more to compute."""


Order = StepOrder | ChangeOrder | BelowOrder | MoveOrder | RestOrder | EndOrder


def encode_step(order: StepOrder) -> bytes:
    """The message that orders a step."""
    batch, bucket = order.batch, order.bucket
    sizes = (0,) * 6
    if bucket is not None:
        sizes = (
            bucket.sequences,
            bucket.tokens,
            bucket.logits,
            bucket.decode_width,
            bucket.chunk,
            int(bucket.shared),
        )
    has_states = bool((batch.state_slots != NO_STATE).any())
    head = _HEAD.pack(
        MAGIC,
        _STEP,
        order.tokens_follow,
        has_states,
        batch.adapters is not None,
        order.number,
        batch.num_tokens,
        batch.num_sequences,
        batch.block_tables.shape[1],
        len(batch.logit_rows),
        0 if batch.window is None else batch.window.block_tables.shape[1],
        *sizes,
    )
    arrays: list[npt.NDArray[np.int64] | npt.NDArray[np.int32]] = [
        batch.token_ids,
        batch.query_starts,
        batch.context_lengths,
        batch.block_tables,
        batch.logit_rows,
    ]
    if has_states:
        arrays.append(batch.state_slots)
    if batch.adapters is not None:
        arrays.append(batch.adapters)
    if batch.window is not None:
        skipped = batch.context_lengths - batch.window.context_lengths
        arrays += [skipped // batch.block_size, batch.window.block_tables]
    return head + b"".join(array.astype("<i4").tobytes() for array in arrays)


def encode_change(change: SlotOrder | SaveBelow) -> bytes:
    """The message that orders a change of a slot for states."""
    if isinstance(change, SaveBelow):
        body = _ONE_CHANGE.pack(_SAVE_BELOW, change.slot, change.target, _NONE, change.position)
        return _plain_head(_CHANGE) + body
    if isinstance(change, BeginState):
        what, other = _BEGIN, change.source
    elif isinstance(change, SaveState):
        what, other = _SAVE, change.target
    else:
        what, other = _LAST, None
    numbers = [_NONE if each is None else each for each in (other, change.tail_block)]
    position = _NONE if change.position is None else change.position
    return _plain_head(_CHANGE) + _ONE_CHANGE.pack(what, change.slot, *numbers, position)


def encode_below(room: RoomBelow) -> bytes:
    """The message that orders tiers below the device."""
    return _plain_head(_BELOW) + encode_room(room)


def encode_move_order(order: MoveOrder) -> bytes:
    """The message that orders a move between tiers."""
    return _plain_head(_MOVE) + encode_move(order)


def encode_rest() -> bytes:
    """The message that orders a rest."""
    return _plain_head(_REST)


def encode_end() -> bytes:
    """The message that ends a rank."""
    return _plain_head(_END)


def _plain_head(kind: int) -> bytes:
    return _HEAD.pack(MAGIC, kind, 0, 0, 0, 0, *(0,) * 11)


def read_order(receive: Callable[[int], bytes], limits: ChannelLimits, number: int) -> Order:
    """The next message.

    Args:
        receive: the next so many bytes; raises EOFError where there are none any more.
        limits: of this rank's model and pool, as the leading rank has them.
        number: of the next step.

    Raises:
        FrameError: it is none of ours, or not the next one, or names what is not there.
    """
    magic, kind, follow, states, adapters, told, *sizes = _HEAD.unpack(receive(HEAD_BYTES))
    if magic != MAGIC:
        raise FrameError(f"a step's message starts with {magic!r}")
    if kind in (_REST, _END, _CHANGE, _BELOW, _MOVE):
        if follow or states or adapters or told or any(sizes):
            raise FrameError("a message without a step has sizes")
        return _without_a_step(kind, receive, limits)
    flags = {follow, states, adapters}
    if kind != _STEP or not flags <= {0, 1}:
        raise FrameError(f"a message of kind {kind}, {follow}, {states}, {adapters}")
    if told != number:
        raise FrameError(f"step {told} where step {number} comes next")
    tokens, sequences, blocks, logits, near = sizes[:5]
    counts = _Counts(
        tokens, sequences, blocks, logits, near, bool(states), has_adapters=bool(adapters)
    )
    bucket = _bucket(sizes[5:])
    counts.check(limits)
    return StepOrder(
        number=number,
        batch=_batch(receive(counts.num_bytes), counts, limits),
        bucket=bucket,
        tokens_follow=bool(follow),
    )


def _without_a_step(
    kind: int, receive: Callable[[int], bytes], limits: ChannelLimits
) -> ChangeOrder | BelowOrder | MoveOrder | RestOrder | EndOrder:
    if kind == _CHANGE:
        return ChangeOrder(change=_change(receive(_ONE_CHANGE.size), limits))
    if kind == _BELOW:
        if limits.below is not None:
            raise FrameError("tiers below the device, once more")
        return BelowOrder(room=read_room(receive))
    if kind == _MOVE:
        return read_move(receive, limits.moves)
    return RestOrder() if kind == _REST else EndOrder()


def _change(body: bytes, limits: ChannelLimits) -> SlotOrder | SaveBelow:
    what, slot, other, tail, position = _ONE_CHANGE.unpack(body)
    if what == _SAVE_BELOW:
        return _save_below(slot, other, tail, position, limits)
    if not 0 <= slot < limits.state_slots or not _NONE <= other < limits.state_slots:
        raise FrameError(f"slots {slot}, {other} of {limits.state_slots}")
    if not _NONE <= tail < limits.num_blocks:
        raise FrameError(f"tail {tail} of {limits.num_blocks} blocks")
    if not _NONE <= position <= limits.max_context_tokens:
        raise FrameError(f"a state at {position} of {limits.max_context_tokens} tokens")
    block = None if tail == _NONE else tail
    at = None if position == _NONE else position
    if what == _LAST and other == _NONE:
        return EndState(slot=slot, position=at, tail_block=block)
    if what == _SAVE and other not in (_NONE, slot) and at is not None:
        return SaveState(slot=slot, target=other, position=at, tail_block=block)
    if what == _BEGIN and other != _NONE and at is not None:
        return BeginState(slot=slot, source=other, position=at, tail_block=block)
    if what == _BEGIN and at == 0 and block is None:
        return BeginState(slot=slot, source=None, position=0, tail_block=None)
    raise FrameError(f"a change of states {what}: {slot}, {other}, {tail}, {position}")


def _save_below(
    slot: int, target: int, tail: int, position: int, limits: ChannelLimits
) -> SaveBelow:
    there = 0 if limits.below is None else limits.below.host_states
    if not 0 <= slot < limits.state_slots or not 0 <= target < there:
        raise FrameError(f"slots {slot}, {target} of {limits.state_slots}, {there} below")
    if tail != _NONE or not 0 <= position <= limits.max_context_tokens:
        raise FrameError(f"a state to be kept below at {position}, tail {tail}")
    return SaveBelow(slot=slot, target=target, position=position)


@dataclass(frozen=True, slots=True)
class _Counts:
    tokens: int
    sequences: int
    blocks: int
    logits: int
    window_blocks: int
    has_states: bool
    has_adapters: bool

    def check(self, limits: ChannelLimits) -> None:
        if not 1 <= self.tokens <= MOST_TOKENS or not 1 <= self.sequences <= self.tokens:
            raise FrameError(f"a step of {self.tokens} tokens of {self.sequences} sequences")
        if not 1 <= self.blocks <= limits.table_blocks:
            raise FrameError(f"tables of {self.blocks} blocks, {limits.table_blocks} at most")
        if not 0 <= self.logits <= self.tokens:
            raise FrameError(f"{self.logits} rows with logits of {self.tokens}")
        most = limits.table_blocks if limits.window_blocks else 0
        if not min(most, 1) <= self.window_blocks <= most:
            raise FrameError(f"tables of {self.window_blocks} window blocks, {most} at most")

    @property
    def num_bytes(self) -> int:
        of_sequences = 2 + self.has_states + self.has_adapters
        numbers = self.tokens + of_sequences * self.sequences + 1 + self.logits
        if self.window_blocks:
            numbers += self.sequences * (1 + self.window_blocks)
        return 4 * (numbers + self.sequences * self.blocks)


def _bucket(sizes: list[int]) -> Bucket | None:
    if not any(sizes):
        return None
    sequences, tokens, logits, width, chunk, shared = sizes
    if min(sizes) < 0 or shared > 1:
        raise FrameError(f"a recording of {sizes}")
    return Bucket(
        sequences=sequences,
        tokens=tokens,
        logits=logits,
        decode_width=width,
        chunk=chunk,
        shared=bool(shared),
    )


class _Arrays(NamedTuple):
    tokens: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    tables: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    states: npt.NDArray[np.int32] | None
    adapters: npt.NDArray[np.int32] | None
    window: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None
    """Blocks that layers with a window do not have any more of each sequence, and the tables of
    those that they have."""


def _batch(body: bytes, counts: _Counts, limits: ChannelLimits) -> StepBatch:
    numbers = np.frombuffer(body, dtype="<i4")
    at = 0

    def take(count: int) -> npt.NDArray[np.int32]:
        nonlocal at
        at += count
        return numbers[at - count : at]

    sequences, blocks, near = counts.sequences, counts.blocks, counts.window_blocks
    arrays = _Arrays(
        tokens=take(counts.tokens),
        starts=take(sequences + 1),
        lengths=take(sequences),
        tables=take(sequences * blocks).reshape(sequences, blocks),
        rows=take(counts.logits),
        states=take(sequences) if counts.has_states else None,
        adapters=take(sequences) if counts.has_adapters else None,
        window=(take(sequences), take(sequences * near).reshape(sequences, near)) if near else None,
    )
    _check(arrays, counts, limits)
    if arrays.states is None:
        states = np.full(sequences, NO_STATE, dtype=np.int64)
    else:
        states = _checked_states(arrays.states, limits)
    batch = StepBatch.laid_out(
        token_ids=arrays.tokens.astype(np.int64),
        query_starts=arrays.starts.astype(np.int64),
        context_lengths=arrays.lengths.astype(np.int64),
        block_tables=arrays.tables.astype(np.int32),
        logit_rows=arrays.rows.astype(np.int64),
        state_slots=states,
        block_size=limits.block_size,
        adapters=_checked_adapters(arrays.adapters, limits),
    )
    if arrays.window is None:
        return batch
    skipped, near_tables = arrays.window
    tables = list(near_tables.astype(np.int32))
    return replace(batch, window=batch.behind(skipped.astype(np.int64) * limits.block_size, tables))


def _checked_adapters(
    numbers: npt.NDArray[np.int32] | None, limits: ChannelLimits
) -> npt.NDArray[np.int64] | None:
    if numbers is None:
        return None
    if int(numbers.min()) < NO_ADAPTER or int(numbers.max()) >= limits.adapters:
        raise FrameError("an adapter that is not there")
    return numbers.astype(np.int64)


def _checked_states(slots: npt.NDArray[np.int32], limits: ChannelLimits) -> npt.NDArray[np.int64]:
    if int(slots.min()) < min(NO_STATE, TRIAL_STATE) or int(slots.max()) >= limits.state_slots:
        raise FrameError("a slot for states that is not there")
    running = slots[slots >= 0]
    if len(np.unique(running)) < len(running):
        raise FrameError("two sequences on one slot for states")
    return slots.astype(np.int64)


def _check(arrays: _Arrays, counts: _Counts, limits: ChannelLimits) -> None:
    tokens, starts, lengths, tables, rows, *_ = arrays
    if int(tokens.min()) < 0 or int(tokens.max()) >= limits.vocab_size:
        raise FrameError("a token that is not in the vocabulary")
    computed = np.diff(starts.astype(np.int64))
    if starts[0] != 0 or starts[-1] != counts.tokens or int(computed.min()) < 1:
        raise FrameError("sequences that do not lie end to end")
    if (lengths < computed).any() or int(lengths.max()) > limits.max_context_tokens:
        raise FrameError("a context that its tokens do not fit")
    held = np.arange(counts.blocks) < -(-lengths.astype(np.int64) // limits.block_size)[:, None]
    if int(lengths.max()) > counts.blocks * limits.block_size:
        raise FrameError("a context longer than its block table")
    if int(tables.max()) >= limits.num_blocks or (tables[held] < 0).any():
        raise FrameError("a block that is not in the pool")
    if int(tables.min()) < -1:
        raise FrameError("a block table padded with something else")
    if arrays.window is not None:
        starts_at = (lengths - computed).astype(np.int64)
        _check_window(arrays.window, lengths.astype(np.int64), starts_at, limits)
    if counts.logits and (int(rows[0]) < 0 or int(rows[-1]) >= counts.tokens):
        raise FrameError("logits of a row that is not there")
    if (np.diff(rows.astype(np.int64)) <= 0).any():
        raise FrameError("rows with logits out of order")


def _check_window(
    window: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
    lengths: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    limits: ChannelLimits,
) -> None:
    """Raises FrameError: a table of window blocks does not hold its sequence's tokens, or names a
    block that is not there."""
    size, (skipped, tables) = limits.block_size, window
    if int(skipped.min()) < 0 or (skipped.astype(np.int64) * size > starts).any():
        raise FrameError("window blocks that begin behind a sequence's tokens")
    needed = -(-lengths // size) - skipped
    if int(needed.max()) > tables.shape[1]:
        raise FrameError("a context longer than its table of window blocks")
    held = np.arange(tables.shape[1]) < needed[:, None]
    if int(tables.max()) >= limits.window_blocks or (tables[held] < 0).any():
        raise FrameError("a window block that is not in the pool")
