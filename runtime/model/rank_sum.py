"""The sum of what the ranks have computed of the same rows.

Libraries cut a buffer among the ranks and sum each piece in another order, so that from three ranks
on a row's last bits depend on the rows beside it: in bfloat16 a cache would change answers. So the
parts are gathered whole and added in the order of the ranks, whatever else is in the batch.

Always true: ``in_rank_order`` gives a number that its own parts alone decide, the same on all
ranks.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from runtime.model.rank_group import RankGroup

SumKind = Literal["exact", "fast"]


def in_rank_order(parts: Sequence[Tensor]) -> Tensor:
    """The sum, in the parts' type; types of 16 bits are added in float32 and rounded once."""
    kind = parts[0].dtype
    total = parts[0].to(torch.promote_types(kind, torch.float32), copy=True)
    for part in parts[1:]:
        total += part
    return total.to(kind)


class RankSum:
    """Sums of one rank's parts with those of the others, timed by the host."""

    def __init__(
        self,
        group: RankGroup,
        kind: SumKind,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``kind``: exact, or the library's own sum, which is fast, and above two ranks not the
        same at any place of a batch."""
        self._group = group
        self._kind = kind
        self._clock = clock
        self._waited_s = 0.0
        self.count = 0
        """Number of sums that were made."""

    def __call__(self, part: Tensor) -> Tensor:
        """[tokens, hidden] -> the same; ``part`` may be overwritten."""
        began = self._clock()
        self.count += 1
        if self._kind == "exact":
            total = in_rank_order(self._group.gathered(part))
        else:
            total = self._group.added(part)
        self._waited_s += self._clock() - began
        return total

    def take_wait_s(self) -> float:
        """Seconds that sums took since this was asked last; a GPU works on beside them."""
        seconds, self._waited_s = self._waited_s, 0.0
        return seconds
