"""Words of a text are those that the library cuts, for every step that cuts."""

import random
from typing import Any

import pytest

from runtime.expressions import Unsupported
from runtime.long_words import LongWords, library_step
from tests.support.pre_tokenizers import PRE_TOKENIZERS, byte_level, sequence, some_text, split


def theirs(node: Any, text: str) -> list[str]:
    return [word for word, _ in library_step(node).pre_tokenize_str(text)]


def ours(node: Any, text: str) -> list[str]:
    words = LongWords(node)
    found = list(words.of(text))
    if words.rest is None:
        return found
    rest = library_step(words.rest)
    return [part for word in found for part, _ in rest.pre_tokenize_str(word)]


CUTTING = {name: node for name, node in PRE_TOKENIZERS.items() if node is not None}


@pytest.mark.samples(6)
@pytest.mark.parametrize("name", CUTTING)
def test_the_words_are_the_librarys(name: str) -> None:
    for seed in range(100):
        text = some_text(random.Random(seed)) or "a"
        assert ours(CUTTING[name], text) == theirs(CUTTING[name], text), (seed, text)


def test_what_stands_behind_the_last_cut_is_left_to_the_library() -> None:
    node = sequence(split("b"), {"type": "Digits", "individual_digits": True}, split("c"))
    assert LongWords(node).rest is None
    assert LongWords(sequence(node, byte_level())).rest == sequence(byte_level())
    assert LongWords(byte_level(cuts=True)).rest == sequence(byte_level())
    assert LongWords(None).rest is None
    assert list(LongWords(None).of("a b")) == ["a b"]


def test_sequences_may_stand_in_sequences() -> None:
    node = sequence(sequence(split(r"\s+")), sequence(sequence(split("b"), byte_level())))
    assert ours(node, "ab  cb") == theirs(node, "ab  cb")


def test_an_expression_that_is_not_known_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        LongWords(sequence(split(r"(a)\1"), byte_level()))


@pytest.mark.samples(6)
@pytest.mark.parametrize("name", CUTTING)
def test_a_word_may_be_as_long_as_its_text(name: str) -> None:
    """As many words as some characters give, or as many times more."""
    words = LongWords(CUTTING[name])
    for char in " -a字":
        short, long = (len(list(words.of(char * length))) for length in (99, 99_000))
        assert long in (short, short * 1_000), char
