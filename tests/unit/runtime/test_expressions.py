"""Expressions matched by ``re`` over classes match what the tokenizer library's own do."""

import random
from collections.abc import Iterator

import pytest
from tokenizers import Regex, pre_tokenizers

from runtime.expressions import Expression, Matcher, Unsupported
from tests.support.pre_tokenizers import PATTERNS, SIGNS, some_text
from tests.support.tokenizers import shipped_pattern

PUBLISHED = PATTERNS | {"shipped": shipped_pattern()}


def theirs(pattern: str, text: str) -> list[str]:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [piece for piece, _ in cut]


def ours(expression: Expression, text: str) -> list[str]:
    return list(pieces(expression.over(text), text))


def pieces(matcher: Matcher, text: str) -> Iterator[str]:
    end = 0
    for start, stop in matcher.spans(text):
        assert start < stop
        if end < start:
            yield text[end:start]
        yield text[start:stop]
        end = stop
    if end < len(text):
        yield text[end:]


@pytest.mark.samples(3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_expressions_match_the_same(name: str) -> None:
    matcher = Expression(PUBLISHED[name]).over(SIGNS)
    for seed in range(300):
        text = some_text(random.Random(seed))
        assert list(pieces(matcher, text)) == theirs(PUBLISHED[name], text), (seed, text)


ATOMS = [
    *("a", "b", "'", " ", "字", "\n", ".", r"\.", r"\s", r"\S", r"\d", r"\w", r"\p{L}", r"\P{Lu}"),
    *(r"\p{^N}", "[ab]", "[^a\n]", r"[\s\d]", "[a-z&&[^b]]", "[[:upper:]_]", "[^[a]b]", r"\x41"),
    *(r"\x{5b57}", r"\u00e9", r"\n", r"\#"),
]
QUANTIFIERS = [
    "",
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "++",
    "{2}",
    "{1,3}",
    "{,2}",
    "{2,}?",
]
GROUPS = ["(?:", "(", "(?<n>", "(?>", "(?=", "(?!", "(?i:"]


def an_expression(rng: random.Random, depth: int = 3) -> str:
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.random()
        if depth and kind < 0.25:
            part = f"{rng.choice(GROUPS)}{an_expression(rng, depth - 1)})"
        elif kind < 0.3:
            part = rng.choice(["^", "$", r"\A", r"\z", "(?<=a)", r"(?<!\s)"])
        else:
            part = rng.choice(ATOMS)
        parts.append(part + rng.choice(QUANTIFIERS))
    if rng.random() < 0.3:
        parts.append("|" + an_expression(rng, depth - 1 if depth else 0))
    return "".join(parts)


@pytest.mark.samples(20)
@pytest.mark.parametrize("seed", range(60))
def test_any_expression_matches_the_same_or_is_unsupported(seed: int) -> None:
    rng = random.Random(seed)
    known = 0
    for _ in range(40):
        pattern = an_expression(rng)
        try:
            Regex(pattern)
            expression = Expression(pattern)
        except Exception:  # one of the two refuses it, as either may
            continue
        known += 1
        for _ in range(6):
            text = some_text(rng, 6, longest=5)
            assert ours(expression, text) == theirs(pattern, text), (pattern, text)
    assert known > 3


UNKNOWN = [
    *("", "a*", "a|", "(?:a?)+", "a**", "a{1,2}+", "a{2}?", r"(a)\1", r"\bx", r"a\K", r"\R"),
    *("(?x:a )", "(?i:ss)", "(?i:é)", "(?i:[a])", "[]a]", "[a", "(a", "a)", "*a", "(?#a)b"),
    *(r"\y", "(" * 51 + "a" + ")" * 51, "(?<=a+)b", "(?:a+)+b", "(a?b)*c"),
]


@pytest.mark.parametrize("pattern", UNKNOWN)
def test_what_the_two_may_match_differently_is_unsupported(pattern: str) -> None:
    with pytest.raises(Unsupported):
        Expression(pattern)


def test_groups_side_by_side_are_as_many_as_there_are() -> None:
    text = "ab" * 200
    expression = "(a)(?:b)" * 200
    assert ours(Expression(expression), text) == theirs(expression, text) == [text]


def test_a_character_that_comes_later_is_learnt() -> None:
    matcher = Expression(PATTERNS["qwen2"]).over("a")
    for text in ("a a", "é1字", "\n\u2028 \xa0", "a a"):
        assert list(pieces(matcher, text)) == theirs(PATTERNS["qwen2"], text)


@pytest.mark.samples(2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_match_of_a_million_characters_is_found(name: str) -> None:
    """Where the library gives up at some hundred thousand or million."""
    expression = Expression(PUBLISHED[name])
    for char in " \t-─字\0":
        text = f"a{char * 1_000_000}b"
        short = f"a{char * 1_000}b"
        longest, same = (max(map(len, ours(expression, each))) for each in (text, short))
        assert longest - same in (0, 999_000)
