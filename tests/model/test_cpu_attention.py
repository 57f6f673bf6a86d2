"""Attention on a CPU, compiled and in torch, against the reference, over a poisoned pool."""

import pytest
import torch

import kernels.cpu_attention
from kernels.attention import paged_attention_reference
from kernels.cpu_attention import attend, visible_softmax
from kernels.native_library import native_library
from kernels.paged_layout import PagedLayout, SequenceSpan
from kernels.quantised_kv import quantise_rows
from tests.support.paged_contexts import make_contexts

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
SHAPES = [(1, 1), (40, 1), (16, 1), (700, 1), (300, 5), (31, 31), (333, 16), (400, 300), (17, 2)]


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 50, 400])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size", "run_length"),
    [
        (6, 2, 64, 16, 100),
        (6, 2, 64, 16, 1),
        (7, 1, 32, 8, 9),
        (4, 4, 128, 32, 3),
        (12, 2, 16, 4, 40),
        (9, 3, 96, 64, 2),
    ],
)
@pytest.mark.samples(14)
def test_agrees_with_the_reference(
    dtype: torch.dtype,
    window: int | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    run_length: int,
) -> None:
    contexts = make_contexts(
        SHAPES,
        seed=1,
        dtype=dtype,
        block_size=block_size,
        kv_heads=kv_heads,
        head_dim=head_dim,
        run_length=run_length,
    )
    rows = sum(new for _, new in SHAPES)
    queries = torch.randn(rows, heads + 3, head_dim).to(dtype)[:, :heads]
    arguments = {"scale": head_dim**-0.5, "window": window}

    output = attend(queries, *contexts.blocks, contexts.layout, **arguments)
    expected = paged_attention_reference(queries, *contexts.blocks, contexts.layout, **arguments)

    assert torch.allclose(output, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.samples(16)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size", "run_length"),
    [(6, 2, 64, 16, 100), (6, 2, 64, 16, 1), (7, 1, 32, 8, 9), (4, 4, 20, 32, 3)],
)
def test_agrees_with_the_reference_over_rows_in_8_bits(
    dtype: torch.dtype,
    window: int | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    run_length: int,
) -> None:
    contexts = make_contexts(
        SHAPES,
        seed=2,
        dtype=dtype,
        block_size=block_size,
        kv_heads=kv_heads,
        head_dim=head_dim,
        run_length=run_length,
    )
    blocks = [quantise_rows(part) for part in contexts.blocks]
    queries = torch.randn(sum(new for _, new in SHAPES), heads, head_dim).to(dtype)
    arguments = {"scale": head_dim**-0.5, "window": window}

    output = attend(queries, *blocks, contexts.layout, **arguments)
    expected = paged_attention_reference(queries, *blocks, contexts.layout, **arguments)
    exact = paged_attention_reference(queries, *contexts.blocks, contexts.layout, **arguments)

    assert torch.allclose(output, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert (expected - exact).norm() < 0.02 * exact.norm()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_compiled_decode_does_not_notice_its_neighbours(dtype: torch.dtype) -> None:
    """Bit for bit, in any company, though work is split over threads."""
    shapes = [(700, 1), (33, 4), (1, 1), (520, 1)]
    contexts = make_contexts(shapes, seed=3, dtype=dtype, head_dim=64)
    queries = torch.randn(7, 6, 64).to(dtype)
    together = attend(queries, *contexts.blocks, contexts.layout, scale=0.1, window=None)
    row = 0
    for index, (_, new) in enumerate(shapes):
        alone = PagedLayout(
            query_starts=torch.tensor([0, new], dtype=torch.int32),
            context_lengths=contexts.layout.context_lengths[index : index + 1].clone(),
            block_tables=contexts.layout.block_tables[index : index + 1].clone(),
            max_query_tokens=new,
            max_decode_tokens=new if new <= 32 else 0,
            spans=lambda index=index: contexts.layout.spans()[index : index + 1],
        )
        own = attend(queries[row : row + new], *contexts.blocks, alone, scale=0.1, window=None)
        assert torch.equal(own, together[row : row + new])
        row += new


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("new", [1, 2])
def test_what_shares_its_first_blocks_with_others_does_not_notice(group: int, new: int) -> None:
    """Bit for bit, though blocks that are shared are read once for the rows of all. The scale is
    large enough to tell one order of sums from another behind the rounding to bf16."""
    lengths, dtype = [700, 690, 1000, 641], torch.bfloat16
    contexts = make_contexts(
        [(length, new) for length in lengths], seed=5, dtype=dtype, kv_heads=4, head_dim=128
    )
    tables = contexts.layout.block_tables
    tables[1:3, :40] = tables[0, :40]
    generator = torch.Generator().manual_seed(5)
    shape = (new * len(lengths), 4 * group, 128)
    queries = torch.randn(shape, generator=generator).to(dtype)
    together = attend(queries, *contexts.blocks, contexts.layout, scale=0.5, window=None)
    for index in range(len(lengths)):
        alone = PagedLayout(
            query_starts=torch.tensor([0, new], dtype=torch.int32),
            context_lengths=contexts.layout.context_lengths[index : index + 1].clone(),
            block_tables=tables[index : index + 1].clone(),
            max_query_tokens=new,
            max_decode_tokens=new,
            spans=lambda index=index: contexts.layout.spans()[index : index + 1],
        )
        rows = slice(index * new, (index + 1) * new)
        own = attend(queries[rows], *contexts.blocks, alone, scale=0.5, window=None)
        assert torch.equal(own, together[rows])


@pytest.mark.samples(21)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [None, 19])
@pytest.mark.parametrize("head_dim", [64, 20])
@pytest.mark.parametrize("height", [-300.0, 0.0, 5.0, 300.0])
def test_sinks_take_their_share_and_give_nothing(
    dtype: torch.dtype, window: int | None, head_dim: int, height: float
) -> None:
    """Of few rows and of many, over short contexts and long ones; far above all scores a sink
    leaves nothing to the values, far below it takes nothing."""
    shapes = [(1, 1), (700, 1), (40, 5), (300, 150), (33, 33)]
    contexts = make_contexts(shapes, seed=8, dtype=dtype, head_dim=head_dim)
    generator = torch.Generator().manual_seed(8)
    queries = torch.randn(sum(new for _, new in shapes), 6, head_dim, generator=generator)
    queries, sinks = queries.to(dtype), height + torch.randn(6, generator=generator)
    arguments = {"scale": head_dim**-0.5, "window": window}
    found = attend(queries, *contexts.blocks, contexts.layout, **arguments, sinks=sinks)
    expected = paged_attention_reference(
        queries, *contexts.blocks, contexts.layout, **arguments, sinks=sinks
    )
    assert torch.allclose(found, expected, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])
    plain = attend(queries, *contexts.blocks, contexts.layout, **arguments)
    if height == 300.0:
        assert found.abs().max() < 1e-30
    near = torch.allclose(found, plain, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert near == (height == -300.0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_window_longer_than_a_block_begins_within_one(dtype: torch.dtype) -> None:
    """Of 16 rows some see what lies at the beginning of a block, and others must not."""
    contexts = make_contexts([(1000, 300)], seed=6, dtype=dtype, head_dim=64)
    k_blocks, v_blocks = contexts.blocks
    v_blocks[int(contexts.layout.block_tables[0, 528 // 16]), :, 528 % 16] = 1000.0
    queries = torch.randn(300, 6, 64, generator=torch.Generator().manual_seed(6)).to(dtype)
    for window in (298, 299, 300):
        arguments = {"scale": 0.1, "window": window}
        output = attend(queries, k_blocks, v_blocks, contexts.layout, **arguments)
        expected = paged_attention_reference(
            queries, k_blocks, v_blocks, contexts.layout, **arguments
        )
        assert torch.allclose(output, expected, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nan_in_one_prompt_stays_there(dtype: torch.dtype) -> None:
    """Also where the next one has rows that see nothing of a stretch of its context."""
    contexts = make_contexts([(300, 150)] * 4 + [(1100, 150)], seed=7, dtype=dtype, head_dim=64)
    k_blocks, v_blocks = contexts.blocks
    for table in contexts.layout.block_tables[:4]:
        v_blocks[table[: 300 // 16].long()] = torch.nan
    queries = torch.randn(750, 6, 64, generator=torch.Generator().manual_seed(7)).to(dtype)
    output = attend(queries, k_blocks, v_blocks, contexts.layout, scale=0.2, window=None)
    expected = paged_attention_reference(
        queries, k_blocks, v_blocks, contexts.layout, scale=0.2, window=None
    )
    assert output[:600].isnan().all()
    assert torch.allclose(
        output[600:], expected[600:], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nan_in_one_context_stays_there(dtype: torch.dtype) -> None:
    contexts = make_contexts([(50, 1), (60, 1)], seed=0, dtype=dtype, head_dim=32)
    k_blocks, v_blocks = contexts.blocks
    k_blocks[int(contexts.layout.block_tables[0, 1]), :, 3] = torch.nan
    queries = torch.randn(2, 4, 32).to(dtype)
    output = attend(queries, k_blocks, v_blocks, contexts.layout, scale=0.2, window=None)
    assert output[0].isnan().all()
    assert output[1].isfinite().all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("queries", "columns", "first_end", "window"),
    [
        (1, 1, 1, None),
        (1, 33, 33, 7),
        (5, 5, 1, None),
        (5, 7, 3, 2),
        (17, 300, 284, None),
        (64, 257, 100, 31),
        (256, 2048, 1793, None),
        (256, 511, 256, 1),
        (3, 50, 70, None),
    ],
)
def test_weights_are_the_softmax_of_what_a_query_sees_and_zero_elsewhere(
    dtype: torch.dtype, queries: int, columns: int, first_end: int, window: int | None
) -> None:
    scores = (10 * torch.randn(2, 3, queries, columns)).to(dtype)
    scores[0, 1, queries // 2, 0] = -torch.inf if min(first_end, columns) > 1 else 0
    end = torch.arange(first_end, first_end + queries)[:, None]
    column = torch.arange(columns)
    hidden = (column >= end) | (column < end - (window or columns + first_end + queries))
    expected = scores.double().masked_fill(hidden, -torch.inf).softmax(-1)

    weights = visible_softmax(scores, first_end=first_end, window=window)

    assert (weights.double() - expected).abs().max() < TOLERANCE[dtype] / 4
    assert not weights[hidden.expand_as(weights)].any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 9, 31])
def test_a_poisoned_score_spoils_the_rows_that_see_it(
    dtype: torch.dtype, poison: float, at: int
) -> None:
    scores = torch.randn(2, 8, 40).to(dtype)
    scores[0, :, at] = poison
    weights = visible_softmax(scores, first_end=25, window=20)
    end = torch.arange(25, 33)
    sees = (at < end) & (at >= end - 20)
    visible = torch.arange(40) < end[:, None]
    visible &= torch.arange(40) >= end[:, None] - 20
    assert all(weights[0, row][visible[row]].isnan().all() for row in range(8) if sees[row])
    assert weights[0, ~sees].isfinite().all()
    assert weights[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("first_end", [-3, -1, 0])
def test_a_row_that_sees_nothing_weighs_nothing_and_stays_in_its_memory(
    dtype: torch.dtype, first_end: int
) -> None:
    library = native_library(dtype)
    if library is None:
        pytest.skip("no C++ compiler here")
    memory = torch.ones(6, 4, 10, dtype=dtype)
    library.visible_softmax_(memory[2:4], num_queries=4, first_end=first_end, window=None)
    assert (memory[:2] == 1).all()
    assert (memory[4:] == 1).all()
    assert not memory[2:4, : 1 - first_end].any()


def test_a_context_is_taken_in_pieces_as_the_worked_example_has_it() -> None:
    runs = ((20, 2), (30, 9), (50, 3))
    span = SequenceSpan(first_row=0, num_queries=1, context_length=54, runs=runs)
    found: list[tuple[list[int], int | None]] = []
    for piece in kernels.cpu_attention.pieces_of(span, 4, 4):
        blocks = torch.arange(64)[piece.blocks].tolist()
        found.append((blocks, piece.tokens))
    assert found == [([21], None), ([*range(30, 39)], None), ([50, 51], None), ([52], 2)]


@pytest.mark.usefixtures("way")
def test_scores_of_many_heads_and_long_contexts_come_in_smaller_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts = make_contexts([(400, 300)], seed=4, dtype=torch.float64, kv_heads=1)
    queries = torch.randn(300, 4, 8, dtype=torch.float64)
    whole = attend(queries, *contexts.blocks, contexts.layout, scale=0.4, window=None)
    monkeypatch.setattr(kernels.cpu_attention, "_SCORES", 7 * 4 * 400)
    found = attend(queries, *contexts.blocks, contexts.layout, scale=0.4, window=None)
    assert torch.allclose(found, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("most", [1, 5, 31, 40])
def test_longer_sequences_than_are_asked_for_are_left_alone(most: int) -> None:
    contexts = make_contexts(SHAPES, seed=5, dtype=torch.float32)
    queries = torch.randn(sum(new for _, new in SHAPES), 6, 8)
    arguments = {"scale": 0.4, "window": None}
    found = attend(queries, *contexts.blocks, contexts.layout, **arguments, most_queries=most)
    expected = attend(queries, *contexts.blocks, contexts.layout, **arguments)
    at = 0
    for _, new in SHAPES:
        if new <= most:
            assert torch.equal(found[at : at + new], expected[at : at + new])
        at += new


def test_queries_that_no_cache_holds_are_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One head of keys for very many of queries: as if there were no compiled way."""
    contexts = make_contexts([(90, 6), (50, 1)], seed=6, dtype=torch.float32, kv_heads=1)
    queries = torch.randn(7, 32, 8)
    arguments = {"scale": 0.4, "window": None}
    monkeypatch.setattr(kernels.cpu_attention, "_COMPILED_NUMBERS", 5 * 32 * 8)
    found = attend(queries, *contexts.blocks, contexts.layout, **arguments)
    monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    without = attend(queries, *contexts.blocks, contexts.layout, **arguments)
    assert torch.allclose(found, without, rtol=1e-5, atol=1e-5)
    asked: list[int] = []
    if native_library(torch.float32) is None:
        pytest.skip("nothing is compiled here")

    class Asked:
        def attend(self, *given: object, max_queries: int, **more: object) -> None:
            asked.append(max_queries)

        def attends_any(self, head_dim: int, blocks: torch.Tensor) -> bool:
            return True

    monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: Asked())
    attend(queries, *contexts.blocks, contexts.layout, **arguments)
    assert asked == [5]
