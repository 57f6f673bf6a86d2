"""Attention on a CPU, compiled and in torch, against the reference, over a poisoned pool."""

import pytest
import torch

import kernels.cpu_attention
from kernels.attention import paged_attention_reference
from kernels.cpu_attention import attend
from kernels.paged_layout import PagedLayout
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
            spans=contexts.layout.spans[index : index + 1],
        )
        own = attend(queries[row : row + new], *contexts.blocks, alone, scale=0.1, window=None)
        assert torch.equal(own, together[row : row + new])
        row += new


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
