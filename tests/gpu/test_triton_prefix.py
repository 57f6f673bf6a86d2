"""Decodes of sequences with a common prefix: read once, and the same as read by each.

The kernels without such prefixes are in ``test_triton_decode``.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import kernels.paged_layout
from kernels.attention import paged_attention_reference
from kernels.dispatch import triton_kernels
from kernels.paged_layout import PagedLayout, find_shared_prefixes
from runtime.model.batch import SequenceInput, StepBatch
from tests.support.attention_on_triton import in_fp8

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 2, 16, 16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _triton_and_short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    monkeypatch.setattr(kernels.paged_layout, "_WORTH_TOKENS", 64)


def step(
    groups: list[tuple[int, list[tuple[int, int]]]], num_blocks: int
) -> tuple[PagedLayout, list[int]]:
    """(shared blocks, [(context, new tokens) of each member]) of each group -> the step with
    its shared prefixes, and the blocks it reads."""
    order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    inputs, at = [], 0
    for shared, members in groups:
        prefix, at = order[at : at + shared], at + shared
        for length, new in members:
            own = -(-length // BLOCK_SIZE) - shared
            table = np.concatenate((prefix, order[at : at + own]))
            at += own
            tokens = np.zeros(new, dtype=np.int32)
            inputs.append(
                SequenceInput(tokens=tokens, start=length - new, block_table=table, num_logits=1)
            )
    assert at < num_blocks
    batch = StepBatch.build(inputs, BLOCK_SIZE)
    shared = find_shared_prefixes(
        batch.block_tables,
        [entry.start for entry in inputs],
        [len(entry.tokens) for entry in inputs],
        BLOCK_SIZE,
    )
    layout = batch.layout(torch.device("cpu"))
    return replace(layout, shared=shared), order[:at].tolist()


GROUPS = {
    "one group": [(9, [(150, 1), (160, 1), (200, 1)])],
    "two groups and a loner": [
        (5, [(90, 1), (300, 1)]),
        (0, [(170, 1)]),
        (8, [(129, 1), (130, 2), (129, 1)]),
    ],
    "drafts and a chunk": [(6, [(120, 5), (101, 3), (140, 40)]), (0, [(20, 1)])],
    "the own part is one token": [(4, [(65, 1), (65, 1)])],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize(("heads", "fp8"), [(2, False), (8, False), (8, True)])
def test_a_prefix_read_once_gives_what_reading_it_for_each_gives(
    groups: list[tuple[int, list[tuple[int, int]]]],
    heads: int,
    fp8: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    num_blocks = 80
    layout, used = step(groups, num_blocks)
    assert layout.shared is not None
    generator = torch.Generator().manual_seed(0)
    pool = torch.full((2, num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.nan)
    pool[:, used] = torch.randn(2, len(used), KV_HEADS, BLOCK_SIZE, HEAD_DIM, generator=generator)
    pool = pool.to(dtype)
    if fp8:
        pool = torch.stack([in_fp8(part) for part in pool])
    rows = int(layout.query_starts[-1])
    queries = torch.randn(rows, heads, HEAD_DIM, generator=generator).to(dtype)
    implementation = triton_kernels("attention", queries)
    assert implementation is not None
    moved = replace(
        layout,
        query_starts=layout.query_starts.to(device),
        context_lengths=layout.context_lengths.to(device),
        block_tables=layout.block_tables.to(device),
        shared=layout.shared.to(device),
    )

    output = implementation.paged_attention(
        queries.to(device), *pool.to(device), moved, scale=0.3, window=None
    )

    expected = paged_attention_reference(queries, *pool, layout, scale=0.3, window=None)
    limit = TOLERANCE[dtype]
    assert torch.allclose(output.cpu(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_prefix_of_latents_is_read_once(dtype: torch.dtype, device: torch.device) -> None:
    """Rows are keys, and their first 256 numbers values."""
    layout, used = step(GROUPS["drafts and a chunk"], 40)
    assert layout.shared is not None
    pool = torch.full((40, 1, BLOCK_SIZE, 256 + 32), torch.nan)
    draw = torch.Generator().manual_seed(2)
    pool[used] = torch.randn(len(used), 1, BLOCK_SIZE, 256 + 32, generator=draw) / 4
    pool = pool.to(dtype)
    rows = int(layout.query_starts[-1])
    queries = torch.randn(rows, 5, 256 + 32, generator=draw).to(dtype)
    implementation = triton_kernels("attention", queries)
    assert implementation is not None
    moved = replace(
        layout,
        query_starts=layout.query_starts.to(device),
        context_lengths=layout.context_lengths.to(device),
        block_tables=layout.block_tables.to(device),
        shared=layout.shared.to(device),
    )
    output = implementation.paged_attention(
        queries.to(device), pool.to(device), pool.to(device), moved, scale=0.3, window=None
    ).cpu()
    expected = paged_attention_reference(queries, pool, pool, layout, scale=0.3, window=None)
    limit = TOLERANCE[dtype]
    assert torch.allclose(output[..., :256], expected[..., :256], rtol=limit, atol=limit)


def test_a_member_takes_the_prefix_from_the_group_and_not_from_its_own_table(
    device: torch.device,
) -> None:
    layout, _ = step([(9, [(150, 1), (160, 1)])], 40)
    assert layout.shared is not None
    tables = layout.block_tables.clone()
    tables[1, :8] = -1  # the 128 tokens of the prefix, as the second member has them
    pool = torch.randn(2, 40, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    queries = torch.randn(2, 4, HEAD_DIM)
    implementation = triton_kernels("attention", queries)
    assert implementation is not None
    moved = replace(
        layout,
        query_starts=layout.query_starts.to(device),
        context_lengths=layout.context_lengths.to(device),
        block_tables=tables.to(device),
        shared=layout.shared.to(device),
    )
    output = implementation.paged_attention(
        queries.to(device), *pool.to(device), moved, scale=0.3, window=None
    )
    expected = paged_attention_reference(queries, *pool, layout, scale=0.3, window=None)
    assert torch.allclose(output.cpu(), expected, atol=2e-6)
