"""The index against a search through the whole text."""

import numpy as np
import pytest

from runtime.drafting.ngram_index import MAX_MATCH, ORDERS, NgramIndex, TokenArray

LATEST = 16
"""Hits that are looked at, as the module bounds them."""


def text(seed: int, length: int, words: int) -> TokenArray:
    """Random phrases over a few words, so that repetitions of all lengths occur."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, words, size=rng.integers(1, 20)) for _ in range(12)]
    parts = [phrases[i] for i in rng.integers(0, len(phrases), size=length)]
    return np.concatenate(parts)[:length].astype(np.int32)


def longest_by_search(tokens: TokenArray, context: TokenArray) -> tuple[int, list[int]]:
    """The same rules, slowly: the longest order whose latest hits are looked at."""
    wanted = context[-MAX_MATCH:].tolist()
    known = tokens.tolist()
    for order in ORDERS:
        if len(wanted) < order:
            continue
        ends = [
            end
            for end in range(len(known) - 1, order - 2, -1)
            if known[end - order + 1 : end + 1] == wanted[-order:]
        ][:LATEST]
        ends = [end for end in ends if end < len(known) - 1]
        if not ends:
            continue

        def agreeing(end: int) -> int:
            count = 0
            while count < min(len(wanted), end + 1) and known[end - count] == wanted[-1 - count]:
                count += 1
            return count

        best = max(map(agreeing, ends))
        return best, [end + 1 for end in ends if agreeing(end) == best]
    return 0, []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("words", [20, 100, 5000])
def test_finds_what_a_search_through_the_whole_text_finds(seed: int, words: int) -> None:
    tokens = text(seed, 900, words)
    index = NgramIndex()
    rng = np.random.default_rng(seed)
    length = 0
    while length < len(tokens):
        length = min(len(tokens), length + int(rng.choice([1, 1, 2, 7, 40, 300])))
        index.extend(tokens[:length])
        assert len(index) == length
        context = tokens[:length]
        if rng.random() < 0.5:  # a context that goes on beyond the text
            context = np.concatenate((context, tokens[: rng.integers(1, 9)]))
        longest, places = longest_by_search(tokens[:length], context)
        found = index.match(tokens[:length], context)
        assert (0 if found is None else found.length) == longest
        if found is not None:
            # A collision of hashes takes the place of a hit now and then.
            assert 0 <= len(places) - len(found.next_positions) <= 2
            assert set(found.next_positions.tolist()) <= set(places)


def test_a_long_text_is_indexed_bit_by_bit_and_in_the_end_wholly() -> None:
    tokens = np.arange(9000, dtype=np.int32)
    index = NgramIndex()
    lengths = []
    while len(index) < len(tokens):
        index.extend(tokens)
        lengths.append(len(index))
    assert lengths[0] == 2048
    assert lengths == sorted(lengths)
    found = index.match(tokens, tokens[4000:4020])
    assert found is not None
    assert found.length == 20
    assert found.next_positions.tolist() == [4020]


def test_growth_keeps_what_was_found() -> None:
    tokens = text(2, 5000, 5000)
    index = NgramIndex()
    for length in range(100, len(tokens) + 1, 100):
        for _ in range(4):
            index.extend(tokens[:length])
        assert len(index) == length
        assert index.match(tokens[:length], tokens[20:40]) is not None


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_short_texts_have_no_matches(length: int) -> None:
    tokens = np.arange(length, dtype=np.int32)
    index = NgramIndex()
    index.extend(tokens)
    assert index.match(tokens, tokens) is None


def test_a_break_is_found_by_no_context() -> None:
    tokens = np.array([5, 6, 7, -1, 5, 6, -1], dtype=np.int32)
    index = NgramIndex()
    index.extend(tokens)
    found = index.match(tokens, np.array([5, 6], dtype=np.int32))
    assert found is not None
    assert sorted(tokens[found.next_positions].tolist()) == [-1, 7]
    assert index.match(tokens, np.array([7, 5], dtype=np.int32)) is None
