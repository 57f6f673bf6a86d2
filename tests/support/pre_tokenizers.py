"""How published tokenizers cut text into words, and texts that tell ways of cutting apart."""

import random
from typing import Any

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(upper: str, lower: str, ending: str = "") -> str:
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}[{upper}]*[{lower}]+{ending}|{first}[{upper}]+[{lower}]*{ending}"


_NOT_HAN = r"&&[^\p{Han}]"
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "llama3": rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "tekken": rf"{_cased(_UPPER, _LOWER)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "o200k": rf"{_cased(_UPPER, _LOWER, _CONTRACTION + '?')}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "kimi": rf"[\p{{Han}}]+|{_cased(_UPPER + _NOT_HAN, _LOWER + _NOT_HAN, _CONTRACTION + '?')}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "deepseek": rf"{_PUNCTUATION}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    "han": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "bloom": r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
}
"""Expressions by which published tokenizers cut, each by a model that has it."""


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern: str, behaviour: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    found = {"Regex": pattern}
    return {"type": "Split", "pattern": found, "behavior": behaviour, "invert": invert}


def byte_level(*, prefix: bool = False, cuts: bool = False) -> dict[str, Any]:
    flags = {"add_prefix_space": prefix, "trim_offsets": True, "use_regex": cuts}
    return {"type": "ByteLevel"} | flags


_DIGITS = {"type": "Digits", "individual_digits": True}
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "invert": False}
PRE_TOKENIZERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "bytes alone": byte_level(),
    "gpt2": byte_level(cuts=True),
    "gpt2 with a space in front": byte_level(prefix=True, cuts=True),
    "starcoder": sequence(_DIGITS, byte_level(cuts=True)),
    "qwen2": sequence(split(PATTERNS["qwen2"]), byte_level()),
    "qwen2 with spaces in front": sequence(split(PATTERNS["qwen2"]), byte_level(prefix=True)),
    "llama3": sequence(split(PATTERNS["llama3"]), byte_level()),
    "tekken": sequence(split(PATTERNS["tekken"]), byte_level()),
    "deepseek": sequence(
        *map(split, (r"\p{N}{1,3}", PATTERNS["han"], PATTERNS["deepseek"])), byte_level()
    ),
    "falcon": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(cuts=True),
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ),
    "gemma": sequence(_AT_SPACES | {"behavior": "MergedWithPrevious"}, byte_level(cuts=True)),
    "metaspace": {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": True,
    },
    **{
        f"{behaviour} {invert}": sequence(split(r"\s|b", behaviour, invert=invert), byte_level())
        for behaviour in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        for invert in (False, True)
    },
}
"""Nodes of tokenizer.json: what published models have, and every behaviour of a ``Split``."""

SIGNS = (
    " \t\n\r\x85\xa0\u2028\0aAzZsStTlLbB'\u017fK\u0131\xdf\xe9\xc9\u01c5\u02b0字ー1²٣Ⅷ-_─😀"
    '\u0301\u200d\ufffd.,!?/|(){}[]"#<>'
)
"""Characters of every kind that expressions tell apart."""
_WORDS = ("I'LL", "'s", " the", "\n\n", '{"name": "', "'ReX", "get_weather")


def some_text(rng: random.Random, most: int = 12, longest: int = 40) -> str:
    """Runs of one sign after the other, words, and now and then any character at all."""
    parts = []
    for _ in range(rng.randrange(most)):
        parts.append(rng.choice(SIGNS) * rng.choice([1, 1, 1, 2, 3, longest]))
        if rng.random() < 0.15:
            parts.append(rng.choice(_WORDS))
        if rng.random() < 0.05:
            parts.append(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])))
    return "".join(parts)
