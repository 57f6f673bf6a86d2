"""Parts of low rank beside a linear map (LoRA, Hu et al. 2021, arXiv:2106.09685).

A map of several side by side, as queries, keys and values are, has one product into the ranks of
all and one out of each. Rows of a step that no adapter is for are not touched. On a CPU one
compiled call takes the rows of all adapters, and a row's result is the same bits whatever else is
in the step; on a GPU two kernels take them. In torch each adapter's rows have products of their
own.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.native_arguments import LowRankArgs, LowRankLine, LowRankUp
from kernels.native_library import native_library
from kernels.upload import upload

NO_ADAPTER: Final = -1
OUTPUTS_EACH: Final = 64
"""Outputs in a tile of ``StackedLowRank``."""


class RowAdapters:
    """The rows of a step by their adapter."""

    def __init__(self, there: Tensor, numbers: npt.NDArray[np.int64] | None = None) -> None:
        """
        Args:
            there: [T] int32, on the device: each row's adapter, ``NO_ADAPTER`` for none.
            numbers: the same on the host; None: they are read where they are asked for.
        """
        self.there = there
        self._numbers = numbers

    @cached_property
    def groups(self) -> list[tuple[int, Tensor | None]]:
        """Adapters and int64 [rows], ascending, on the device; None: all rows of the step."""
        numbers = self.there.cpu().numpy() if self._numbers is None else self._numbers
        found = np.unique(numbers).tolist()
        if len(found) == 1 and found[0] != NO_ADAPTER:
            return [(found[0], None)]
        return [
            (number, upload(np.flatnonzero(numbers == number), self.there.device))
            for number in found
            if number != NO_ADAPTER
        ]

    @cached_property
    def listed(self) -> tuple[Tensor, Tensor]:
        """int64 [rows] each, on the CPU: all rows that have an adapter, those of one together, and
        their adapters."""
        numbers = self.there.to(torch.int64)
        order = numbers.argsort(stable=True)
        order = order[numbers[order] != NO_ADAPTER]
        return order, numbers[order]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upwards:
    """One of the maps side by side: from its own ranks to its outputs."""

    first_output: int
    first_rank: int
    matrix: Tensor
    """[rank, outputs], contiguous, the adapter's scale in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """One adapter's part in a map."""

    down: Tensor
    """[ranks of all maps, inputs], contiguous."""
    ups: tuple[Upwards, ...]

    @property
    def num_bytes(self) -> int:
        """Memory of its matrices."""
        return self.down.nbytes + sum(up.matrix.nbytes for up in self.ups)


def joined_low_rank(maps: Sequence[tuple[int, Tensor, Tensor]]) -> LowRank:
    """One for maps side by side, of the same inputs.

    Args:
        maps: first output, [rank, inputs] and [outputs, rank] of each.
    """
    ups, ranks = [], 0
    for first_output, down, up in maps:
        matrix = up.T.contiguous()
        ups.append(Upwards(first_output=first_output, first_rank=ranks, matrix=matrix))
        ranks += len(down)
    return LowRank(down=torch.cat([down for _, down, _ in maps]), ups=tuple(ups))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLowRank:
    """The parts of all adapters in one map, one behind the other, for kernels that take any mix of
    them. Each of the maps side by side has as many ranks as the largest; what is not there is 0."""

    down: Tensor
    """[adapters, maps * rank, inputs]"""
    up: Tensor
    """[adapters, outputs, rank]"""
    tiles: Tensor
    """int32 [tiles, 3]: of neighbouring outputs of one map the first, the one behind the last, and
    the map's first rank."""


