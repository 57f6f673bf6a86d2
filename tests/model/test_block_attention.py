"""Attention over chosen blocks: each query and head of keys reads its own, up to the query."""

import pytest
import torch
from torch import Tensor

import kernels.cpu_attention
from kernels import block_attention as module
from kernels.attention import paged_attention
from kernels.block_attention import block_attention, block_attention_reference
from kernels.paged_layout import SequenceSpan
from tests.support.paged_contexts import Contexts, make_contexts

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}
KV_HEADS, GROUP, DIM, SIZE, COUNT = 2, 3, 16, 32, 3
SHAPES = [(97, 1), (140, 40), (301, 7)]
SCALE = 0.3


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    return str(request.param)


def given(
    dtype: torch.dtype, block_size: int
) -> tuple[Tensor, Contexts, Tensor, tuple[SequenceSpan, ...]]:
    """Queries, a pool whose other slots are no numbers, choices, sequences."""
    context = make_contexts(
        SHAPES, seed=3, dtype=dtype, block_size=block_size, kv_heads=KV_HEADS, head_dim=DIM
    )
    draw = torch.Generator().manual_seed(1)
    rows = sum(new for _, new in SHAPES)
    queries = torch.randn(rows, KV_HEADS * GROUP, DIM, generator=draw).to(dtype)
    chosen = []
    for length, new in SHAPES:
        for at in range(length - new, length):
            own = at // SIZE
            for _ in range(KV_HEADS):
                before = torch.randperm(own, generator=draw)[: COUNT - 1].sort().values
                chosen.append(torch.cat((before, torch.tensor([own]))))
    choices = torch.stack(chosen).int().view(rows, KV_HEADS, COUNT)
    return queries, context, choices, context.layout.spans()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_each_head_of_keys_reads_its_own_blocks_alone(
    dtype: torch.dtype, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, context, chosen, spans = given(dtype, block_size)
    arguments = queries, *context.blocks, chosen, spans
    expected = block_attention_reference(*arguments, size=SIZE, scale=SCALE)
    assert expected.isfinite().all()
    limit = TOLERANCE[dtype]
    found = block_attention(*arguments, size=SIZE, scale=SCALE)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)
    monkeypatch.setattr(module, "_CONTEXTS", 17)
    in_pieces = block_attention(*arguments, size=SIZE, scale=SCALE)
    assert torch.equal(in_pieces, found)


@pytest.mark.usefixtures("way")
def test_who_chooses_all_blocks_attends_as_those_do_that_see_all() -> None:
    queries, context, _, _ = given(torch.float32, 16)
    (span,) = context.layout.spans()[:1]
    all_of_it = torch.arange(4, dtype=torch.int32).expand(1, KV_HEADS, 4)
    found = block_attention(queries[:1], *context.blocks, all_of_it, [span], size=SIZE, scale=SCALE)
    whole = paged_attention(queries, *context.blocks, context.layout, scale=SCALE, window=None)
    assert torch.allclose(found, whole[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("way")
def test_a_row_has_the_same_bits_alone_and_beside_others() -> None:
    queries, context, chosen, spans = given(torch.bfloat16, 16)
    found = block_attention(queries, *context.blocks, chosen, spans, size=SIZE, scale=SCALE)
    last = spans[1]
    alone = block_attention(
        queries[40:41],
        *context.blocks,
        chosen[40:41],
        [SequenceSpan(first_row=0, num_queries=1, context_length=140, runs=last.runs)],
        size=SIZE,
        scale=SCALE,
    )
    assert torch.equal(alone[0], found[40])
