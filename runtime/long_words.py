"""A text cut into words as a tokenizer cuts it, however long a word is.

The tokenizer library cuts by regular expressions, and gives up where one match takes ten million
steps: at some hundred thousand spaces for one expression, at some million for another. Here
``runtime.expressions`` matches them. What else a ``pre_tokenizer`` does is still the library's
work, word by word.

Knows the steps of a ``pre_tokenizer`` as tokenizer.json has them. Knows no vocabulary.

Always true: the words are those of the library, which merges each by itself.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import tokenizers

from runtime.expressions import Expression, Matcher

Node = dict[str, Any]
Step = Callable[[Iterable[str], frozenset[str]], Iterator[str]]
"""Makes words of words; the set holds the characters of the whole text."""

_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression by which the library's ``ByteLevel`` cuts, unless it is told not to."""
_JOINS: dict[str, Callable[[bool, bool], bool]] = {
    "Isolated": lambda before, now: False,
    "Removed": lambda before, now: False,
    "MergedWithPrevious": lambda before, now: now and not before,
    "MergedWithNext": lambda before, now: before and not now,
    "Contiguous": lambda before, now: before == now,
}
"""By a ``Split``'s behaviour: whether a piece is joined to the one before it, by whether each of
them is a match."""


class LongWords:
    """The steps of one ``pre_tokenizer`` up to the last that cuts by an expression."""

    def __init__(self, pre_tokenizer: Any) -> None:
        """Raises Unsupported: an expression is not known."""
        nodes = [step for node in _flat(pre_tokenizer) for step in _parted(node)]
        own = 1 + max((at for at, node in enumerate(nodes) if _cuts(node)), default=-1)
        self._steps = [_step(node) for node in nodes[:own]]
        self.rest: Node | None = None
        """The steps behind it, which are the library's, word by word."""
        if own < len(nodes):
            self.rest = {"type": "Sequence", "pretokenizers": nodes[own:]}

    def of(self, text: str) -> Iterator[str]:
        """The words of a text that is normalised already."""
        words, alphabet = iter([text]), frozenset(text)
        for step in self._steps:
            words = step(words, alphabet)
        return words


def _flat(node: Any) -> Iterator[Node]:
    if isinstance(node, dict) and node.get("type") == "Sequence":
        for inner in node["pretokenizers"]:
            yield from _flat(inner)
    elif isinstance(node, dict):
        yield node


def _parted(node: Node) -> Iterator[Node]:
    """``ByteLevel`` as the three things that it does, which other nodes can say."""
    if node["type"] != "ByteLevel" or not node.get("use_regex", True):
        yield node
        return
    if node.get("add_prefix_space", True):
        yield {"type": "Prefix"}
    yield {"type": "Split", "pattern": {"Regex": _BYTE_LEVEL}, "behavior": "Isolated"}
    yield {**node, "add_prefix_space": False, "use_regex": False}


def _cuts(node: Node) -> bool:
    return node["type"] == "Split" and "Regex" in node["pattern"]


def _step(node: Node) -> Step:
    if _cuts(node):
        return _Split(
            expression=Expression(node["pattern"]["Regex"]),
            behaviour=node["behavior"],
            invert=node.get("invert", False),
        )
    if node["type"] == "Prefix":
        return lambda words, _: (word if word.startswith(" ") else f" {word}" for word in words)
    library = library_step(node)
    return lambda words, _: (part for word in words for part, _ in library.pre_tokenize_str(word))


def library_step(node: Node) -> Any:
    """The library's object for a step."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": node}
    return tokenizers.Tokenizer.from_str(orjson.dumps(whole).decode()).pre_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The library's ``Split`` by an expression."""

    expression: Expression
    behaviour: str
    invert: bool
    """Text between the matches counts as a match."""

    def __call__(self, words: Iterable[str], alphabet: frozenset[str]) -> Iterator[str]:
        matcher = self.expression.over(alphabet)
        return (part for word in words for part in self._parts(word, matcher))

    def _parts(self, word: str, matcher: Matcher) -> Iterator[str]:
        joins, removed = _JOINS[self.behaviour], self.behaviour == "Removed"
        begin, end, before = 0, 0, None
        for start, stop, matched in self._pieces(word, matcher):
            if before is not None and not joins(before, matched):
                if not (removed and before):
                    yield word[begin:end]
                begin = start
            end, before = stop, matched
        if before is not None and not (removed and before):
            yield word[begin:end]

    def _pieces(self, word: str, matcher: Matcher) -> Iterator[tuple[int, int, bool]]:
        end = 0
        for start, stop in matcher.spans(word):
            if end < start:
                yield end, start, self.invert
            yield start, stop, not self.invert
            end = stop
        if end < len(word):
            yield end, len(word), self.invert
