"""Steps as they go to other ranks, at random, and spoilt ones."""

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from radix_cache.snapshots import BeginState, EndState, SaveState, SlotOrder
from runtime.model.batch import NO_ADAPTER, NO_STATE, TRIAL_STATE, SequenceInput, StepBatch
from runtime.model.step_buckets import Bucket
from runtime.process.step_channel import HEAD_BYTES, ChannelLimits, StepOrder

LIMITS = ChannelLimits(vocab_size=272, num_blocks=40, block_size=4, max_context_tokens=100)
WITH_STATES = ChannelLimits(
    vocab_size=272, num_blocks=40, block_size=4, max_context_tokens=100, state_slots=9
)


WITH_ADAPTERS = ChannelLimits(
    vocab_size=272, num_blocks=40, block_size=4, max_context_tokens=100, adapters=3
)


WITH_WINDOWS = ChannelLimits(
    vocab_size=272, num_blocks=40, block_size=4, max_context_tokens=100, window_blocks=30
)


def reader(data: bytes) -> Callable[[int], bytes]:
    at = 0

    def receive(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise EOFError
        at += size
        return data[at - size : at]

    return receive


def random_batch(rng: random.Random, *, windows: bool = False) -> StepBatch:
    """A step of few sequences; ``windows``: with window blocks."""
    inputs = []
    for _ in range(rng.randint(1, 6)):
        count = rng.choice([1, 1, 1, 2, 5, rng.randint(1, 60)])
        start = rng.randint(0, LIMITS.max_context_tokens - count)
        blocks = -(-(start + count) // LIMITS.block_size)
        logits = rng.randint(0, count)
        first = rng.randint(0, start // LIMITS.block_size)
        near = np.array(rng.sample(range(30), blocks - first), dtype=np.int32)
        inputs.append(
            SequenceInput(
                tokens=np.array([rng.randrange(272) for _ in range(count)], dtype=np.int32),
                start=start,
                block_table=np.array(rng.sample(range(40), blocks), dtype=np.int32),
                num_logits=logits,
                window=(first, near) if windows else None,
                certain=tuple(rng.sample(range(logits), rng.randint(0, logits // 2))),
            )
        )
    return StepBatch.build(inputs, LIMITS.block_size)


def with_states(rng: random.Random, batch: StepBatch) -> StepBatch:
    """The same, each sequence on a slot of its own, or on none."""
    slots = [*rng.sample(range(9), batch.num_sequences)]
    for row in range(len(slots)):
        if rng.random() < 0.2:
            slots[row] = rng.choice([NO_STATE, TRIAL_STATE])
    return replace(batch, state_slots=np.array(slots, dtype=np.int64))


def with_adapters(rng: random.Random, batch: StepBatch) -> StepBatch:
    """The same, each sequence with one of three adapters, or with none."""
    numbers = [rng.randrange(NO_ADAPTER, 3) for _ in range(batch.num_sequences)]
    return replace(batch, adapters=np.array(numbers, dtype=np.int64))


def random_change(rng: random.Random) -> SlotOrder:
    """An order on slots for states."""
    slot, other = rng.sample(range(9), 2)
    position, tail = rng.randint(0, 100), rng.choice([None, rng.randrange(40)])
    kind = rng.randrange(4)
    if kind == 0:
        return BeginState(slot=slot, source=None, position=0, tail_block=None)
    if kind == 1:
        source = rng.choice([slot, other])
        return BeginState(slot=slot, source=source, position=position, tail_block=tail)
    if kind == 2:
        return SaveState(slot=slot, target=other, position=position, tail_block=tail)
    return EndState(slot=slot, position=rng.choice([None, position]), tail_block=tail)


def order_of(batch: StepBatch, number: int = 0, bucket: Bucket | None = None) -> StepOrder:
    return StepOrder(number=number, batch=batch, bucket=bucket, tokens_follow=False)


def spoil(rng: random.Random, data: bytearray) -> None:
    """Cut a message, or change some of its bytes or numbers."""
    kind = rng.randrange(4)
    if kind == 0:  # cut
        del data[rng.randrange(len(data)) :]
    elif kind == 1:  # some bytes
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:  # a count
        number = rng.choice([-1, 0, 1, 2, 1 << 20, -(1 << 31), (1 << 31) - 1])
        struct.pack_into("<i", data, rng.randrange(16, HEAD_BYTES - 3, 4), number)
    else:  # a number of an array
        number = rng.choice([-1, -2, 0, 39, 40, 41, 271, 272, 1 << 30, -(1 << 31)])
        struct.pack_into("<i", data, rng.randrange(HEAD_BYTES, len(data) - 3, 4), number)
