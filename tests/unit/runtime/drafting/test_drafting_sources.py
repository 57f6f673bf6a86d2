"""What the texts to copy from hold, and what they forget."""

import numpy as np

from runtime.drafting.sources import BREAK, BranchTexts, TenantMemory
from runtime.messages import TokenArray
from runtime.scheduling.draft import DraftSource


def array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def follows(texts: BranchTexts, session: str, tokens: TokenArray) -> list[int]:
    """What followed the last tokens of a session's transcript where they stood before."""
    source = texts.source(session, tokens)
    matches = source.index.match(source.tokens, tokens)
    return [] if matches is None else source.tokens[matches.next_positions].tolist()


def test_a_sessions_text_is_its_transcript_and_grows_with_it() -> None:
    texts = BranchTexts(max_bytes=1 << 22)
    first = texts.source("s", array(1, 2, 3, 1, 2))
    assert first.tokens.tolist() == [1, 2, 3, 1, 2]
    assert first.kind is DraftSource.SESSION
    assert len(first.index) == 5
    later = texts.source("s", array(1, 2, 3, 1, 2, 3, 1))
    assert later.index is first.index
    assert len(later.index) == 7


def test_the_index_idle_longest_is_dropped_and_made_again() -> None:
    size = BranchTexts(max_bytes=0).source("s", array(1, 2)).index.num_bytes
    texts = BranchTexts(max_bytes=2 * size)
    tokens = array(1, 2, 3, 4, 5, 1, 2, 3)
    made = {}
    for session in ("a", "b", "a", "c", "a", "b"):
        index = texts.source(session, tokens).index
        assert follows(texts, session, tokens) == [4]
        assert texts.num_bytes == min(len(made | {session: index}), 2) * size
        again = session in made and made[session] is index
        assert again is (session == "a" and "a" in made)
        made[session] = index


def test_a_session_that_is_alone_keeps_its_index_however_long_it_is() -> None:
    texts = BranchTexts(max_bytes=0)
    index = texts.source("s", array(1, 2, 3)).index
    assert texts.source("s", array(1, 2, 3, 4)).index is index


def test_a_transcript_that_was_cut_is_indexed_anew() -> None:
    texts = BranchTexts(max_bytes=1 << 22)
    texts.source("s", array(1, 2, 3, 4, 5, 1, 2, 3))
    assert follows(texts, "s", array(1, 2, 30, 31, 40, 30, 31)) == [40]


def test_closing_a_session_frees_its_index() -> None:
    texts = BranchTexts(max_bytes=1 << 22)
    texts.source("s", array(1, 2, 3, 4, 1, 2))
    assert texts.num_bytes > 0
    texts.close("s")
    texts.close("unknown")
    assert texts.num_bytes == 0


def test_a_tenants_outputs_stand_one_behind_the_other_with_breaks() -> None:
    memory = TenantMemory(max_bytes=1 << 22)
    memory.remember("t", array(1, 2, 3))
    memory.remember("other", array(7))
    memory.remember("t", array(4, 5))
    source = memory.source("t")
    assert source is not None
    assert source.tokens.tolist() == [1, 2, 3, BREAK, 4, 5, BREAK]
    assert source.kind is DraftSource.MEMORY
    assert memory.source("nobody") is None


def test_memory_keeps_the_newest_within_its_bounds() -> None:
    memory = TenantMemory(max_bytes=1 << 20, max_tenant_tokens=4096)
    for number in range(3000):
        memory.remember("t", np.arange(number * 10, number * 10 + 10, dtype=np.int32))
    assert memory.num_bytes <= 1 << 20
    newest = memory.source("t")
    assert newest is not None
    assert len(newest.tokens) <= 4096
    assert 29_999 in newest.tokens
    assert 5 not in newest.tokens


def test_the_tenant_that_was_quiet_longest_goes_first() -> None:
    memory = TenantMemory(max_bytes=100_000, max_tenant_tokens=4096)
    for name in ("a", "b", "c", "d"):
        memory.remember(name, np.arange(600, dtype=np.int32))
        memory.remember("a", array(1, 2, 3))
    assert memory.num_bytes <= 100_000
    assert memory.source("a") is not None
    assert memory.source("b") is None
