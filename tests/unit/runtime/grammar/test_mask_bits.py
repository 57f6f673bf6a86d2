"""Packed masks: bits are where they are said to be."""

import random

import numpy as np
import pytest

from runtime.grammar.mask_bits import mask_words, only_bit, set_bit


@pytest.mark.parametrize(
    ("vocab_size", "words"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)]
)
def test_a_mask_has_a_bit_for_every_token(vocab_size: int, words: int) -> None:
    assert mask_words(vocab_size) == words


@pytest.mark.parametrize("token", [0, 1, 31, 32, 63, 95])
def test_the_one_allowed_token_is_found_again(token: int) -> None:
    row = np.zeros(mask_words(96), dtype=np.int32)
    assert only_bit(row) is None
    set_bit(row, token)
    assert only_bit(row) == token
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [token]


@pytest.mark.parametrize("seed", range(20))
def test_of_two_tokens_neither_is_the_only_one(seed: int) -> None:
    row = np.zeros(mask_words(200), dtype=np.int32)
    for token in random.Random(seed).sample(range(200), 2):
        set_bit(row, token)
    assert only_bit(row) is None
