"""Triton's parts of low rank against torch's, for any mix of adapters."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.low_rank import LowRankMaps, RowAdapters, joined_low_rank, stacked_low_rank

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
SIZES = ((0, 40), (40, 130), (170, 7))
"""First output and outputs of three maps side by side."""


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def parts(number: int, inputs: int, dtype: torch.dtype) -> list[tuple[int, Tensor, Tensor]]:
    """Of four adapters: one changes all maps, one two of them with other ranks, one one, one
    none."""
    draw = torch.Generator().manual_seed(number)
    places = {0: (0, 1, 2), 1: (0, 2), 2: (1,), 3: ()}[number]
    found = []
    for place in places:
        first, outputs = SIZES[place]
        rank = 1 + 10 * number + 3 * place
        down = torch.randn(rank, inputs, generator=draw) / inputs**0.5
        up = torch.randn(outputs, rank, generator=draw) / rank**0.5
        found.append((first, down.to(dtype), up.to(dtype)))
    return found


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "inputs"), [(1, 64), (37, 200), (16, 130)])
def test_rows_get_what_their_adapter_adds(
    dtype: torch.dtype, tokens: int, inputs: int, device: torch.device
) -> None:
    """Tokens without one are not written to; their results may hold anything."""
    draw = torch.Generator().manual_seed(tokens)
    given = {n: found for n in range(4) if (found := parts(n, inputs, dtype))}
    x = torch.randn(tokens, inputs, generator=draw).to(dtype)
    result = torch.randn(tokens, 180, generator=draw).to(dtype)
    adapters = np.random.default_rng(tokens).integers(-1, 4, tokens)
    result[torch.from_numpy(adapters == -1)] = torch.nan
    expected = result.double()
    for number, each in given.items():
        rows = torch.from_numpy(np.flatnonzero(adapters == number))
        for first, down, up in each:
            added = x[rows].double() @ down.double().T @ up.double().T
            expected[rows, first : first + len(up)] += added
    on_device = {
        number: joined_low_rank([(first, a.to(device), b.to(device)) for first, a, b in each])
        for number, each in given.items()
    }
    maps = LowRankMaps(on_device, 4)
    found = result.to(device)
    there = torch.from_numpy(adapters.astype(np.int32)).to(device)
    maps.add(found, x.to(device), RowAdapters(there))
    limit = TOLERANCE[dtype]
    assert torch.allclose(found.cpu().double(), expected, rtol=limit, atol=limit, equal_nan=True)


def test_a_row_is_the_same_bits_whatever_is_beside_it(device: torch.device) -> None:
    maps = LowRankMaps(
        {
            n: joined_low_rank(
                [(f, a.to(device), b.to(device)) for f, a, b in parts(n, 96, torch.float32)]
            )
            for n in range(3)
        },
        3,
    )
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(20, 96, generator=draw).to(device)
    results = []
    for others in (-1, 0, 1, 2):
        adapters = torch.full((20,), others, dtype=torch.int32, device=device)
        adapters[7] = 1
        result = torch.zeros(20, 180, device=device)
        maps.add(result, x, RowAdapters(adapters))
        results.append(result[7].cpu())
    assert all(torch.equal(each, results[0]) for each in results)


def test_a_stack_has_each_map_at_the_same_ranks_for_all() -> None:
    given = {n: joined_low_rank(parts(n, 8, torch.float32)) for n in range(3)}
    stacked = stacked_low_rank(given, 4)
    assert stacked.down.shape == (4, 3 * 24, 8)
    assert stacked.up.shape == (4, 177, 24)
    assert not stacked.down[3].any()
    assert stacked.tiles.tolist() == [
        [0, 40, 0],
        [40, 104, 24],
        [104, 168, 24],
        [168, 170, 24],
        [170, 177, 48],
    ]
    for number, each in given.items():
        whole = torch.zeros(177, 8)
        for first, down, up in parts(number, 8, torch.float32):
            whole[first : first + len(up)] = up @ down
        found = torch.cat(
            [
                stacked.up[number, low:high] @ stacked.down[number, rank : rank + 24]
                for low, high, rank in stacked.tiles.tolist()
            ]
        )
        assert torch.allclose(found, whole, atol=1e-5), number
        assert each.num_bytes > 0
