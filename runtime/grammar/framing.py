"""How calls that are no JSON close: the tags that a grammar names for whoever looks for an ending.

``runtime.grammar.closing`` knows how JSON closes. Where calls are written between tags, their
grammar says in a comment which tags close something, which open an argument, and what its strings
look like (``tools_api.lark_rules``); the search tries them in that order.

Knows the comment, a vocabulary and llguidance's matcher. Knows no way of writing calls.

Always true: a way that is offered is legal from where the matcher stands.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import llguidance
import numpy as np

from runtime.grammar.closing_tables import Way
from runtime.grammar.mask_bits import MaskRow
from runtime.grammar.schemas import string_sample
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment
from tools_api.lark_rules import TAGS

_MAX_WAYS = 4
_MAX_TAILS = 512
_MAX_SAMPLES = 256


class Framing:
    """The tags of one grammar. Without a comment there are none."""

    def __init__(self, tokenizer: Tokenizer, lark: str) -> None:
        self._tokenizer = tokenizer
        start = lark.rfind(TAGS)
        told = json.loads(lark[start + len(TAGS) :].split("\n", 1)[0]) if start >= 0 else {}
        closing, opening = told.get("closing", ()), told.get("opening", ())
        self._closing = _Ways(self._ways(closing))
        surely = [tag for tag in closing if any(sp or "\n" in text for text, sp in tag)]
        self._closing_text = _Ways(self._ways(surely))
        """Characters that cannot stand in the strings of JSON."""
        self._opening = _Ways(self._ways(opening))
        ends = [self._encode(text) for text in _short_first(told.get("strings", ()))]
        closes = self._closing.ways[:1]
        self._strings = _Ways(
            (*end, *close) for end in ends[:_MAX_SAMPLES] for close in closes if end or close
        )
        tails = self._all_tails((*closing, *opening))
        self._tails = _Ways(itertools.islice(tails, _MAX_TAILS))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to offer."""
        return not self._closing.ways and not self._opening.ways

    def ways(self, matcher: llguidance.LLMatcher, row: MaskRow, *, in_text: bool) -> list[Way]:
        """Texts that may close something here, else what is needed next.

        Args:
            row: the mask where the matcher stands.
            in_text: letters are legal, so that a tag may be no more than text.
        """
        closing = self._closing_text if in_text else self._closing
        if found := closing.legal(matcher, row, 1) or self._strings.legal(matcher, row, 1):
            return found
        if in_text:
            return []
        return self._opening.legal(matcher, row, _MAX_WAYS) or self._tails.legal(matcher, row, 1)

    def _ways(self, tags: Iterable[Sequence[tuple[str, bool]]]) -> Iterator[Way]:
        for tag in tags:
            way: list[int] = []
            for text, special in tag:
                if special:
                    way += map(int, self._tokenizer.encode([Segment(text, special=True)]))
                else:
                    way += self._encode(text)
            yield tuple(way)

    def _all_tails(self, tags: Sequence[Sequence[tuple[str, bool]]]) -> Iterator[Way]:
        """Ends of tags whose beginning was written in other pieces."""
        for tag in tags:
            for place, (text, special) in enumerate(tag):
                for start in range(1, 1 if special else len(text)):
                    yield next(self._ways([[(text[start:], False), *tag[place + 1 :]]]))

    def _encode(self, text: str) -> Way:
        return tuple(self._tokenizer.spell(text))


def _short_first(schemas: Iterable[dict[str, Any]]) -> list[str]:
    """Ends of strings that the schemas let pass, the shortest first."""
    texts = [_text_of(schema) for schema in schemas]
    samples = [text for text in texts if text is not None]
    ends = dict.fromkeys(sample[at:] for sample in samples for at in range(len(sample) + 1))
    return sorted(ends, key=lambda text: (len(text), text))


def _text_of(schema: dict[str, Any]) -> str | None:
    return str(schema["const"]) if "const" in schema else string_sample(schema)


class _Ways:
    """Ways in the order in which they are to be tried."""

    def __init__(self, ways: Iterable[Way]) -> None:
        self.ways = tuple(way for way in ways if way)
        self._first = np.array([way[0] for way in self.ways], dtype=np.int64)

    def legal(self, matcher: llguidance.LLMatcher, row: MaskRow, most: int) -> list[Way]:
        """The first few that are legal here: only those that the mask lets begin are tried."""
        first, found = self._first, list[Way]()
        for at in np.flatnonzero((row[first >> 5] >> (first & 31)) & 1):
            way = self.ways[at]
            if matcher.validate_tokens(list(way)) == len(way):
                found.append(way)
                if len(found) == most:
                    break
        return found
