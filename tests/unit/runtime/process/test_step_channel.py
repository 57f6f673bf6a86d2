"""A step arrives as it was sent; whatever else arrives is refused before anything is computed."""

import os
import random
import struct
from dataclasses import fields, replace

import numpy as np
import pytest

from radix_cache.nodes import Tier
from radix_cache.snapshots import BeginState, EndState, SaveBelow, SaveState, SlotOrder
from radix_cache.transfers import BlockMove
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.rank_link import RoomBelow
from runtime.model.step_buckets import Bucket
from runtime.process.frames import FrameError
from runtime.process.move_messages import MoveOrder
from runtime.process.step_channel import (
    HEAD_BYTES,
    BelowOrder,
    ChangeOrder,
    ChannelLimits,
    EndOrder,
    RestOrder,
    StepOrder,
    encode_below,
    encode_change,
    encode_end,
    encode_move_order,
    encode_rest,
    encode_step,
    read_order,
)
from tests.support.step_orders import (
    LIMITS,
    WITH_ADAPTERS,
    WITH_STATES,
    WITH_WINDOWS,
    order_of,
    random_batch,
    random_change,
    reader,
    spoil,
    with_adapters,
    with_states,
)

HOSTILE_STEPS = int(os.environ.get("KEEPWARM_HOSTILE_STEPS", "3000"))
HOSTILE_SEED = int(os.environ.get("KEEPWARM_HOSTILE_SEED", "0"))
BUCKET = Bucket(sequences=4, tokens=8, logits=8, decode_width=8, chunk=0, shared=True)


def test_a_step_arrives_as_it_was_sent(request: pytest.FixtureRequest) -> None:
    """Also what is worked out anew: positions and slots."""
    rng = random.Random(request.config.getoption("--seed"))
    for number in range(300):
        batch, bucket = random_batch(rng), rng.choice([None, BUCKET])
        if number % 2:
            batch = with_states(rng, batch)
        sent = replace(order_of(batch, number, bucket), tokens_follow=rng.random() < 0.5)
        told = read_order(reader(encode_step(sent)), WITH_STATES, number)
        assert isinstance(told, StepOrder)
        assert (told.number, told.bucket, told.tokens_follow) == (
            number,
            bucket,
            sent.tokens_follow,
        )
        assert_same(batch, told.batch)


def assert_same(batch: StepBatch, other_batch: StepBatch) -> None:
    for field in fields(StepBatch):
        one, other = getattr(batch, field.name), getattr(other_batch, field.name)
        if isinstance(one, StepBatch):
            assert isinstance(other, StepBatch)
            assert_same(one, other)
            continue
        assert np.array_equal(one, other), field.name
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None), field.name


def test_adapters_arrive_and_such_as_are_not_there_are_refused(
    request: pytest.FixtureRequest,
) -> None:
    rng = random.Random(request.config.getoption("--seed"))
    for number in range(300):
        batch = with_adapters(rng, random_batch(rng))
        data = encode_step(order_of(batch, number))
        told = read_order(reader(data), WITH_ADAPTERS, number)
        assert isinstance(told, StepOrder)
        assert_same(batch, told.batch)
        assert batch.adapters is not None
        fewer = replace(WITH_ADAPTERS, adapters=max(0, int(batch.adapters.max())))
        if batch.adapters.max() >= 0:
            with pytest.raises(FrameError, match="adapter that is not there"):
                read_order(reader(data), fewer, number)
    wrong = replace(batch, adapters=np.full(batch.num_sequences, -2))
    with pytest.raises(FrameError, match="adapter that is not there"):
        read_order(reader(encode_step(order_of(wrong))), WITH_ADAPTERS, 0)


def test_a_step_with_window_blocks_arrives_as_it_was_sent(
    request: pytest.FixtureRequest,
) -> None:
    rng = random.Random(request.config.getoption("--seed"))
    for number in range(300):
        batch = random_batch(rng, windows=True)
        data = encode_step(order_of(batch, number))
        told = read_order(reader(data), WITH_WINDOWS, number)
        assert isinstance(told, StepOrder)
        assert told.batch.window is not None
        assert_same(batch, told.batch)
        with pytest.raises(FrameError, match="window blocks, 0 at most"):
            read_order(reader(data), LIMITS, number)


