"""How a chain grows: votes taken or left, forced runs between them, and where it ends."""

from collections.abc import Callable

import numpy as np
import pytest

from runtime.drafting.chain import Chain
from runtime.drafting.sources import BranchTexts, Source, TenantMemory
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.scheduling.draft import DraftSource
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, decode, encode, small_tokenizer
from tools_api.grammar import GrammarSpec

END = 9


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def text(tokens: TokenArray) -> Source:
    return BranchTexts(max_bytes=1 << 22).source("s", tokens)


def grown(
    tokens: TokenArray,
    grammar: GrammarState | None = None,
    *,
    limit: int = 16,
    sources: list[Source] | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Chain:
    """A chain that took every vote; each cost a tenth of its chances."""
    chain = Chain(tokens, grammar, limit, frozenset({END}))
    for vote in chain.votes([text(tokens)] if sources is None else sources, may_go_on):
        chain.add(vote, 0.9 * chain.survival)
    return chain


def test_a_chain_is_what_was_added_to_it() -> None:
    chain = grown(array(1, 2, 3, 4, 5, 1, 2), limit=3)
    draft = chain.draft()
    assert draft.tokens.tolist() == [3, 4, 5]
    assert draft.sources == (DraftSource.SESSION,) * 3
    assert draft.survival == pytest.approx((0.9, 0.81, 0.729))
    assert [(place, vote.token) for place, vote in chain.added] == [(0, 3), (1, 4), (2, 5)]


def test_a_vote_that_is_left_leaves_no_trace() -> None:
    tokens = array(1, 2, 3, 4, 5, 1, 2)
    chain = Chain(tokens, None, 16, frozenset({END}))
    next(chain.votes([text(tokens)], lambda: True))
    assert chain.is_empty
    assert chain.survival == 1.0
    assert len(chain.draft().tokens) == 0


def test_a_chain_ends_with_the_turn_and_where_nobody_votes() -> None:
    assert grown(array(1, 2, 3, END, 4, 1, 2)).draft().tokens.tolist() == [3, END]
    assert grown(array(1, 2, 3, 4)).is_empty


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_chain_ends_when_it_may_not_go_on(answers: int) -> None:
    asked = iter([True] * answers + [False])
    chain = grown(array(1, 2, 3, 4, 5, 6, 7, 1, 2), may_go_on=lambda: next(asked))
    assert chain.draft().tokens.tolist() == [3, 4, 5][:answers]


def test_where_one_text_ends_the_next_one_goes_on() -> None:
    memory = TenantMemory(max_bytes=1 << 22)
    memory.remember("t", array(3, 4, 77, 78))
    source = memory.source("t")
    assert source is not None
    tokens = array(50, 1, 2, 3, 4, END + 1, 60, 1, 2, 3)
    session = text(tokens[:5])
    draft = grown(tokens, sources=[session, source]).draft()
    assert draft.tokens.tolist() == [4, 77, 78]
    assert draft.sources == (DraftSource.SESSION, DraftSource.MEMORY, DraftSource.MEMORY)


def test_a_chain_stays_with_the_text_that_it_follows() -> None:
    memory = TenantMemory(max_bytes=1 << 22)
    memory.remember("t", array(2, 3, 7, 77, 78))
    source = memory.source("t")
    assert source is not None
    tokens = array(7, 77, 60, 61, 2, 3)  # the session goes on otherwise behind 7, 77
    draft = grown(tokens, sources=[text(tokens), source]).draft()
    assert draft.tokens.tolist() == [7, 77, 78]


def test_forced_runs_are_filled_in_and_what_is_not_legal_is_passed_over(
    tokenizer: Tokenizer,
) -> None:
    grammar = compiler(tokenizer).compile(GrammarSpec(lark='start: "ab" /[xyz]/ "cd" /[xyz]/ "e"'))
    state = GrammarState(grammar, tokenizer)
    history = encode(tokenizer, ";abQ;abQ;abycdze;")
    draft = grown(array(*history), state, limit=100).draft()
    assert decode(tokenizer, draft.tokens.tolist()).startswith("abycdze")
    kinds = [source is DraftSource.FORCED for source in draft.sources]
    places = [len(encode(tokenizer, "ab")), len(encode(tokenizer, "abycd"))]
    assert kinds[: len(encode(tokenizer, "abycdze"))].count(False) == 2
    assert [kinds[place] for place in places] == [False, False]
    assert draft.survival[0] == 1.0, "what is forced costs no chances"
    assert draft.survival[-1] == pytest.approx(0.81)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_forced_run_is_cut_at_the_limit_and_moves_no_state_but_its_own(
    tokenizer: Tokenizer, limit: int
) -> None:
    grammar = compiler(tokenizer).compile(GrammarSpec(lark='start: "abcdefgh" /[xyz]+/'))
    state = GrammarState(grammar, tokenizer)
    run = state.forced_tokens(100)
    assert len(run) >= 3
    draft = grown(array(*encode(tokenizer, "zzz")), state, limit=limit).draft()
    assert draft.tokens.tolist() == run[:limit]
    assert state.forced_tokens(100) == run
