"""Rows of a step: what each may draw, and what it knows was said."""

from typing import Any

import numpy as np
import pytest

from runtime.engine.step_rows import StepRows
from runtime.grammar.mask_bits import MaskRow
from runtime.grammar.state import GrammarState
from runtime.messages import SamplingParams
from runtime.scheduling.sequence import Sequence, TokenBuffer
from runtime.scheduling.step_plan import Chunk
from runtime.tokenizer import Tokenizer
from tests.support.drafts import draft_of
from tests.support.grammars import compiler, encode, small_tokenizer
from tests.support.requests import make_request
from tools_api.grammar import GrammarSpec

PROMPT = [5, 6, 7]


def chunk_of(
    tokenizer: Tokenizer,
    *,
    draft: list[int],
    forced: tuple[int, ...] = (),
    grammar: GrammarSpec | None = None,
    said: tuple[int, ...] = (),
    limit: int = 40,
    banned: tuple[int, ...] = (),
    **sampling: float,
) -> Chunk:
    request = make_request(
        PROMPT,
        max_new_tokens=limit,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        banned_tokens=banned,
    )
    sequence = Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)
    if grammar is not None:
        sequence.grammar = GrammarState(compiler(tokenizer).compile(grammar), tokenizer)
    for token in said:
        sequence.buffer.append(token)
        if sequence.grammar is not None:
            sequence.grammar.advance([token])
    length = len(sequence.buffer)
    return Chunk(sequence, 0, length, samples=True, draft=draft_of(draft, forced))


def allowed(mask: MaskRow | None, vocab_size: int) -> set[int]:
    if mask is None:
        return set(range(vocab_size))
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:vocab_size]).tolist())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_each_draft_token_adds_a_row_that_knows_what_came_before(tokenizer: Tokenizer) -> None:
    chunk = chunk_of(tokenizer, draft=[21, 22], said=(9,), repetition_penalty=1.5)
    rows = StepRows(tokenizer.vocab_size).rows([chunk])
    assert [row.position for row in rows] == [4, 5, 6]
    assert [list(row.emitted) for row in rows if row.emitted is not None] == [
        [9],
        [9, 21],
        [9, 21, 22],
    ]
    assert [row.mask for row in rows] == [None, None, None]


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_what_was_said_is_told_where_a_penalty_asks_for_it(tokenizer: Tokenizer, name: str) -> None:
    penalty: dict[str, Any] = {name: 1.5}
    chunk = chunk_of(tokenizer, draft=[], said=(9, 8), **penalty)
    (row,) = StepRows(tokenizer.vocab_size).rows([chunk])
    assert row.emitted is not None
    assert row.emitted.tolist() == [9, 8]
    (row,) = StepRows(tokenizer.vocab_size).rows([chunk_of(tokenizer, draft=[])])
    assert row.emitted is None


def test_masks_follow_the_draft_and_leave_the_turn_where_it_is(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec(lark="start: /[ab][cd][ef]/")
    draft = encode(tokenizer, "a") + encode(tokenizer, "d")
    chunk = chunk_of(tokenizer, draft=draft, grammar=spec)
    for _ in range(2):
        rows = StepRows(tokenizer.vocab_size).rows([chunk])
        letters = [
            {tokenizer.token_bytes(t)[:1] for t in allowed(row.mask, tokenizer.vocab_size)}
            for row in rows
        ]
        assert letters == [{b"a", b"b"}, {b"c", b"d"}, {b"e", b"f"}]


def test_a_forced_draft_token_has_no_row_and_no_logits(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec(lark='start: /[ab]/ "-" /[cd]/')
    draft = [t for letter in "a-d" for t in encode(tokenizer, letter)]
    chunk = chunk_of(tokenizer, draft=draft, forced=(1,), grammar=spec)
    assert chunk.row_offsets() == (0, 2, 3)
    rows = StepRows(tokenizer.vocab_size).rows([chunk])
    assert [row.position for row in rows] == [3, 5, 6]
    plain = chunk_of(tokenizer, draft=draft, grammar=spec)
    everywhere = StepRows(tokenizer.vocab_size).rows([plain])
    for row, same in zip(rows, [everywhere[n] for n in (0, 2, 3)], strict=True):
        assert row.position == same.position
        assert np.array_equal(row.mask, same.mask)  # type: ignore[arg-type]


def test_a_part_that_draws_nothing_has_no_rows(tokenizer: Tokenizer) -> None:
    chunk = chunk_of(tokenizer, draft=[])
    chunk.samples = False
    assert chunk.row_offsets() == ()
    assert StepRows(tokenizer.vocab_size).rows([chunk]) == []


def test_where_no_grammar_binds_only_banned_tokens_are_out(tokenizer: Tokenizer) -> None:
    everything = set(range(tokenizer.vocab_size))
    rows = StepRows(tokenizer.vocab_size)
    for banned in [(0, 31, 32, 100), (0,), (0, 31, 32, 100), ()]:
        chunk = chunk_of(tokenizer, draft=[], banned=banned)
        (row,) = rows.rows([chunk])
        assert allowed(row.mask, tokenizer.vocab_size) == everything - set(banned)


def test_a_call_is_not_opened_where_it_would_not_fit(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec(lark='start: "twelve bytes" </tool_call>', trigger="<tool_call>")
    trigger = tokenizer.special_id("<tool_call>")
    open_until = []
    for limit in (40, 2):
        chunk = chunk_of(tokenizer, draft=[], grammar=spec, limit=limit)
        (row,) = StepRows(tokenizer.vocab_size).rows([chunk])
        open_until.append(trigger in allowed(row.mask, tokenizer.vocab_size))
    assert open_until == [True, False]
