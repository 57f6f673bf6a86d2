"""How places of a text vote for the next token, and how they are followed."""

import numpy as np
import pytest

from runtime.drafting.ngram_index import MAX_MATCH
from runtime.drafting.sources import BREAK, BranchTexts, Source, TenantMemory
from runtime.drafting.votes import Vote, Walk
from runtime.messages import TokenArray
from runtime.scheduling.draft import DraftSource


def array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def text(*tokens: int) -> Source:
    return BranchTexts(max_bytes=1 << 22).source("s", array(*tokens))


def anything(_token: int) -> bool:
    return True


def voted(walk: Walk | None) -> Vote:
    assert walk is not None
    vote = walk.vote(anything)
    assert vote is not None
    return vote


def test_a_walk_begins_where_the_text_stands_like_the_context() -> None:
    source = text(1, 2, 3, 4, 5, 6)
    vote = voted(Walk.begin(source, array(9, 2, 3)))
    assert (vote.token, vote.length, vote.source) == (4, 2, DraftSource.SESSION)
    assert Walk.begin(source, array(3, 2)) is None


def test_most_places_decide() -> None:
    places = [3, 6, 9]  # 5, 7 and 5 follow
    vote = voted(Walk(text(1, 1, 1, 5, 1, 1, 7, 1, 1, 5), 2, places))
    assert vote.token == 5
    assert vote.probability == pytest.approx(2 / 3.3 * (1 - 1 / 4))


def test_what_is_not_legal_has_no_votes() -> None:
    walk = Walk(text(5, 5, 7), 2, [0, 1, 2])
    vote = walk.vote(lambda token: token == 7)
    assert vote is not None
    assert vote.token == 7
    assert vote.probability == pytest.approx(1 / 1.3 * (1 - 1 / 4))
    assert walk.vote(lambda _token: False) is None


def test_longer_matches_are_trusted_more() -> None:
    source = text(1, 2, 3)
    chances = [voted(Walk(source, length, [2])).probability for length in (2, 4, 8, 32)]
    assert chances == sorted(set(chances))
    assert chances[0] < 0.6 < 0.76 < chances[-1] < 1


def test_the_end_of_an_output_is_no_token() -> None:
    memory = TenantMemory(max_bytes=1 << 22)
    memory.remember("t", array(1, 2, 3))
    source = memory.source("t")
    assert source is not None
    assert source.tokens[3] == BREAK
    assert Walk(source, 2, [3]).vote(anything) is None


def test_a_walk_follows_the_places_that_go_on_as_was_chosen() -> None:
    source = text(1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 8)
    walk = Walk(source, 2, [2, 6, 10])
    behind = walk.follow([5])
    vote = voted(behind)
    assert (vote.token, vote.length) == (6, 3)
    assert vote.probability < 0.5, "6 and 7 have one place each"
    assert behind is not None
    assert voted(behind.follow([7])).token == 1
    assert voted(walk.follow([5, 7])).length == 4
    assert walk.follow([9]) is None
    assert walk.follow([8]) is None, "the text ends there"


def test_the_length_of_a_match_that_is_followed_is_bounded() -> None:
    source = text(*range(100))
    walk = Walk(source, MAX_MATCH - 1, [0])
    assert voted(walk.follow(range(5))).length == MAX_MATCH
