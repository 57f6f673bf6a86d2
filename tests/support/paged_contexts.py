"""Contexts scattered over a poisoned pool, for tests of paged attention."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.paged_layout import PagedLayout
from runtime.model.batch import SequenceInput, StepBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    shapes: list[tuple[int, int]]
    """(context length, new tokens) of each sequence."""
    keys: list[Tensor]
    """Per sequence [context length, kv_heads, head_dim]."""
    values: list[Tensor]
    blocks: tuple[Tensor, Tensor]
    """The pool; every slot that belongs to no context is NaN."""
    layout: PagedLayout


def make_contexts(
    shapes: list[tuple[int, int]],
    *,
    seed: int,
    dtype: torch.dtype,
    block_size: int = 16,
    kv_heads: int = 2,
    head_dim: int = 8,
    run_length: int = 3,
) -> Contexts:
    """Sequences whose blocks come in runs of about ``run_length``, in random order."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length, _ in shapes]
    total = sum(counts) + 5
    starts = rng.permutation(range(0, total, run_length))
    order = [b for start in starts for b in range(start, min(start + run_length, total))]
    k_blocks = torch.full((total, kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
    v_blocks = k_blocks.clone()
    keys, values, inputs = [], [], []
    for (length, new), count in zip(shapes, counts, strict=True):
        table, order = order[:count], order[count:]
        own = torch.randn(2, length, kv_heads, head_dim, generator=generator).to(dtype)
        keys.append(own[0])
        values.append(own[1])
        at = torch.arange(length)
        block, offset = torch.tensor(table)[at // block_size], at % block_size
        k_blocks[block, :, offset], v_blocks[block, :, offset] = own[0], own[1]
        inputs.append(
            SequenceInput(
                tokens=np.zeros(new, dtype=np.int32),
                start=length - new,
                block_table=np.array(table, dtype=np.int32),
                num_logits=0,
            )
        )
    return Contexts(
        shapes=shapes,
        keys=keys,
        values=values,
        blocks=(k_blocks, v_blocks),
        layout=StepBatch.build(inputs, block_size).layout(torch.device("cpu")),
    )
