"""Ranks that exchange tensors, as threads of this process."""

import threading
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor
from torch._C._distributed_c10d import HashStore

from runtime.model.rank_group import RankGroup, gloo_group
from runtime.model.rank_sum import RankSum, SumKind

Made = TypeVar("Made")


class Groups:
    """So many ranks, in threads of their own for each call."""

    def __init__(self, ranks: int) -> None:
        store = HashStore()
        self._ranks = ranks
        self.groups: list[RankGroup] = []
        self.groups = self.on_all(lambda rank: gloo_group(store, rank, ranks))

    def on_all(self, call: Callable[[int], Made]) -> list[Made]:
        """What each rank's call returns."""
        found: dict[int, Made] = {}

        def run(rank: int) -> None:
            found[rank] = call(rank)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self._ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(self._ranks)]

    def sums(self, parts: list[Tensor], kind: SumKind) -> list[Tensor]:
        """Of one part a rank, as each rank has it."""
        return self.on_all(lambda rank: RankSum(self.groups[rank], kind)(parts[rank].clone()))


class NoGroup(RankGroup):
    """For a rank that nobody sums with."""

    def __init__(self) -> None:
        super().__init__(None, 1)


class NoLink:
    """What a rank follows by that nobody hears."""

    def __init__(self) -> None:
        self.group = NoGroup()

    def enters(self, stage: str) -> None: ...

    def below_is_there(self) -> None: ...
