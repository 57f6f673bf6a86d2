"""Tables of a vocabulary: what closes comes before what goes on, before what opens."""

from pathlib import Path

import numpy as np
import pytest

from runtime.grammar.closing_tables import ClosingTables, allowed
from runtime.tokenizer import Tokenizer
from tests.support.grammars import small_tokenizer
from tests.support.vocabularies import vocabulary


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tables(tokenizer: Tokenizer) -> ClosingTables:
    return ClosingTables(tokenizer)


def pieces(tokenizer: Tokenizer, ids: np.ndarray) -> list[bytes]:
    return [tokenizer.token_bytes(int(token)) for token in ids]


def test_every_table_holds_what_its_name_says(tokenizer: Tokenizer, tables: ClosingTables) -> None:
    assert {b"}", b"]"} <= set(pieces(tokenizer, tables.structure))
    assert all(p.lstrip()[:1] in (b",", b":") for p in pieces(tokenizer, tables.separators))
    assert {b"{", b"["} <= set(pieces(tokenizer, tables.brackets))
    assert all(p.lstrip()[:1] == b'"' for p in pieces(tokenizer, tables.quotes))
    assert pieces(tokenizer, tables.closes_string)[0][:1] == b'"'
    words = (b"0", b"1", b"null", b"true", b"false")
    literals = pieces(tokenizer, tables.literals)
    assert all(any(w.startswith(p) for w in words) for p in literals)
    special = set(tokenizer.specials.values())
    for ids in (tables.structure, tables.separators, tables.brackets, *tables.long_pieces):
        assert not special & set(ids.tolist())


def test_what_closes_more_comes_first(tokenizer: Tokenizer, tables: ClosingTables) -> None:
    closers = pieces(tokenizer, tables.structure)
    closed = [sum(p.count(c) for c in (b"}", b"]")) for p in closers if b"{" not in p]
    assert closed[0] >= 1
    assert not any(p.strip() in (b"{", b"[", b",", b":") for p in closers)


def test_of_a_table_the_first_tokens_that_a_mask_allows_are_taken(
    tokenizer: Tokenizer, tables: ClosingTables
) -> None:
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.int32)
    wanted = tables.single_bytes[2][[1, 4, 5]].tolist()
    for token in wanted:
        row.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
    assert allowed(row, tables.single_bytes[2], 2) == tuple(wanted[:2])
    assert allowed(row, tables.single_bytes[2], 9) == tuple(wanted)
    assert allowed(row, tables.brackets, 9) == ()


def test_half_written_characters_and_numbers_have_repairs(
    tokenizer: Tokenizer, tables: ClosingTables
) -> None:
    after_minus = [tokenizer.token_bytes(way[0]) for way in tables.repairs[ord("-")]]
    assert after_minus == [b"0"]
    assert max(len(way) for way in tables.repairs[0xF0]) == 3


def test_long_pieces_come_first_and_signs_last(tokenizer: Tokenizer, tables: ClosingTables) -> None:
    ids = [t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) in (b"-", b"7")]
    ordered = sorted(ids, key=tables.candidate_order)
    assert pieces(tokenizer, np.array(ordered))[-1] == b"-"


def test_the_way_into_one_more_element_comes_behind_what_closes_this_one(tmp_path: Path) -> None:
    shipped = vocabulary("shipped", tmp_path)
    quotes = pieces(shipped, ClosingTables(shipped).quotes)
    assert quotes.index(b'"') < quotes.index(b'", "')
    assert quotes.index(b'"]') < quotes.index(b'", "')
