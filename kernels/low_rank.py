"""What adapters of low rank add to a linear map (LoRA, Hu et al. 2021, arXiv:2106.09685).

A map of several side by side, as queries, keys and values are, has one product into the ranks of
all and one out of each. Rows of a step that no adapter is for are not touched. Each group of rows
is multiplied by itself, whatever else is in the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

RowGroups = Sequence[tuple[int, Tensor | None]]
"""The rows of a step by their adapter: its number, and int64 [rows], ascending; None: all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upwards:
    """One of the maps side by side: from its own ranks to its outputs."""

    first_output: int
    first_rank: int
    matrix: Tensor
    """[outputs, rank], the adapter's scale in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What one adapter adds to a map."""

    down: Tensor
    """[ranks of all maps, inputs]"""
    ups: tuple[Upwards, ...]

    @property
    def num_bytes(self) -> int:
        """Memory of its matrices."""
        return self.down.nbytes + sum(up.matrix.nbytes for up in self.ups)


def add_low_rank(
    result: Tensor, x: Tensor, adapters: Mapping[int, LowRank], groups: RowGroups
) -> None:
    """Add to ``result`` [T, outputs] what adapters make of ``x`` [T, inputs], in place.

    Args:
        adapters: by number; one that is not among them adds nothing to this map.
    """
    for number, rows in groups:
        adapter = adapters.get(number)
        if adapter is None:
            continue
        inner = functional.linear(x if rows is None else x[rows], adapter.down)
        for up in adapter.ups:
            rank = up.matrix.shape[1]
            outer = functional.linear(inner[:, up.first_rank : up.first_rank + rank], up.matrix)
            part = result[:, up.first_output : up.first_output + len(up.matrix)]
            if rows is None:
                part += outer
            else:
                part.index_add_(0, rows, outer)


def joined_low_rank(maps: Sequence[tuple[int, Tensor, Tensor]]) -> LowRank:
    """One for maps side by side, of the same inputs.

    Args:
        maps: first output, [rank, inputs] and [outputs, rank] of each.
    """
    ups, ranks = [], 0
    for first_output, down, up in maps:
        ups.append(Upwards(first_output=first_output, first_rank=ranks, matrix=up.contiguous()))
        ranks += len(down)
    return LowRank(down=torch.cat([down for _, down, _ in maps]), ups=tuple(ups))
