"""What is drafted, from where, and how the drafter learns whether it pays."""

import json
import random
from typing import Any

import numpy as np
import pytest

from runtime.drafting.drafter import InterleavedDrafter
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.scheduling.draft import Draft, DraftSource
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, decode, encode, mask_of, schema_spec, small_tokenizer

END = 9
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["express", "standard"]},
        "order": {"type": "string"},
        "count": {"type": "integer"},
    },
    "required": ["kind", "order", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def drafter(**options: Any) -> InterleavedDrafter:
    bounds = {"max_index_bytes": 1 << 22, "max_memory_bytes": 1 << 22} | options
    return InterleavedDrafter(end_of_turn_ids=frozenset({END}), **bounds)


def propose(
    source: InterleavedDrafter,
    tokens: TokenArray,
    grammar: GrammarState | None = None,
    *,
    session: str = "s",
    tenant: str = "t",
    limit: int = 16,
) -> Draft:
    return source.propose(session, tenant, tokens, grammar, limit)


def test_copies_what_followed_the_same_tokens_before() -> None:
    tokens = array(1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 1, 2, 3, 4)
    draft = propose(drafter(), tokens, limit=3)
    assert draft.tokens.tolist() == [5, 6, 7]
    assert set(draft.sources) == {DraftSource.SESSION}
    assert list(draft.survival) == sorted(draft.survival, reverse=True)
    assert all(0 < p < 1 for p in draft.survival)


def test_nothing_is_drafted_where_nothing_repeats() -> None:
    assert len(propose(drafter(), array(*range(100, 200))).tokens) == 0
    assert len(propose(drafter(), array(1)).tokens) == 0
    assert len(propose(drafter(), array(1, 2, 1, 2), limit=0).tokens) == 0


def test_the_majority_of_the_longest_matches_decides() -> None:
    tokens = array(7, 1, 2, 5, 7, 1, 2, 5, 7, 1, 2, 6, 8, 1, 2, 6, 7, 1, 2)
    assert propose(drafter(), tokens, limit=1).tokens.tolist() == [5]


def test_a_draft_ends_with_the_turn() -> None:
    tokens = array(1, 2, 3, 4, END, 30, 31, 32, 1, 2, 3)
    assert propose(drafter(), tokens).tokens.tolist() == [4, END]


def test_a_draft_ends_where_it_is_more_likely_wrong_than_worth_it() -> None:
    half = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4]
    assert len(propose(drafter(min_survival=0.5), array(*half)).tokens) == 0
    assert len(propose(drafter(min_survival=0.25), array(*half), limit=1).tokens) == 1


@pytest.mark.parametrize("seed", range(10))
def test_drafts_stay_within_the_grammar_and_forced_runs_are_filled_in(
    tokenizer: Tokenizer, seed: int
) -> None:
    rng = random.Random(seed)
    grammar = compiler(tokenizer).compile(schema_spec(SCHEMA))
    calls = [
        {"kind": rng.choice(["express", "standard"]), "order": f"A{n}B", "count": n}
        for n in (17, 23, 42)
    ]
    history = " ".join(f"order {call['order']} is {json.dumps(call)}." for call in calls)
    tokens = [*encode(tokenizer, history), END + 1000]
    source = drafter()
    state = GrammarState(grammar, tokenizer)
    copied = forced = 0
    while not state.ended:
        draft = propose(source, array(*tokens), state)
        walk = state.copy()
        for token, kind in zip(draft.tokens.tolist(), draft.sources, strict=True):
            assert token in mask_of(walk, tokenizer)
            if kind is DraftSource.FORCED:
                assert mask_of(walk, tokenizer) == [token]
                forced += 1
            else:
                copied += 1
            walk.advance([token])
        assert mask_of(state, tokenizer), "the state itself was not moved"
        emitted = draft.tokens.tolist() or [rng.choice(mask_of(state, tokenizer))]
        state.advance(emitted)
        tokens += emitted
    assert copied > 0
    assert forced > 0


def test_a_chain_goes_on_behind_the_forced_run(tokenizer: Tokenizer) -> None:
    grammar = compiler(tokenizer).compile(schema_spec(SCHEMA))
    call = '{"kind": "express", "order": "A17B", "count": 3}'
    tokens = encode(tokenizer, f"{call} again ")
    state = GrammarState(grammar, tokenizer)
    run = state.forced_tokens(100)
    state.advance(run)
    draft = propose(drafter(min_survival=0.01), array(*tokens, *run), state, limit=100)
    assert decode(tokenizer, run + draft.tokens.tolist()).startswith(call)
    assert set(draft.sources) == {DraftSource.FORCED, DraftSource.SESSION}


