"""Parts of low rank beside a linear map (LoRA, Hu et al. 2021, arXiv:2106.09685).

A map of several side by side, as queries, keys and values are, has one product into the ranks of
all and one out of each. Rows of a step that no adapter is for are not touched. Where an adapter has
few rows they are multiplied one by one by compiled code, in one call for all adapters: a row's
result is then the same bits whatever else is in the step.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native_arguments import LowRankArgs, LowRankLine, LowRankUp
from kernels.native_library import native_library

_MOST_SINGLE_ROWS = 16
"""Of more rows of one adapter one product is faster, which reads its matrices once."""


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
        few = [group for group in groups if group.count <= _MOST_SINGLE_ROWS]
        self.many = [group for group in groups if group.count > _MOST_SINGLE_ROWS]
        """Groups with a product each, where rows can be multiplied one by one."""
        self._few = few
        self._single: tuple[Tensor, Tensor] | None = None

    @property
    def single(self) -> tuple[Tensor, Tensor]:
        """int64 [rows] each, on the CPU: the rows of all other groups, and their adapters."""
        if self._single is None:
            rows = [
                torch.arange(group.count) if group.rows is None else group.rows
                for group in self._few
            ]
            of_rows = [torch.full((group.count,), group.adapter) for group in self._few]
            none = torch.empty(0, dtype=torch.int64)
            self._single = torch.cat([none, *rows]), torch.cat([none, *of_rows])
        return self._single


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

    def __init__(self, adapters: Mapping[int, LowRank]) -> None:
        """``adapters``: by number; one that is not among them adds nothing."""
        self._adapters = adapters
        some = next(iter(adapters.values())).down
        self._inputs = some.shape[1]
        library = native_library(some.dtype) if some.device.type == "cpu" else None
        self._compiled = None if library is None else library.low_rank
        ups = [up for adapter in adapters.values() for up in adapter.ups]
        self._ups = (LowRankUp * len(ups))(*(_as_argument(up) for up in ups))
        self._lines = (LowRankLine * (max(adapters) + 1))()
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
        """Add to ``result`` [T, outputs] what adapters make of ``x`` [T, inputs], in place; both
        are contiguous where this is compiled."""
        apart = step.groups
        if self._compiled is not None and result.is_contiguous():
            self._add_single(result, x.contiguous(), step)
            apart = step.many
        for group in apart:
            adapter = self._adapters.get(group.adapter)
            if adapter is not None:
                _add_group(result, x, adapter, group.rows)

    def _add_single(self, result: Tensor, x: Tensor, step: StepRows) -> None:
        rows, adapters = step.single
        known = adapters < len(self._lines)
        if not bool(known.all()):
            rows, adapters = rows[known], adapters[known]
        if not len(rows) or self._compiled is None:
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
