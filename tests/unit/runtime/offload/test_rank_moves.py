"""A move from or to the disk is over once it is on every rank, and well where it is on each."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove
from runtime.model.rank_link import Followers
from runtime.offload.rank_moves import RankMoves


class Others(Followers):
    """Two other ranks, which say what a test has them say."""

    def __init__(self) -> None:
        self.told: list[tuple[int, tuple[bytes, ...], bool]] = []
        self.said: dict[bool, list[tuple[int, bool]]] = {False: [], True: []}

    def send_move(self, move: BlockMove, marks: Sequence[bytes], *, of_states: bool) -> None:
        self.told.append((move.number, tuple(marks), of_states))

    def take_moved(self, *, of_states: bool) -> list[tuple[int, bool]]:
        told, self.said[of_states] = self.said[of_states], []
        return told


def test_whoever_is_last_ends_a_move(request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.config.getoption("--seed"))
    others = Others()
    moves = RankMoves(others, ranks=3, of_states=False)
    left = {number: [rng.random() < 0.8 for _ in range(3)] for number in range(40)}
    well = {number: all(each) for number, each in left.items()}
    ended: dict[int, bool] = {}
    said = dict.fromkeys(left, 0)
    while any(left.values()):
        own = []
        for number in rng.sample(sorted(left), 5):
            if left[number]:
                said[number] += 1
                told = (number, left[number].pop())
                (own if rng.random() < 0.4 else others.said[False]).append(told)
        for number, ok in moves.over(own):
            assert said[number] == 3, "a rank has said nothing yet"
            assert number not in ended
            ended[number] = ok
    assert ended == well


def test_states_and_kv_are_told_apart() -> None:
    others = Others()
    kv, states = (RankMoves(others, ranks=2, of_states=each) for each in (False, True))
    move = BlockMove(
        number=7,
        source=Tier.DISK,
        target=Tier.HOST,
        source_blocks=np.array([1], dtype=np.int32),
        target_blocks=np.array([0], dtype=np.int32),
        content=None,
    )
    states.tell(move, [b"m" * 16])
    assert others.told == [(7, (b"m" * 16,), True)]
    others.said[True].append((7, True))
    assert not list(kv.over([]))
    assert list(states.over([(7, False)])) == [(7, False)]