@pytest.mark.parametrize(
    ("first", "blocks", "said"),
    [
        (0, [3, 30, 7], "a window block that is not in the pool"),
        (1, [3, -1], "a window block that is not in the pool"),
        (-1, [3, 0, 7, 8], "begin behind"),
        (3, [3, 0], "begin behind"),
        (1, [3], "longer than its table of window blocks"),
        (0, [*range(25), 1], "26 window blocks, 25 at most"),
    ],
)
def test_window_blocks_that_do_not_hold_a_step_are_refused(
    first: int, blocks: list[int], said: str
) -> None:
    """One decode behind 9 tokens, in blocks of 4."""
    sound = (0, np.array([1, 2, 3], dtype=np.int32))
    entry = SequenceInput(
        tokens=np.array([11], dtype=np.int32),
        start=9,
        block_table=np.array([3, 0, 7], dtype=np.int32),
        num_logits=1,
        window=sound,
    )
    data = bytearray(encode_step(order_of(StepBatch.build([entry], 4))))
    near = np.array([first, *blocks], dtype="<i4").tobytes()
    data[-16:] = near
    struct.pack_into("<i", data, 16 + 4 * 4, len(blocks))
    with pytest.raises(FrameError, match=said):
        read_order(reader(bytes(data)), WITH_WINDOWS, 0)


def test_a_rest_and_the_end_arrive() -> None:
    data = reader(encode_rest() + encode_end())
    assert isinstance(read_order(data, LIMITS, 7), RestOrder)
    assert isinstance(read_order(data, LIMITS, 7), EndOrder)
    with pytest.raises(EOFError):
        read_order(data, LIMITS, 7)


def test_an_order_on_states_arrives_as_it_was_given(request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.config.getoption("--seed"))
    for _ in range(300):
        change = random_change(rng)
        told = read_order(reader(encode_change(change)), WITH_STATES, 5)
        assert told == ChangeOrder(change=change)


def test_a_plan_of_eight_decodes_is_small() -> None:
    """Of contexts of 2,000 tokens in blocks of 16."""
    decodes = [
        SequenceInput(
            tokens=np.array([1], dtype=np.int32),
            start=1999,
            block_table=np.arange(125, dtype=np.int32),
            num_logits=1,
        )
    ] * 8
    assert len(encode_step(order_of(StepBatch.build(decodes, 16)))) <= 5 * 1024


def decode_batch() -> StepBatch:
    """Two decodes behind 9 and 2 tokens, in blocks of 4."""
    tables = ([3, 0, 7], [5])
    return StepBatch.build(
        [
            SequenceInput(
                tokens=np.array([11], dtype=np.int32),
                start=start,
                block_table=np.array(table, dtype=np.int32),
                num_logits=1,
            )
            for start, table in zip((9, 2), tables, strict=True)
        ],
        4,
    )


def changed(**arrays: object) -> bytes:
    return encode_step(order_of(replace(decode_batch(), **arrays)))  # type: ignore[arg-type]


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def head(
    *,
    magic: bytes = b"KWS1",
    kind: int = 1,
    follow: int = 0,
    states: int = 0,
    number: int = 0,
) -> bytes:
    data = bytearray(changed())
    struct.pack_into("<4sBBBxQ", data, 0, magic, kind, follow, states, number)
    return bytes(data)


def of_change(what: int, slot: int, other: int, tail: int, position: int) -> bytes:
    """An order on states, of any numbers."""
    data = encode_change(EndState(slot=0, position=None, tail_block=None))
    return data[:HEAD_BYTES] + struct.pack("<4iq", what, slot, other, tail, position)


