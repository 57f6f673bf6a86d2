"""Work that a server does once before it is ready, so that no turn waits for it.

A GPU compiles a kernel, loads it, and looks for the way to compute a product of a new size when it
first meets them: half a second, a few milliseconds, a few milliseconds. Steps that are recorded
meet all of theirs when they are recorded (``runtime.model.cuda_graphs``). Here is the rest: draws
with every set of filters, and chunks of prompts too long to be recorded.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from kernels.masked_sampling import Penalties, SamplingBatch, sample
from runtime.model.batch import SequenceInput

_ROWS = 2
_FEWEST_TOKENS = 512
"""The fewest tokens of a chunk; fewer are recorded."""


def draws(vocab_size: int, device: torch.device) -> Iterator[Callable[[], Tensor]]:
    """Draws of two tokens each from ``vocab_size`` logits, one for each kernel that a draw may
    need: with and without a mask, top-k, top-p and penalties."""
    logits = torch.zeros(_ROWS, vocab_size, dtype=torch.float32, device=device)
    for masked, counted, weighed in product((False, True), repeat=3):
        batch = _batch(vocab_size, masked=masked, top_k=counted * 5, top_p=1 - weighed * 0.5)
        yield lambda batch=batch: sample(logits, batch)  # type: ignore[misc]
    penalised = Penalties(
        rows=np.zeros(1, dtype=np.int64),
        tokens=np.zeros(1, dtype=np.int64),
        factors=np.ones(1),
        deductions=np.zeros(1),
    )
    batch = _batch(vocab_size, masked=False, top_k=0, top_p=1, penalties=penalised)
    yield lambda: sample(logits, batch)


def _batch(
    vocab_size: int,
    *,
    masked: bool,
    top_k: int,
    top_p: float,
    penalties: Penalties | None = None,
) -> SamplingBatch:
    words = torch.full((_ROWS, -(-vocab_size // 32)), -1, dtype=torch.int32)
    return SamplingBatch(
        temperature=np.ones(_ROWS),
        top_k=np.full(_ROWS, top_k, dtype=np.int64),
        top_p=np.full(_ROWS, top_p),
        min_p=np.zeros(_ROWS),
        seeds=np.zeros(_ROWS, dtype=np.uint64),
        positions=np.zeros(_ROWS, dtype=np.uint64),
        masks=words if masked else None,
        masked=np.full(_ROWS, masked),
        penalties=penalties,
    )


def chunks(most_tokens: int, block_size: int) -> Iterator[list[SequenceInput]]:
    """Steps of one chunk, each of twice the tokens of the last, up to ``most_tokens``; in the
    first blocks of a pool that nobody has used."""
    tokens = _FEWEST_TOKENS
    while tokens < 2 * most_tokens:
        count = min(tokens, most_tokens)
        yield [
            SequenceInput(
                tokens=np.zeros(count, dtype=np.int32),
                start=0,
                block_table=np.arange(-(-count // block_size), dtype=np.int32),
                num_logits=1,
            )
        ]
        tokens *= 2


def single_token() -> list[SequenceInput]:
    """A step of one token that begins, for models whose steps of few tokens may run as they come
    (``runtime.model.state_step``)."""
    first = np.zeros(1, dtype=np.int32)
    return [SequenceInput(tokens=first, start=0, block_table=first, num_logits=1)]
