"""The loop of all attention on a GPU: head sizes, windows, blocks, and pools in 8 bits."""

import pytest
import torch

from kernels.attention import paged_attention_reference
from kernels.dispatch import triton_kernels
from tests.support.attention_on_triton import (
    DECODE,
    DTYPES,
    EXTEND,
    MIXED,
    VERIFY,
    compare,
    in_fp8,
    on,
)
from tests.support.paged_contexts import make_contexts


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(
    ("shapes", "head_dim", "block_size"),
    [(DECODE, 32, 16), (VERIFY, 24, 16), (EXTEND, 32, 8), (MIXED, 64, 32)],
    ids=["decode", "verify", "extend", "mixed"],
)
def test_keys_and_values_in_8_bits_are_read_as_the_reference_reads_them(
    dtype: torch.dtype,
    shapes: list[tuple[int, int]],
    head_dim: int,
    block_size: int,
    device: torch.device,
) -> None:
    contexts = make_contexts(shapes, seed=8, dtype=dtype, head_dim=head_dim, block_size=block_size)
    compare(contexts, device, heads=8, fp8=True)


@pytest.mark.parametrize(
    ("queries", "values"),
    [(1.0, 1.0), (1e6, 1e-3), (1e-6, 1e5)],
    ids=["usual", "queries past float16", "values past float16"],
)
def test_bfloat16_over_8_bits_is_as_near_as_bfloat16_is(
    queries: float, values: float, device: torch.device
) -> None:
    """The products are of float16: under the interpreter, too, they are right."""
    contexts = make_contexts([(300, 1), (17, 1), (70, 5)], seed=9, dtype=torch.bfloat16)
    keys, other = contexts.blocks
    blocks = in_fp8(keys / queries), in_fp8(other * values)
    generator = torch.Generator().manual_seed(1)
    rows = int(contexts.layout.query_starts[-1])
    asked = (torch.randn(rows, 8, 8, generator=generator) * queries).to(torch.bfloat16)
    kernels = triton_kernels("attention", asked)
    assert kernels is not None

    output = kernels.paged_attention(
        asked.to(device),
        *(part.to(device) for part in blocks),
        on(device, contexts.layout),
        scale=0.3,
        window=None,
    )

    expected = paged_attention_reference(
        asked.float(), *blocks, contexts.layout, scale=0.3, window=None
    )
    error = (output.cpu().float() - expected).norm() / expected.norm()
    assert error < torch.finfo(torch.bfloat16).eps / 2


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