def stacked_low_rank(adapters: Mapping[int, LowRank], count: int) -> StackedLowRank:
    """Stack the parts of those of ``count`` adapters that change a map."""
    ups = [up for adapter in adapters.values() for up in adapter.ups]
    maps = sorted({(up.first_output, up.matrix.shape[1]) for up in ups})
    rank, outputs = max(len(up.matrix) for up in ups), sum(maps[-1])
    some = next(iter(adapters.values())).down
    down = some.new_zeros(count, len(maps) * rank, some.shape[1])
    up = some.new_zeros(count, outputs, rank)
    for number, adapter in adapters.items():
        for each in adapter.ups:
            own, size = each.matrix.shape
            low = maps.index((each.first_output, size)) * rank
            down[number, low : low + own] = adapter.down[each.first_rank : each.first_rank + own]
            up[number, each.first_output : each.first_output + size, :own] = each.matrix.T
    tiles = [
        (low, min(low + OUTPUTS_EACH, first + size), place * rank)
        for place, (first, size) in enumerate(maps)
        for low in range(first, first + size, OUTPUTS_EACH)
    ]
    return StackedLowRank(
        down=down, up=up, tiles=upload(np.array(tiles, dtype=np.int32), some.device)
    )


class LowRankMaps:
    """The parts of several adapters in one map."""

    def __init__(self, adapters: Mapping[int, LowRank], count: int) -> None:
        """``adapters``: by number, of ``count``; one that is not among them adds nothing."""
        self._adapters = adapters
        some = next(iter(adapters.values())).down
        self._gpu = triton_kernels("low_rank", some)
        self._stacked: StackedLowRank | None = None
        if self._gpu is not None:
            self._stacked, self._adapters = stacked_low_rank(adapters, count), {}
            return
        self._inputs = some.shape[1]
        library = native_library(some.dtype) if some.device.type == "cpu" else None
        self._compiled = None if library is None else library.low_rank
        ups = [up for adapter in adapters.values() for up in adapter.ups]
        self._ups = (LowRankUp * len(ups))(*(_as_argument(up) for up in ups))
        self._lines = (LowRankLine * count)()
        first = 0
        for number, adapter in adapters.items():
            self._lines[number] = LowRankLine(
                down=adapter.down.data_ptr(),
                ranks=len(adapter.down),
                first_up=first,
                num_ups=len(adapter.ups),
            )
            first += len(adapter.ups)

    def add(self, result: Tensor, x: Tensor, step: RowAdapters) -> None:
        """Add to ``result`` [T, outputs] what adapters make of ``x`` [T, inputs], in place."""
        if self._gpu is not None:
            self._gpu.add_low_rank(result, x.contiguous(), self._stacked, step.there)
            return
        if self._compiled is None or not result.is_contiguous():
            for number, rows in step.groups:
                adapter = self._adapters.get(number)
                if adapter is not None:
                    _add_group(result, x, adapter, rows)
            return
        (rows, adapters), x = step.listed, x.contiguous()
        if not len(rows):
            return
        self._compiled(
            LowRankArgs(
                x=x.data_ptr(),
                result=result.data_ptr(),
                rows=rows.data_ptr(),
                adapter_of=adapters.data_ptr(),
                table=ctypes.addressof(self._lines),
                ups=ctypes.addressof(self._ups),
                count=len(rows),
                inputs=self._inputs,
                outputs=result.shape[1],
            )
        )


def _as_argument(up: Upwards) -> LowRankUp:
    rank, outputs = up.matrix.shape
    return LowRankUp(
        matrix=up.matrix.data_ptr(),
        rank=rank,
        outputs=outputs,
        first_rank=up.first_rank,
        first_output=up.first_output,
    )


def _add_group(result: Tensor, x: Tensor, adapter: LowRank, rows: Tensor | None) -> None:
    inner = functional.linear(x if rows is None else x[rows], adapter.down)
    for up in adapter.ups:
        rank, outputs = up.matrix.shape
        outer = torch.mm(inner[:, up.first_rank : up.first_rank + rank], up.matrix)
        part = result[:, up.first_output : up.first_output + outputs]
        if rows is None:
            part += outer
        else:
            part.index_add_(0, rows, outer)