def sizes(place: int, value: int) -> bytes:
    data = bytearray(changed())
    struct.pack_into("<i", data, 16 + 4 * place, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (head(magic=b"KWF1"), "starts with"),
        (head(kind=0), "kind 0"),
        (head(kind=9), "kind 9"),
        (head(kind=2), "without a step has sizes"),
        (head(follow=2), "kind 1, 2, 0"),
        (head(states=2), "kind 1, 0, 2"),
        (head(kind=4), "without a step has sizes"),
        (head(number=1), "step 1 where step 0 comes next"),
        (sizes(0, 0), "a step of 0 tokens"),
        (sizes(0, -1), "a step of -1 tokens"),
        (sizes(0, 1 << 30), "a step of 1073741824 tokens"),
        (sizes(1, 3), "a step of 2 tokens of 3 sequences"),
        (sizes(1, -2), "-2 sequences"),
        (sizes(2, 0), "tables of 0 blocks"),
        (sizes(2, 26), "tables of 26 blocks, 25 at most"),
        (sizes(3, 3), "3 rows with logits"),
        (sizes(3, -1), "-1 rows with logits"),
        (sizes(4, -1), "tables of -1 window blocks, 0 at most"),
        (sizes(5, -1), "a recording of"),
        (sizes(10, 2), "a recording of"),
        (changed(token_ids=ints(11, 272)), "not in the vocabulary"),
        (changed(token_ids=ints(-1, 11)), "not in the vocabulary"),
        (changed(query_starts=ints(0, 0, 2)), "end to end"),
        (changed(query_starts=ints(1, 1, 2)), "end to end"),
        (changed(query_starts=ints(0, 2, 1)), "end to end"),
        (changed(query_starts=ints(0, 1, 1)), "end to end"),
        (changed(context_lengths=ints(10, 0)), "its tokens do not fit"),
        (changed(context_lengths=ints(10, 101)), "its tokens do not fit"),
        (changed(context_lengths=ints(13, 3)), "longer than its block table"),
        (changed(context_lengths=ints(10, 5)), "not in the pool"),
        (changed(block_tables=np.array([[3, 40, 7], [5, -1, -1]])), "not in the pool"),
        (changed(block_tables=np.array([[3, -1, 7], [5, -1, -1]])), "not in the pool"),
        (changed(block_tables=np.array([[3, 0, 7], [5, -2, -1]])), "padded"),
        (changed(state_slots=ints(0, 9)), "a slot for states that is not there"),
        (changed(state_slots=ints(-3, 1)), "a slot for states that is not there"),
        (changed(state_slots=ints(4, 4)), "two sequences on one slot"),
        (of_change(0, 0, 1, -1, 0), "a change of states 0"),
        (of_change(5, 0, 1, -1, 0), "a change of states 5"),
        (of_change(4, 0, 0, -1, 4), "slots 0, 0 of 9, 0 below"),
        (of_change(1, 9, 1, -1, 0), "slots 9, 1 of 9"),
        (of_change(1, -1, 1, -1, 0), "slots -1, 1 of 9"),
        (of_change(1, 0, 9, -1, 0), "slots 0, 9 of 9"),
        (of_change(2, 0, -2, -1, 0), "slots 0, -2 of 9"),
        (of_change(1, 0, 1, 40, 0), "tail 40 of 40 blocks"),
        (of_change(3, 0, -1, -2, 0), "tail -2 of 40 blocks"),
        (of_change(3, 0, -1, -1, 101), "a state at 101 of 100 tokens"),
        (of_change(2, 0, 1, -1, -2), "a state at -2 of 100 tokens"),
        (of_change(1, 0, -1, -1, 4), "a change of states 1: 0, -1, -1, 4"),
        (of_change(1, 0, -1, 3, 0), "a change of states 1: 0, -1, 3, 0"),
        (of_change(1, 0, 1, 3, -1), "a change of states 1: 0, 1, 3, -1"),
        (of_change(2, 0, 0, -1, 4), "a change of states 2: 0, 0, -1, 4"),
        (of_change(2, 0, -1, -1, 4), "a change of states 2: 0, -1, -1, 4"),
        (of_change(2, 0, 1, -1, -1), "a change of states 2: 0, 1, -1, -1"),
        (of_change(3, 0, 1, -1, 4), "a change of states 3: 0, 1, -1, 4"),
        (changed(logit_rows=ints(0, 2)), "a row that is not there"),
        (changed(logit_rows=ints(-1, 1)), "a row that is not there"),
        (changed(logit_rows=ints(1, 1)), "out of order"),
    ],
)
def test_what_no_step_can_be_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        read_order(reader(data), WITH_STATES, 0)


BELOW = replace(
    WITH_STATES, below=RoomBelow(host_blocks=5, host_states=3, disk_blocks=6, disk_states=2)
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (of_change(4, 9, 0, -1, 4), "slots 9, 0 of 9, 3 below"),
        (of_change(4, 0, 3, -1, 4), "slots 0, 3 of 9, 3 below"),
        (of_change(4, 0, -1, -1, 4), "slots 0, -1 of 9, 3 below"),
        (of_change(4, 0, 2, 7, 4), "at 4, tail 7"),
        (of_change(4, 0, 2, -1, -1), "at -1, tail -1"),
        (of_change(4, 0, 2, -1, 101), "at 101, tail -1"),
        (encode_below(RoomBelow(host_blocks=5)), "once more"),
    ],
)
def test_what_no_order_on_memory_below_can_be_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        read_order(reader(data), BELOW, 0)


def test_orders_on_memory_below_arrive() -> None:
    change = SaveBelow(slot=8, target=2, position=16)
    assert read_order(reader(encode_change(change)), BELOW, 5) == ChangeOrder(change=change)
    room = RoomBelow(host_blocks=7)
    assert read_order(reader(encode_below(room)), LIMITS, 5) == BelowOrder(room=room)


