"""Edges against a plain list of (tokens, block id)."""

import random

import numpy as np
import pytest

from radix_cache.edge import PIECE_BLOCKS, Edge, PieceShop

BLOCK = 2


def filled(edge: Edge, rng: random.Random, count: int, first_id: int) -> list[tuple[int, int, int]]:
    tokens = np.array([rng.randrange(9) for _ in range(count * BLOCK)], dtype=np.int32)
    blocks = np.arange(first_id, first_id + count, dtype=np.int32)
    edge.append(tokens, blocks)
    pairs = tokens.reshape(-1, BLOCK).tolist()
    return [(a, b, block) for (a, b), block in zip(pairs, blocks.tolist(), strict=True)]


def content(edge: Edge) -> list[tuple[int, int, int]]:
    blocks = edge.block_ids().tolist()
    return [(*edge.block_tokens(i).tolist(), block) for i, block in enumerate(blocks)]


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_a_list_when_appended_cut_and_trimmed(seed: int) -> None:
    rng = random.Random(seed)
    edge, expected, next_id = Edge(PieceShop(BLOCK)), [], 0
    for _ in range(60):
        action = rng.choice(["append", "append", "cut", "trim", "join", "exchange"])
        if action == "append":
            count = rng.choice([1, 3, 40, PIECE_BLOCKS - 1, PIECE_BLOCKS, 2 * PIECE_BLOCKS + 5])
            expected += filled(edge, rng, count, next_id)
            next_id += count
        elif action == "cut" and len(expected) > 1:
            at = rng.randrange(1, len(expected))
            upper = edge.cut(at)
            assert content(upper) == expected[:at]
            expected = expected[at:]
            if rng.random() < 0.5:
                edge, expected = upper, content(upper)
        elif action == "trim" and expected:
            count = rng.randint(1, len(expected))
            freed = edge.trim(count).tolist()
            assert freed == [block for _, _, block in expected[len(expected) - count :]]
            del expected[len(expected) - count :]
        elif action == "join" and len(expected) > 1:
            upper = edge.cut(rng.randrange(1, len(expected)))
            edge.prepend(upper)
            assert not upper.pieces
        elif action == "exchange":
            ids = np.arange(next_id, next_id + len(expected), dtype=np.int32)
            next_id += len(expected)
            old = edge.exchange(ids).tolist()
            assert old == [block for _, _, block in expected]
            expected = [(a, b, int(i)) for (a, b, _), i in zip(expected, ids, strict=True)]
        assert edge.block_ids().tolist() == [block for _, _, block in expected]
        assert edge.token_ids().tolist() == [t for a, b, _ in expected for t in (a, b)]
    assert content(edge) == expected


@pytest.mark.parametrize("differing", [0, 1, 7, PIECE_BLOCKS - 1, PIECE_BLOCKS, 2600, None])
def test_the_common_part_ends_at_the_block_that_differs(differing: int | None) -> None:
    rng = random.Random(1)
    edge, count = Edge(PieceShop(BLOCK)), 2700
    filled(edge, rng, count, 10)
    tokens = np.concatenate([edge.block_tokens(i) for i in range(count)])
    if differing is not None:
        tokens[differing * BLOCK + 1] += 1
    table = np.full(count, -1, dtype=np.int32)
    common = edge.common(0, tokens, 0, count, table)
    assert common == (count if differing is None else differing)
    assert table[:common].tolist() == list(range(10, 10 + common))
    assert (table[common:] == -1).all(), "ids beyond the common part"


def test_the_common_part_may_begin_and_end_anywhere() -> None:
    edge = Edge(PieceShop(BLOCK))
    filled(edge, random.Random(2), 2000, 0)
    prompt = np.concatenate([edge.block_tokens(i) for i in range(2000)])
    table = np.zeros(2100, dtype=np.int32)
    shifted = np.concatenate([np.zeros(5 * BLOCK, dtype=np.int32), prompt])
    assert edge.common(1000, shifted, 1005, 1500, table) == 495
    assert table[1005:1500].tolist() == list(range(1000, 1495))


def test_pieces_given_back_are_used_again() -> None:
    shop = PieceShop(BLOCK)
    edge = Edge(shop)
    filled(edge, random.Random(3), 3 * PIECE_BLOCKS, 0)
    before = shop.num_bytes
    edge.trim(2 * PIECE_BLOCKS)
    filled(edge, random.Random(4), 2 * PIECE_BLOCKS, 0)
    assert shop.num_bytes == before


def test_spare_pieces_are_bounded() -> None:
    shop = PieceShop(BLOCK)
    edge = Edge(shop)
    filled(edge, random.Random(3), 100 * PIECE_BLOCKS, 0)
    full = shop.num_bytes
    edge.trim(100 * PIECE_BLOCKS)
    assert shop.num_bytes < full / 5


def test_a_block_beyond_the_end_is_an_error() -> None:
    edge = Edge(PieceShop(BLOCK))
    filled(edge, random.Random(0), 3, 0)
    with pytest.raises(IndexError):
        edge.block_tokens(3)
