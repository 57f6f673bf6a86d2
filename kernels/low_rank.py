"""Parts of low rank beside a linear map (LoRA, Hu et al. 2021, arXiv:2106.09685).

A map of several side by side, as queries, keys and values are, has one product into the ranks of
all and one out of each. Rows of a step that no adapter is for are not touched. On a CPU one
compiled call takes the rows of all adapters, and a row's result is the same bits whatever else is
in the step; else each adapter's rows have products of their own.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native_arguments import LowRankArgs, LowRankLine, LowRankUp
from kernels.native_library import native_library


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The rows of a step that have one adapter."""

    adapter: int
    rows: Tensor | None
    """int64 [rows], ascending; None: all of the step."""
    count: int


class StepRows:
    """The rows of a step by their adapter."""

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self.groups = groups

    @cached_property
    def listed(self) -> tuple[Tensor, Tensor]:
        """int64 [rows] each, on the CPU: all rows that have an adapter, those of one together, and
        their adapters."""
        rows = [
            torch.arange(group.count) if group.rows is None else group.rows for group in self.groups
        ]
        of_rows = [torch.full((group.count,), group.adapter) for group in self.groups]
        return torch.cat(rows), torch.cat(of_rows)


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


class LowRankMaps:
    """The parts of several adapters in one map."""

    def __init__(self, adapters: Mapping[int, LowRank], count: int) -> None:
        """``adapters``: by number, of ``count``; one that is not among them adds nothing."""
        self._adapters = adapters
        some = next(iter(adapters.values())).down
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

    def add(self, result: Tensor, x: Tensor, step: StepRows) -> None:
        """Add to ``result`` [T, outputs] what adapters make of ``x`` [T, inputs], in place."""
        if self._compiled is None or not result.is_contiguous():
            for group in step.groups:
                adapter = self._adapters.get(group.adapter)
                if adapter is not None:
                    _add_group(result, x, adapter, group.rows)
            return
        (rows, adapters), x = step.listed, x.contiguous()
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
