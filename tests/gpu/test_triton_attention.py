"""Triton's paged attention against the reference: poisoned pools, tables and batches.

The interpreter multiplies bfloat16 wrongly, so that dtype is for a GPU alone.
"""

from dataclasses import replace

import pytest
import torch

from kernels.attention import paged_attention_reference
from kernels.dispatch import triton_kernels
from kernels.paged_layout import PagedLayout
from tests.support.paged_contexts import Contexts, make_contexts

GPU = torch.cuda.is_available()
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE) if GPU else [torch.float32, torch.float16]

DECODE = [(1, 1), (16, 1), (17, 1), (300, 1), (64, 1)]
VERIFY = [(70, 5), (9, 9), (33, 32), (40, 1)]
EXTEND = [(45, 45), (130, 40)]
MIXED = [(290, 1), (100, 50), (20, 4), (34, 33)]


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def on(device: torch.device, layout: PagedLayout) -> PagedLayout:
    return replace(
        layout,
        query_starts=layout.query_starts.to(device),
        context_lengths=layout.context_lengths.to(device),
        block_tables=layout.block_tables.to(device),
    )


def compare(
    contexts: Contexts, device: torch.device, *, heads: int, window: int | None = None
) -> None:
    blocks = contexts.blocks
    rows = int(contexts.layout.query_starts[-1])
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(rows, heads, blocks[0].shape[3], generator=generator)
    queries = queries.to(blocks[0].dtype)
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
    )

    expected = paged_attention_reference(
        queries, *blocks, contexts.layout, scale=0.3, window=window
    )
    limit = TOLERANCE[queries.dtype]
    assert torch.allclose(output.cpu(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes", [DECODE, VERIFY, EXTEND, MIXED], ids=["decode", "verify", "extend", "mixed"]
)
def test_every_kind_of_step_agrees_with_the_reference(
    dtype: torch.dtype, shapes: list[tuple[int, int]], device: torch.device
) -> None:
    compare(make_contexts(shapes, seed=3, dtype=dtype, head_dim=32), device, heads=8)


@pytest.mark.parametrize("heads", [2, 6, 12])
@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_any_group_and_head_size_will_do(heads: int, head_dim: int, device: torch.device) -> None:
    shapes = [(37, 3), (5, 1), (36, 35)]
    contexts = make_contexts(shapes, seed=heads, dtype=torch.float32, head_dim=head_dim)
    compare(contexts, device, heads=heads)


@pytest.mark.parametrize("window", [1, 20, 64, 1000])
def test_a_window_hides_what_lies_before_it(window: int, device: torch.device) -> None:
    contexts = make_contexts([(290, 1), (75, 6), (120, 40)], seed=4, dtype=torch.float32)
    compare(contexts, device, heads=4, window=window)


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_blocks_may_be_smaller_or_larger_than_usual(block_size: int, device: torch.device) -> None:
    shapes = [(61, 1), (70, 34), (9, 2)]
    contexts = make_contexts(shapes, seed=5, dtype=torch.float32, block_size=block_size)
    compare(contexts, device, heads=4)


def test_one_long_context_is_split_into_many(device: torch.device) -> None:
    contexts = make_contexts(
        [(1100, 2), (3, 1)], seed=6, dtype=torch.float32, kv_heads=1, run_length=1
    )
    compare(contexts, device, heads=2)


def test_a_padded_sequence_is_left_alone(device: torch.device) -> None:
    contexts = make_contexts([(300, 1), (20, 1)], seed=7, dtype=torch.float32)
    layout = contexts.layout
    padded = replace(
        layout,
        query_starts=torch.cat((layout.query_starts, layout.query_starts[-1:])),
        context_lengths=torch.cat((layout.context_lengths, torch.zeros(1, dtype=torch.int32))),
        block_tables=torch.cat((layout.block_tables, torch.full_like(layout.block_tables[:1], -1))),
    )
    compare(replace(contexts, layout=padded), device, heads=4)
