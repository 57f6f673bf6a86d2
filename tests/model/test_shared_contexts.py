"""Attention on a CPU of sequences whose contexts begin with the same blocks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.attention import paged_attention_reference
from kernels.cpu_attention import attend
from kernels.paged_layout import PagedLayout
from kernels.quantised_kv import quantise_rows
from runtime.model.batch import SequenceInput, StepBatch

BLOCK, KV_HEADS, GROUP, DIM = 16, 2, 3, 64
SYSTEM = 40
"""Blocks that all sequences begin with."""
ALL_SHARE = ((641, 1), (700, 3), (1300, 8), (655, 1), (512, 1), (513, 1), (1100, 40))
"""(context, queries) of sequences."""


def tables(shapes: tuple[tuple[int, int], ...], system: list[int], total: int) -> list[list[int]]:
    """Blocks of each sequence: so many of the system's as ``system`` says, the rest its own."""
    free = iter(range(max(system, default=0), total))
    found = []
    for (length, _), shared in zip(shapes, system, strict=True):
        count = -(-length // BLOCK)
        found.append([*range(min(shared, count)), *(next(free) for _ in range(count - shared))])
    return found


def layout_of(shapes: tuple[tuple[int, int], ...], blocks: list[list[int]]) -> PagedLayout:
    inputs = [
        SequenceInput(
            tokens=np.zeros(new, dtype=np.int32),
            start=length - new,
            block_table=np.array(table, dtype=np.int32),
            num_logits=0,
        )
        for (length, new), table in zip(shapes, blocks, strict=True)
    ]
    return StepBatch.build(inputs, BLOCK).layout(torch.device("cpu"))


def pool(total: int, dtype: torch.dtype, *, in_8_bits: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    parts = [
        torch.randn(total, KV_HEADS, BLOCK, DIM, generator=generator).to(dtype) for _ in range(2)
    ]
    keys, values = (quantise_rows(part) if in_8_bits else part for part in parts)
    return keys, values


def run(queries: Tensor, kv: tuple[Tensor, Tensor], layout: PagedLayout) -> Tensor:
    return attend(queries, *kv, layout, scale=DIM**-0.5, window=None)


@pytest.mark.samples(10)
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize(
    ("shapes", "system"),
    [
        (ALL_SHARE, [SYSTEM, SYSTEM, SYSTEM, SYSTEM, 32, 32, SYSTEM]),
        (ALL_SHARE, [20, SYSTEM, 16, 15, 17, 0, 31]),
        (ALL_SHARE, [SYSTEM, 16, SYSTEM, 31, 32, 15, 32]),
        pytest.param(((900, 1),) * 70, [SYSTEM] * 70, marks=pytest.mark.tail),
        pytest.param(((900, 1),) * 70, [56] * 70, marks=pytest.mark.tail),
        (((260, 2), (256, 1), (257, 1), (255, 1)), [16, 16, 16, 15]),
    ],
)
def test_what_is_shared_is_what_each_would_compute_alone(
    dtype: torch.dtype,
    seed: int,
    *,
    in_8_bits: bool,
    shapes: tuple[tuple[int, int], ...],
    system: list[int],
) -> None:
    total = max(system) + sum(-(-length // BLOCK) for length, _ in shapes)
    kv, blocks = pool(total, dtype, in_8_bits=in_8_bits), tables(shapes, system, total)
    rows = sum(new for _, new in shapes)
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(rows, KV_HEADS * GROUP, DIM, generator=generator).to(dtype)
    layout = layout_of(shapes, blocks)
    together = run(queries, kv, layout)

    expected = paged_attention_reference(queries, *kv, layout, scale=DIM**-0.5, window=None)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(together, expected, rtol=tolerance, atol=tolerance)
    row = 0
    for shape, table in zip(shapes, blocks, strict=True):
        own = run(queries[row : row + shape[1]], kv, layout_of((shape,), [table]))
        assert torch.equal(own, together[row : row + shape[1]])
        row += shape[1]


def test_numbers_that_are_none_stay_with_those_that_see_them() -> None:
    shapes, system = ((700, 1), (700, 2), (700, 50)), [SYSTEM] * 3
    total = SYSTEM + 3 * 44
    kv, blocks = pool(total, torch.bfloat16, in_8_bits=False), tables(shapes, system, total)
    kv[0][blocks[1][-1], :, 11] = torch.nan  # token 699: the last query's own
    kv[0][blocks[2][-2], :, 15] = torch.nan  # token 687: seen from query 37 on
    queries = torch.randn(53, KV_HEADS * GROUP, DIM).to(torch.bfloat16)
    output = run(queries, kv, layout_of(shapes, blocks))
    bad = [2, *range(3 + 37, 53)]
    assert output[bad].isnan().all()
    assert output[[row for row in range(53) if row not in bad]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_that_hide_everything_are_no_numbers(dtype: torch.dtype) -> None:
    kv = pool(20, dtype, in_8_bits=False)
    kv[0][:16] = -torch.inf
    queries = torch.rand(3, KV_HEADS * GROUP, DIM).to(dtype) + 0.5
    shapes = ((256, 1), (300, 2))
    blocks = [list(range(16)), list(range(19))]
    output = run(queries, kv, layout_of(shapes, blocks))
    assert output[0].isnan().all()
    assert output[1:].isfinite().all()
