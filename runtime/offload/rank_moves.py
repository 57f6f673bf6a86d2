"""Moves between tiers on all ranks of a model, as the leading one orders them and hears of them.

Each rank has its part of every block and of every state, in tiers of its own, and one cache decides
for all. Others are told of a move before the leading rank makes it, between the same steps; each of
them waits for its own copies. Always true: a move from or to the disk is over once it is on every
rank, and all is well with it only where it is on every one.
"""

from collections.abc import Iterable, Iterator, Sequence

from radix_cache.transfers import BlockMove
from runtime.model.rank_link import Followers


class RankMoves:
    """The moves of KV, or those of states.

    Args:
        followers: the other ranks.
        ranks: how many there are, the leading one included.
        of_states: states and their tails are moved, a slot a move.
    """

    def __init__(self, followers: Followers, *, ranks: int, of_states: bool) -> None:
        self._followers = followers
        self._ranks = ranks
        self._of_states = of_states
        self._told: dict[int, list[bool]] = {}
        """The words of ranks on orders that are over on some of them."""

    def tell(self, move: BlockMove, marks: Sequence[bytes]) -> None:
        """Have the others make a move.

        Args:
            marks: of blocks that come from the disk, what the leading rank takes each to hold.

        Raises:
            RunnerBroken: one of them is gone.
        """
        self._followers.send_move(move, marks, of_states=self._of_states)

    def over(self, own: Iterable[tuple[int, bool]]) -> Iterator[tuple[int, bool]]:
        """Moves that are over on all ranks now, given those that are on the leading one."""
        for number, ok in (*own, *self._followers.take_moved(of_states=self._of_states)):
            told = self._told.setdefault(number, [])
            told.append(ok)
            if len(told) == self._ranks:
                del self._told[number]
                yield number, all(told)
