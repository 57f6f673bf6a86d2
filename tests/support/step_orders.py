"""Steps as they go to other ranks, at random, and spoilt ones."""

import random
import struct
from collections.abc import Callable

import numpy as np

from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.step_buckets import Bucket
from runtime.process.step_channel import HEAD_BYTES, ChannelLimits, StepOrder

LIMITS = ChannelLimits(vocab_size=272, num_blocks=40, block_size=4, max_context_tokens=100)


def reader(data: bytes) -> Callable[[int], bytes]:
    at = 0

    def receive(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise EOFError
        at += size
        return data[at - size : at]

    return receive


def random_batch(rng: random.Random) -> StepBatch:
    inputs = []
    for _ in range(rng.randint(1, 6)):
        count = rng.choice([1, 1, 1, 2, 5, rng.randint(1, 60)])
        start = rng.randint(0, LIMITS.max_context_tokens - count)
        blocks = -(-(start + count) // LIMITS.block_size)
        logits = rng.randint(0, count)
        inputs.append(
            SequenceInput(
                tokens=np.array([rng.randrange(272) for _ in range(count)], dtype=np.int32),
                start=start,
                block_table=np.array(rng.sample(range(40), blocks), dtype=np.int32),
                num_logits=logits,
                certain=tuple(rng.sample(range(logits), rng.randint(0, logits // 2))),
            )
        )
    return StepBatch.build(inputs, LIMITS.block_size)


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
