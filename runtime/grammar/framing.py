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

from runtime.grammar.closing_tables import Way
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
        self._closing = tuple(self._ways(closing))
        surely = [tag for tag in closing if any(sp or "\n" in text for text, sp in tag)]
        self._closing_text = tuple(self._ways(surely))
        """What cannot stand in the strings of JSON."""
        self._opening = tuple(self._ways(opening))
        ends = [self._encode(text) for text in _short_first(told.get("strings", ()))]
        self._strings = tuple(
            (*end, *close) for end in ends[:_MAX_SAMPLES] for close in self._closing[:1]
        )
        self._tails = tuple(itertools.islice(self._all_tails((*closing, *opening)), _MAX_TAILS))

    @property
    def is_empty(self) -> bool:
        """There is nothing to offer."""
        return not self._closing and not self._opening

    def ways(self, matcher: llguidance.LLMatcher, *, in_text: bool) -> list[Way]:
        """What may close something here, else what is needed next.

        Args:
            in_text: letters are legal, so that a tag may be no more than text.
        """
        for way in self._closing_text if in_text else self._closing:
            if _is_legal(matcher, way):
                return [way]
        strings = list(itertools.islice(_legal(matcher, self._strings), 1))
        if strings or in_text:
            return strings
        found = list(itertools.islice(_legal(matcher, self._opening), _MAX_WAYS))
        return found or list(itertools.islice(_legal(matcher, self._tails), 1))

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


def _legal(matcher: llguidance.LLMatcher, ways: Iterable[Way]) -> Iterator[Way]:
    return (way for way in ways if _is_legal(matcher, way))


def _is_legal(matcher: llguidance.LLMatcher, way: Way) -> bool:
    return matcher.validate_tokens(list(way)) == len(way)
