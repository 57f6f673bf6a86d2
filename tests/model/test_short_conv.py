"""The short convolution: chunks and compiled kernels beside token by token, and any cut."""

import numpy as np
import pytest
import torch

from kernels.short_conv import (
    ConvRows,
    ConvWeights,
    short_conv,
    short_conv_chunked,
    short_conv_reference,
)

CASES = [
    (channels, taps, biased) for channels in (5, 300) for taps in (2, 3, 4) for biased in (0, 1)
]


def drawn(
    channels: int, taps: int, biased: bool, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, ConvWeights, torch.Tensor, ConvRows]:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.promote_types(dtype, torch.float32)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=wide)

    starts = np.array([0, 1, 8, 9, 40], dtype=np.int64)
    weights = ConvWeights(taps=normal(taps, channels), bias=normal(channels) if biased else None)
    windows = normal(6, 2, taps - 1, channels)[:, 1]
    rows = ConvRows(slots=torch.tensor([4, 0, 5, 2]), starts=starts, taps=taps)
    return normal(40, channels).to(dtype), weights, windows, rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "taps", "biased"), CASES)
def test_every_way_of_convolving_is_the_one_token_by_token(
    channels: int, taps: int, biased: bool, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    inputs, weights, windows, rows = drawn(channels, taps, biased, dtype, seed)
    expected = short_conv_reference(inputs, weights, windows, rows)
    limit = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    for way in (short_conv_chunked, short_conv):
        found = way(inputs, weights, windows, rows)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", [short_conv_reference, short_conv_chunked, short_conv])
def test_where_a_step_begins_changes_no_bit(
    way: object, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    assert callable(way)
    seed = request.config.getoption("--seed")
    inputs, weights, windows, _ = drawn(37, 3, True, dtype, seed)
    alone = ConvRows(slots=torch.tensor([3]), starts=np.array([0, 40], dtype=np.int64), taps=3)
    whole = way(inputs, weights, windows, alone)
    for cut in (1, 2, 3, 17, 39):
        first = ConvRows(slots=torch.tensor([3]), starts=np.array([0, cut], dtype=np.int64), taps=3)
        rest = ConvRows(
            slots=torch.tensor([1]), starts=np.array([0, 40 - cut], dtype=np.int64), taps=3
        )
        seen = torch.cat((windows[3], inputs[:cut].to(windows.dtype)))
        later = windows.clone()
        later[1] = seen[-2:]
        parts = way(inputs[:cut], weights, windows, first), way(inputs[cut:], weights, later, rest)
        assert torch.equal(torch.cat(parts), whole), f"cut at {cut}"
