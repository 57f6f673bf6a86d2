"""How few tokens a text can have is never more than it has."""

import random
from typing import Any

import pytest

from runtime.text_encoder import TextEncoder
from runtime.token_bound import TokenBound
from runtime.tokenizer import Tokenizer
from tests.support.pre_tokenizers import some_text
from tests.support.tokenizers import (
    byte_level_json,
    sentencepiece_json,
    shipped_json,
    write_tokenizer,
)

COMPOSED = ["e\u0301", "\u212b", "\U0001d400", "\uff11", "\u1100\u1161"]
RUNS = [*" \n-─字\0a1😀", " a", "{}[]();,.", "\u2581", *COMPOSED]
NORMALIZERS: dict[str, dict[str, Any]] = {
    "nfc": {"type": "NFC"},
    "nfkc": {"type": "NFKC"},
    "lower case": {"type": "Lowercase"},
    "nothing left": {"type": "Strip", "strip_left": True, "strip_right": True},
    "both": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFKC"}]},
}


def loaded(folder: Any, raw: dict[str, Any], model_type: str = "qwen3") -> Tokenizer:
    return Tokenizer.load(write_tokenizer(folder, raw), model_type=model_type)


def encoder_of(tokenizer: Tokenizer) -> TextEncoder:
    return tokenizer.text_encoder


def check(tokenizer: Tokenizer, text: str) -> None:
    most = len(encoder_of(tokenizer).encode(text))
    assert tokenizer.least_tokens(text) <= most, text[:50]
    assert len(text.encode()) // tokenizer.most_bytes_per_token <= most, text[:50]


@pytest.mark.samples(2)
@pytest.mark.parametrize("shape", ["shipped", "byte level", "sentencepiece", *NORMALIZERS])
def test_no_text_has_fewer_tokens(shape: str, tmp_path: Any) -> None:
    if shape == "sentencepiece":
        tokenizer = loaded(tmp_path, sentencepiece_json(), "mistral")
    elif shape == "shipped":
        tokenizer = loaded(tmp_path, shipped_json())
    else:
        raw = byte_level_json() | {"normalizer": NORMALIZERS.get(shape)}
        tokenizer = loaded(tmp_path, raw)
    for run in RUNS:
        check(tokenizer, run)
        check(tokenizer, f"x{run * 10_000}y{run * 9_000}")
    for seed in range(30):
        text = some_text(random.Random(seed))
        check(tokenizer, text)
        check(tokenizer, text * 500)


def test_a_run_is_bound_by_what_is_a_run_itself() -> None:
    pieces = [bytes([value]) for value in range(256)] + [b" " * 8, b"\n" + b" " * 90, b"a b c d "]
    bound = TokenBound(pieces, None, metaspace=False)
    assert bound.most_bytes == 91
    assert 100_000 // 8 - 30 < bound.least(" " * 100_000) <= 100_000 // 8
    assert 100_000 - 200 < bound.least("-" * 100_000) <= 100_000
    assert bound.least("ab" * 50_000) == 50_000


def test_a_run_of_a_character_of_several_bytes_may_be_cut_inside_of_it() -> None:
    pieces = [bytes([value]) for value in range(256)] + ["─".encode() * 2, "─".encode()[1:]]
    bound = TokenBound(pieces, None, metaspace=False)
    assert 50_000 - 10 < bound.least("─" * 100_000) <= 50_000


def test_what_a_normalizer_may_drop_is_bound_by_nothing() -> None:
    bound = TokenBound([b"a", b" "], {"type": "Strip"}, metaspace=False)
    assert bound.least(" " * 1_000_000) == 0


@pytest.mark.parametrize("text", ["", "a", "\ud83d" * 10_000])
def test_any_text_has_a_bound(text: str) -> None:
    bound = TokenBound([b"a"], None, metaspace=False)
    assert bound.least(text) == len(text.encode("utf-8", "surrogatepass"))
