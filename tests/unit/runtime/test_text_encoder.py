"""The same ids, whoever cuts a text into words."""

import random
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
import tokenizers

from runtime import text_encoder
from runtime.text_encoder import TextEncoder, UnsplittableText
from tests.support.pre_tokenizers import (
    PRE_TOKENIZERS,
    SIGNS,
    byte_level,
    sequence,
    some_text,
    split,
)
from tests.support.tokenizers import (
    byte_level_json,
    sentencepiece_json,
    shipped_json,
    shipped_pattern,
)

NORMALIZERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "nfc": {"type": "NFC"},
    "nfkc and lower case": {
        "type": "Sequence",
        "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}],
    },
}


def encoder(raw: Mapping[str, Any], **changes: Any) -> TextEncoder:
    specials = frozenset(token["content"] for token in raw["added_tokens"])
    return TextEncoder({**raw, **changes}, specials)


def library(raw: Mapping[str, Any], **changes: Any) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(orjson.dumps({**raw, **changes}).decode())


@pytest.mark.samples(16)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_do_not_depend_on_who_cuts(name: str, normalizer: str) -> None:
    changes = {"pre_tokenizer": PRE_TOKENIZERS[name], "normalizer": NORMALIZERS[normalizer]}
    ours, theirs = encoder(byte_level_json(), **changes), library(byte_level_json(), **changes)
    for seed in range(20):
        text = some_text(random.Random(seed)) or "a"
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids, (seed, text)
        assert ours.encode_by_word(text) == ids, (seed, text)


@pytest.mark.parametrize("node", [None, {"type": "NFC"}])
def test_ids_of_sentencepiece_do_not_depend_on_it_either(node: Any) -> None:
    raw = sentencepiece_json() if node is None else sentencepiece_json() | {"normalizer": node}
    ours = encoder(raw)
    for seed in range(50):
        text = some_text(random.Random(seed)) or "a"
        assert ours.encode_by_word(text) == ours.encode(text), (seed, text)


def test_a_word_that_ignores_merges_is_taken_whole() -> None:
    raw = byte_level_json()
    raw["model"]["ignore_merges"] = True
    raw["model"]["vocab"]["\u0120" * 9] = max(raw["model"]["vocab"].values()) + 100
    ours = encoder(raw, added_tokens=[])
    text = " " * 9
    assert ours.encode(text) == ours.encode_by_word(text) == [raw["model"]["vocab"]["\u0120" * 9]]


@pytest.mark.parametrize("char", [*SIGNS, "{}[]();,.", " a"])
@pytest.mark.samples(3)
def test_a_run_that_the_library_takes_has_the_ids_that_it_gives(char: str) -> None:
    """As long as the library's own limit allows for the shipped model's expression."""
    ours, theirs = encoder(shipped_json()), library(shipped_json())
    text = f"x{char * 160_000}y"[:160_000]
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("char", [" ", "\t", "-", "字", "\0", " a"])
def test_a_run_of_half_a_million_has_the_ids_of_its_beginning_and_its_end(char: str) -> None:
    """Which the library gives up on. A run's ids repeat in its middle: what a thousand characters
    more add is the same everywhere."""
    ours = encoder(shipped_json())
    short, longer, long = (
        ours.encode(f"x{char * length}y") for length in (10_000, 11_000, 500_000)
    )
    added = len(longer) - len(short)
    assert len(long) == len(short) + 490 * added
    assert long[:5_000] == short[:5_000]
    assert long[-5_000:] == short[-5_000:]


def test_where_the_library_gives_up_unforeseen_its_words_are_cut_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = encoder(shipped_json())
    text = "\t" * 600_000
    seen = ours.encode(text)
    monkeypatch.setattr(text_encoder, "_LONG_WORD", 10**9)
    assert ours.encode(text) == seen


def test_what_nobody_can_cut_is_unsplittable_and_harms_nothing() -> None:
    node = sequence(split(shipped_pattern() + r"|\bx"), byte_level())
    ours = encoder(byte_level_json(), pre_tokenizer=node)
    with pytest.raises(UnsplittableText, match="a run of characters"):
        ours.encode("\t" * 600_000)
    assert ours.encode("a b") == library(byte_level_json(), pre_tokenizer=node).encode("a b").ids


def test_no_text_has_no_ids() -> None:
    assert encoder(byte_level_json()).encode("") == []
