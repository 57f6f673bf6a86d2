"""The gated norm of heads: compiled beside torch, each row for itself."""

import pytest
import torch

import kernels.gated_norm
from kernels.gated_norm import (
    gated_norm,
    gated_norm_reference,
    skipped_and_weighed,
    skipped_group_norm,
)
from kernels.native_library import native_library, own_threads
from kernels.norm import mean_square, norm_by

SIZES = [(1, 7), (4, 24), (6, 128), (2, 520)]
TOKENS = (1, 3, 90)
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("by_sigmoid", [True, False])
def test_heads_are_normed_and_weighed_as_by_the_reference(
    by_sigmoid: bool, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    heads, size = sizes
    weight = torch.randn(size, dtype=wide(dtype))
    for tokens in TOKENS:
        mixed = torch.randn(tokens, heads, size, dtype=wide(dtype)) * 3
        mixed[0] = 0
        apart = (torch.randn(tokens, 5 + heads * size) * 20).to(dtype)
        for gates in (apart[:, 5:], apart[:, 5:].contiguous()):
            found = gated_norm(mixed, gates, weight, 1e-6, by_sigmoid=by_sigmoid)
            expected = gated_norm_reference(mixed, gates, weight, 1e-6, by_sigmoid=by_sigmoid)
            assert found.dtype == dtype
            one = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 4e-6
            torch.testing.assert_close(found, expected, rtol=one, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by_sigmoid", [True, False])
def test_no_bit_of_a_row_depends_on_the_others_or_on_threads(
    by_sigmoid: bool, dtype: torch.dtype, threads: int
) -> None:
    mixed, weight, gates = torch.randn(70, 6, 128), torch.randn(128), torch.randn(70, 768).to(dtype)
    own_threads(threads)
    together = gated_norm(mixed, gates, weight, 1e-6, by_sigmoid=by_sigmoid)
    own_threads(1)
    for rows in (slice(0, 1), slice(1, 9), slice(68, 70)):
        alone = gated_norm(mixed[rows], gates[rows], weight, 1e-6, by_sigmoid=by_sigmoid)
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_no_number_stays_none_in_its_own_head_alone(dtype: torch.dtype) -> None:
    mixed, gates = torch.randn(6, 4, 24), torch.randn(6, 96).to(dtype)
    mixed[1, 2, 3], gates[5, 0] = torch.nan, torch.nan
    normed = gated_norm(mixed, gates, torch.ones(24), 1e-6)
    expected = gated_norm_reference(mixed, gates, torch.ones(24), 1e-6)
    assert torch.equal(normed.isnan(), expected.isnan())
    assert normed.isnan().sum() == 24 + 1


@compiled_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_one_is_taken_where_it_is(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **more: object) -> None:
        raise AssertionError("torch does it")

    given = torch.zeros(4, 2, 8), torch.zeros(4, 16, dtype=dtype), torch.ones(8), 1e-6
    monkeypatch.setattr(kernels.gated_norm, "gated_norm_reference", refuse)
    gated_norm(*given)
    monkeypatch.setattr(kernels.gated_norm, "native_library", lambda _: None)
    with pytest.raises(AssertionError, match="torch does it"):
        gated_norm(*given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_heads_of_a_group_apart_are_normed_as_together(dtype: torch.dtype) -> None:
    """By the mean square of all of the group's heads."""
    mixed, values = torch.randn(2, 9, 4, 10, dtype=wide(dtype)).unbind()
    skip, weight = torch.randn(4, dtype=wide(dtype)), torch.randn(40, dtype=wide(dtype))
    gates = torch.randn(9, 40).to(dtype)
    expected = skipped_group_norm(mixed, values, skip, gates, weight, groups=1, eps=1e-6)
    halves = [
        skipped_and_weighed(
            mixed[:, low : low + 2],
            values[:, low : low + 2],
            skip[low : low + 2],
            gates[:, 10 * low : 10 * low + 20],
        )
        for low in (0, 2)
    ]
    mean = (mean_square(halves[0]) + mean_square(halves[1])) / 2
    found = torch.cat(
        [
            norm_by(half, mean, own, 1e-6)
            for half, own in zip(halves, weight.split(20), strict=True)
        ],
        dim=1,
    ).to(dtype)
    one = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 4e-6
    torch.testing.assert_close(found, expected, rtol=one, atol=1e-6)