def test_memory_serves_the_tenants_other_sessions_and_no_other_tenant() -> None:
    source = drafter()
    source.remember("acme", array(1, 2, 3, 4, 5, 6))
    draft = propose(source, array(50, 51, 1, 2, 3), tenant="acme", limit=2)
    assert draft.tokens.tolist() == [4, 5]
    assert set(draft.sources) == {DraftSource.MEMORY}
    other = propose(source, array(50, 51, 1, 2, 3), tenant="other", session="o", limit=2)
    assert len(other.tokens) == 0


def test_one_output_does_not_lead_into_the_next() -> None:
    source = drafter()
    source.remember("t", array(1, 2, 3))
    source.remember("t", array(4, 5, 6))
    assert propose(source, array(1, 2)).tokens.tolist() == [3]


def test_the_session_comes_before_the_memory() -> None:
    source = drafter()
    source.remember("t", array(1, 2, 3, 77, 77))
    draft = propose(source, array(1, 2, 3, 4, 50, 51, 1, 2, 3), limit=1)
    assert draft.tokens.tolist() == [4]


def test_a_session_that_was_cut_starts_again() -> None:
    source = drafter()
    propose(source, array(1, 2, 3, 4, 5, 1, 2, 3))
    assert propose(source, array(1, 2, 8, 1, 2), limit=1).tokens.tolist() == [8]


def test_what_is_always_wrong_is_given_up_and_tried_again_now_and_then() -> None:
    source = drafter()
    tokens = array(1, 2, 3, 4, 50, 1, 2, 3)
    drafted = []
    for _ in range(600):
        draft = propose(source, tokens, limit=1)
        drafted.append(len(draft.tokens) > 0)
        source.verified("s", len(draft.tokens), 0)
    assert all(drafted[:10])
    last = sum(drafted[-128:])
    assert 0 < last <= 8, "a probe in 32 steps"


def test_what_is_always_right_is_trusted_more() -> None:
    source = drafter()
    tokens = array(1, 2, 3, 4, 5, 6, 50, 1, 2, 3)
    before = propose(source, tokens, limit=1).survival[0]
    for _ in range(200):
        draft = propose(source, tokens, limit=1)
        source.verified("s", 1, 1)
    assert draft.survival[0] > before


def test_tokens_behind_the_first_wrong_one_teach_nothing() -> None:
    one, other = drafter(), drafter()
    tokens = array(1, 2, 3, 4, 5, 6, 50, 1, 2, 3)
    for _ in range(20):
        propose(one, tokens, limit=1)
        one.verified("s", 1, 0)
        propose(other, tokens, limit=3)
        other.verified("s", 3, 0)
    first, second = propose(one, tokens, limit=1), propose(other, tokens, limit=1)
    assert first.survival == second.survival


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_chain_ends_when_its_time_is_over(answers: int) -> None:
    source = drafter()
    tokens = array(*([1, 2, 3, 4, 5, 6, 7, 8] * 3))
    asked = iter([True] * answers + [False] * 20)
    draft = source.propose("s", "t", tokens, None, 16, may_go_on=lambda: next(asked))
    whole = propose(drafter(), tokens)
    assert len(whole.tokens) > 3
    assert draft.tokens.tolist() == whole.tokens[:answers].tolist()


def test_a_session_that_was_closed_may_come_back_with_another_transcript() -> None:
    source = drafter()
    propose(source, array(1, 2, 3, 4, 5, 6, 7, 1, 2, 3))
    source.close("s")
    source.close("unknown")
    draft = propose(source, array(9, 9, 9, 20, 21, 22, 30, 20, 21, 22), limit=1)
    assert draft.tokens.tolist() == [30]


def test_what_a_closed_session_drafted_teaches_nothing() -> None:
    source = drafter()
    tokens = array(1, 2, 3, 4, 5, 6, 50, 1, 2, 3)
    before = propose(source, tokens, limit=1).survival
    for _ in range(20):
        source.close("s")
        source.verified("s", 1, 0)
        assert propose(source, tokens, limit=1).survival == before