def move(source: Tier, target: Tier, *, of_states: bool = False) -> bytes:
    one = ints(0).astype(np.int32)
    order = BlockMove(
        number=0,
        source=source,
        target=target,
        source_blocks=one,
        target_blocks=one,
        content=None,
    )
    return encode_move_order(MoveOrder(move=order, of_states=of_states))


@pytest.mark.parametrize("limits", [LIMITS, WITH_STATES])
def test_nothing_moves_before_there_is_memory_below(limits: ChannelLimits) -> None:
    for of_states in (False, True):
        data = move(Tier.DEVICE, Tier.HOST, of_states=of_states)
        with pytest.raises(FrameError, match="a move of 1"):
            read_order(reader(data), limits, 0)
        order = read_order(reader(data), BELOW, 0)
        assert isinstance(order, MoveOrder)
        assert order.of_states == of_states


@pytest.mark.parametrize(
    "data",
    [
        changed(state_slots=ints(0, -1)),
        encode_change(BeginState(slot=0, source=None, position=0, tail_block=None)),
        encode_change(SaveState(slot=0, target=1, position=2, tail_block=None)),
    ],
)
def test_a_model_without_states_is_ordered_none(data: bytes) -> None:
    with pytest.raises(FrameError, match=r"slot.* 0|not there"):
        read_order(reader(data), LIMITS, 0)


def test_messages_spoilt_at_random_are_refused_or_stay_within_the_pool() -> None:
    """``KEEPWARM_HOSTILE_STEPS``: so many instead of 3,000."""
    rng, refused = random.Random(HOSTILE_SEED), 0
    for _ in range(HOSTILE_STEPS):
        batch, limits = random_batch(rng), LIMITS
        kind = rng.random()
        if kind < 0.4:
            batch, limits = with_states(rng, batch), WITH_STATES
        elif kind < 0.5:
            batch, limits = with_adapters(rng, batch), WITH_ADAPTERS
        elif kind < 0.7:
            batch, limits = random_batch(rng, windows=True), WITH_WINDOWS
        change = rng.random() < 0.25
        sent = encode_change(random_change(rng)) if change else encode_step(order_of(batch))
        data = bytearray(sent)
        spoil(rng, data)
        try:
            order = read_order(reader(bytes(data)), limits, 0)
        except (FrameError, EOFError):
            refused += 1
            continue
        if isinstance(order, StepOrder):
            _check_harmless(order.batch)
            _check_slots(order.batch, limits.state_slots)
            _check_window(order.batch, limits.window_blocks)
            adapters = order.batch.adapters
            if adapters is not None:
                assert -1 <= adapters.min() <= adapters.max() < limits.adapters
        elif isinstance(order, ChangeOrder):
            _check_change(order.change, limits.state_slots)
    assert refused > HOSTILE_STEPS // 3, f"seed {HOSTILE_SEED}"


def _check_harmless(batch: StepBatch) -> None:
    """What is written lies in the pool; what is looked up is there."""
    assert 0 <= batch.slots.min() <= batch.slots.max() < LIMITS.num_blocks * LIMITS.block_size
    assert 0 <= batch.positions.min() <= batch.positions.max() < LIMITS.max_context_tokens
    assert 0 <= batch.token_ids.min() <= batch.token_ids.max() < LIMITS.vocab_size
    spans = batch.spans()
    for span in spans:
        assert all(low >= 0 and low + size <= LIMITS.num_blocks for low, size in span.runs)


def _check_slots(batch: StepBatch, count: int) -> None:
    """States are there, each of one sequence alone."""
    running = [slot for slot in batch.state_slots.tolist() if slot >= 0]
    assert max(running, default=-1) < count
    assert len(set(running)) == len(running)


def _check_window(batch: StepBatch, count: int) -> None:
    """Window blocks are there, and hold what the step writes."""
    near = batch.window
    assert (near is None) == (count == 0)
    if near is None:
        return
    assert 0 <= near.slots.min() <= near.slots.max() < count * LIMITS.block_size
    for span in near.spans():
        assert all(low >= 0 and low + size <= count for low, size in span.runs)


def _check_change(change: SlotOrder | SaveBelow, count: int) -> None:
    """Slots and blocks are there, and positions are within the window."""
    assert not isinstance(change, SaveBelow), "there is no memory below"
    slots = [change.slot]
    if isinstance(change, BeginState) and change.source is not None:
        slots.append(change.source)
    elif isinstance(change, SaveState):
        slots.append(change.target)
    assert all(0 <= slot < count for slot in slots)
    assert change.tail_block is None or 0 <= change.tail_block < LIMITS.num_blocks
    assert change.position is None or 0 <= change.position <= LIMITS.max_context_tokens
