"""Attention over chosen tokens, and which rows choose."""

import pytest
import torch
from torch import Tensor

import kernels.cpu_attention
from kernels import chosen_attention as module
from kernels.chosen_attention import chosen_attention, chosen_attention_reference, part_rows
from kernels.latent_attention import LatentHeads, latent_attention
from kernels.paged_layout import SequenceSpan
from kernels.per_head import HeadMaps
from tests.support.paged_contexts import make_contexts

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}
HEADS, RANK, ROTARY, PLAIN, VALUE, ROWS = 6, 40, 8, 12, 10, 21
SCALE = 0.3


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    return str(request.param)


def given(
    dtype: torch.dtype, top_k: int
) -> tuple[tuple[Tensor, Tensor], LatentHeads, Tensor, Tensor]:
    """Queries, heads, a pool whose other slots are no numbers, and choices."""
    draw = torch.Generator().manual_seed(top_k)
    keys = torch.randn(HEADS, PLAIN, RANK, generator=draw) * RANK**-0.5
    values = torch.randn(HEADS, RANK, VALUE, generator=draw) * RANK**-0.5
    heads = LatentHeads(keys=HeadMaps(keys.to(dtype)), values=HeadMaps(values.to(dtype)))
    queries = torch.randn(ROWS, HEADS, PLAIN + ROTARY, generator=draw).to(dtype)
    pool = torch.randn(60, 1, 16, RANK + ROTARY + 3, generator=draw).to(dtype)
    orders = [torch.randperm(400, generator=draw)[:top_k].sort().values for _ in range(ROWS)]
    slots = torch.stack(orders) + torch.arange(ROWS)[:, None] * 20
    unchosen = torch.ones(960, dtype=torch.bool)
    unchosen[slots.flatten()] = False
    pool.view(960, -1)[unchosen] = torch.nan
    pool[..., RANK + ROTARY :] = torch.nan
    return (
        (queries[..., :PLAIN], queries[..., PLAIN:]),
        heads,
        pool[..., : RANK + ROTARY],
        slots.int(),
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("top_k", [1, 64, 100])
def test_each_query_attends_to_its_own_tokens_alone(
    dtype: torch.dtype, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, limit = given(dtype, top_k), TOLERANCE[dtype]
    expected = chosen_attention_reference(*arguments, scale=SCALE)
    found = chosen_attention(*arguments, scale=SCALE)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)
    monkeypatch.setattr(module, "_NUMBERS", 4 * 128 * 48)
    in_pieces = chosen_attention(*arguments, scale=SCALE)
    assert torch.allclose(in_pieces.double(), expected.double(), rtol=limit, atol=limit)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_queries_may_see_fewer_than_others(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, limit = given(dtype, 100), TOLERANCE[dtype]
    counts = torch.arange(ROWS) * 4 + 3
    expected = chosen_attention_reference(*arguments, scale=SCALE, counts=counts)
    found = chosen_attention(*arguments, scale=SCALE, counts=counts)
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)
    monkeypatch.setattr(module, "_NUMBERS", 4 * 128 * 48)
    in_pieces = chosen_attention(*arguments, scale=SCALE, counts=counts)
    assert torch.allclose(in_pieces.double(), expected.double(), rtol=limit, atol=limit)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sinks_count_beside_the_chosen(dtype: torch.dtype) -> None:
    arguments, limit = given(dtype, 100), TOLERANCE[dtype]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sinks = torch.randn(HEADS, generator=torch.Generator().manual_seed(5)).to(wide)
    plain = chosen_attention(*arguments, scale=SCALE)
    expected = chosen_attention_reference(*arguments, scale=SCALE, sinks=sinks)
    found = chosen_attention(*arguments, scale=SCALE, sinks=sinks)
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)
    assert found.double().norm() < plain.double().norm()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_who_chooses_all_attends_as_those_do_that_see_all(dtype: torch.dtype) -> None:
    queries, heads, _, _ = given(dtype, 64)
    shape = [(64, 1)]
    context = make_contexts(shape, seed=2, dtype=dtype, kv_heads=1, head_dim=RANK + ROTARY)
    (span,) = context.layout.spans()
    slots = [slot for block, count in span.runs for slot in range(block * 16, (block + count) * 16)]
    one = queries[0][:1], queries[1][:1]
    expected = latent_attention(one, heads, context.blocks[0], context.layout, scale=SCALE)
    chosen = torch.tensor([slots], dtype=torch.int32)
    found = chosen_attention(one, heads, context.blocks[0], chosen, scale=SCALE)
    limit = TOLERANCE[dtype]
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)


SHAPES = [(5, 1), (30, 30), (45, 1), (90, 20), (41, 3)]
"""Contexts and new tokens; 40 are seen at most."""


def layout_of(shapes: list[tuple[int, int]]) -> module.PagedLayout:
    return make_contexts(shapes, seed=1, dtype=torch.float32, kv_heads=1, head_dim=4).layout


def test_rows_are_parted_by_the_tokens_before_them() -> None:
    layout = layout_of(SHAPES)
    rows = part_rows(layout, 40, 16)
    assert rows is not None
    assert rows.all_seen.tolist() == [*range(31), 52, 53]
    assert rows.choosing.tolist() == [*range(31, 52), 54]
    spans = layout.spans()
    assert rows.spans == (
        SequenceSpan(first_row=0, num_queries=1, context_length=45, runs=spans[2].runs),
        SequenceSpan(first_row=1, num_queries=20, context_length=90, runs=spans[3].runs),
        SequenceSpan(first_row=21, num_queries=1, context_length=41, runs=spans[4].runs),
    )
    assert rows.seen is not None
    assert rows.seen.query_starts.tolist() == [0, 1, 31, 33]
    assert rows.seen.context_lengths.tolist() == [5, 30, 40]
    assert torch.equal(rows.seen.block_tables, layout.block_tables[[0, 1, 4]])
    assert (rows.seen.max_query_tokens, rows.seen.max_decode_tokens) == (30, 30)


def test_a_context_that_is_seen_in_part_ends_with_the_block_of_its_last_token() -> None:
    """Its own last block is another, which no row that sees all may read as its end."""
    rows = part_rows(layout_of([(100, 100)]), 40, 16)
    assert rows is not None
    assert rows.seen is not None
    (span,) = rows.seen.spans()
    assert (span.context_length, span.num_queries) == (40, 40)
    assert sum(count for _, count in span.runs) == 3
    assert rows.choosing.tolist() == [*range(40, 100)]


def test_where_nobody_chooses_nothing_is_parted() -> None:
    assert part_rows(layout_of([(40, 40), (3, 1)]), 40, 16) is None


def test_where_all_choose_nobody_sees_all() -> None:
    rows = part_rows(layout_of([(90, 20), (60, 1)]), 40, 16)
    assert rows is not None
    assert rows.seen is None
    assert rows.choosing.tolist() == [*range(21)]
