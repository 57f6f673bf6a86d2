"""Paged attention on Triton beside its reference, over poisoned pools and tables."""

from dataclasses import replace

import torch

from kernels.attention import paged_attention_reference
from kernels.dispatch import triton_kernels
from kernels.paged_layout import PagedLayout
from kernels.quantised_kv import FP8, SCALE_BYTES, fp8_parts, quantise_fp8
from tests.support.paged_contexts import Contexts

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE) if torch.cuda.is_available() else [torch.float32, torch.float16]
"""The interpreter multiplies bfloat16 wrongly, so that dtype is for a GPU alone."""

DECODE = [(1, 1), (16, 1), (17, 1), (300, 1), (64, 1)]
VERIFY = [(70, 5), (9, 9), (33, 32), (40, 1)]
EXTEND = [(45, 45), (130, 40)]
MIXED = [(290, 1), (100, 50), (20, 4), (34, 33)]
"""(context, new tokens) of the sequences of a step."""


def on(device: torch.device, layout: PagedLayout) -> PagedLayout:
    return replace(
        layout,
        query_starts=layout.query_starts.to(device),
        context_lengths=layout.context_lengths.to(device),
        block_tables=layout.block_tables.to(device),
    )


def in_fp8(blocks: torch.Tensor) -> torch.Tensor:
    """The same keys or values in 8 bits; what was poisoned is so still."""
    kept = torch.zeros(*blocks.shape[:3], blocks.shape[3] + SCALE_BYTES).to(FP8)
    for part, new in zip(fp8_parts(kept), quantise_fp8(blocks), strict=True):
        part.copy_(new)
    return kept


def compare(
    contexts: Contexts,
    device: torch.device,
    *,
    heads: int,
    window: int | None = None,
    fp8: bool = False,
    sinks: bool = False,
    value_dim: int | None = None,
) -> None:
    """``value_dim``: rows are keys and values, of which so many columns are compared."""
    blocks = contexts.blocks if value_dim is None else (contexts.blocks[0], contexts.blocks[0])
    rows = int(contexts.layout.query_starts[-1])
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(rows, heads, blocks[0].shape[3], generator=generator)
    queries = queries.to(blocks[0].dtype)
    beside = 3 * torch.randn(heads, generator=generator) if sinks else None
    if fp8:
        blocks = (in_fp8(blocks[0]), in_fp8(blocks[1]))
    assert (contexts.layout.block_tables == -1).any()
    kernels = triton_kernels("attention", queries)
    assert kernels is not None

    output = kernels.paged_attention(
        queries.to(device),
        blocks[0].to(device),
        blocks[1].to(device),
        on(device, contexts.layout),
        scale=0.3,
        window=window,
        sinks=None if beside is None else beside.to(device),
    )

    expected = paged_attention_reference(
        queries, *blocks, contexts.layout, scale=0.3, window=window, sinks=beside
    )
    limit = TOLERANCE[queries.dtype] * (4 if fp8 else 1)
    found = output.cpu()[..., :value_dim]
    assert torch.allclose(found, expected[..., :value_dim], rtol=limit, atol=limit)
