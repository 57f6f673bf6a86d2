"""A template's text, cut where special tokens stand in it.

Always true: the texts of the segments, put together, are the text that was cut.
"""

import re
from collections.abc import Iterable

from tools_api.chat_format import Segment


class Literals:
    """Cuts at the special tokens of one tokenizer; of two that begin together the longer counts."""

    def __init__(self, specials: Iterable[str]) -> None:
        self._specials = frozenset(filter(None, specials))
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def has_token(self, name: str) -> bool:
        """Whether the tokenizer has it."""
        return name in self._specials

    def cut(self, text: str) -> tuple[Segment, ...]:
        """A text in segments, cut at the literals."""
        parts, at = [], 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                parts.append(Segment(text[at : found.start()]))
            parts.append(Segment(found[0], special=True))
            at = found.end()
        if at < len(text):
            parts.append(Segment(text[at:]))
        return tuple(parts)
