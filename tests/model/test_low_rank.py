"""What adapters add to a map is the sum of two products, for the rows that have one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.low_rank import LowRankMaps, RowAdapters, joined_low_rank
from kernels.native_library import native_library

INPUTS = 70
OUTPUTS = (40, 600)


class Case:
    """Three adapters of a map of two side by side: one changes both, one each, one neither."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw).to(dtype)

        first = [
            (0, drawn(3, INPUTS), drawn(OUTPUTS[0], 3)),
            (OUTPUTS[0], drawn(17, INPUTS), drawn(OUTPUTS[1], 17)),
        ]
        second = [(OUTPUTS[0], drawn(1, INPUTS), drawn(OUTPUTS[1], 1))]
        self._parts = {0: first, 2: second}
        found = {n: joined_low_rank(parts) for n, parts in self._parts.items()}
        self.maps = LowRankMaps(found, 4)
        self.x, self.before = drawn(45, INPUTS), drawn(45, sum(OUTPUTS))

    def expected(self, of_rows: np.ndarray) -> Tensor:
        result = self.before.double().clone()
        for number, parts in self._parts.items():
            rows = torch.from_numpy(np.flatnonzero(of_rows == number))
            for first, down, up in parts:
                added = self.x[rows].double() @ down.double().T @ up.double().T
                result[rows, first : first + len(up)] += added
        return result

    def found(self, of_rows: np.ndarray) -> Tensor:
        result = self.before.clone()
        there = torch.from_numpy(of_rows.astype(np.int32))
        self.maps.add(result, self.x, RowAdapters(there, of_rows))
        again = self.before.clone()
        self.maps.add(again, self.x, RowAdapters(there))
        assert torch.equal(result, again), "read from the device"
        return result


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)],
)
def test_rows_get_what_their_adapter_adds(
    dtype: torch.dtype, limit: float, request: pytest.FixtureRequest
) -> None:
    """Few rows of an adapter, many, and none of it; numbers beyond those of this map."""
    seed = request.config.getoption("--seed")
    case, rng = Case(dtype, seed), np.random.default_rng(seed)
    for share in (0.05, 0.5, 0.95):
        of_rows = rng.choice([0, 1, 2, 3, -1], 45, p=[share, *[(1 - share) / 4] * 4])
        expected, found = case.expected(of_rows), case.found(of_rows).double()
        assert (found - expected).norm() <= limit * expected.norm()
        untouched = np.isin(of_rows, (1, 3, -1))
        assert torch.equal(case.found(of_rows)[untouched], case.before[untouched])


def test_all_rows_of_a_step_can_have_one_adapter() -> None:
    case = Case(torch.float64, 0)
    result = case.before.clone()
    case.maps.add(result, case.x, RowAdapters(torch.zeros(45, dtype=torch.int32)))
    assert torch.allclose(result, case.expected(np.zeros(45)), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_bits_whatever_is_beside_it(dtype: torch.dtype) -> None:
    if native_library(dtype) is None:
        pytest.skip("no compiler for the CPU kernels")
    case = Case(dtype, 1)
    alone = np.full(45, -1)
    alone[7] = 0
    for others in ([2, 0, -1], [0, 0, 0], [0, 2, 2]):
        beside = np.array(others * 15)
        beside[7] = 0
        assert torch.equal(case.found(alone)[7], case.found(beside)[7])
