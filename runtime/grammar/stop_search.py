"""Stop strings, looked for in what of an output is free text.

Free is what neither a grammar binds nor is reasoning: plain answers, and what a model says before
a call. A special token has no text, so no match reaches across one; line breaks behind one belong
to it. What the client sees is read from the same decoder, so both mean the same text.

Knows one output's tokens, and where its grammar binds. Knows no schedule.

Always true: the answer depends on the output's tokens alone, not on how many a step brings.
"""

from collections.abc import Sequence

from runtime.tokenizer import IncrementalDecoder, Tokenizer
from tools_api.chat_format import REASONING_CLOSERS, REASONING_OPENERS
from tools_api.grammar import GrammarSpec
from tools_api.harmony import ANALYSIS, CHANNEL, MESSAGE, START


class StopSearch:
    """One output's search. Every emitted token is shown to it once, in order."""

    __slots__ = (
        "_after_special",
        "_call_start",
        "_decoder",
        "_ends_in_free_text",
        "_header",
        "_longest",
        "_reasoning",
        "_stops",
        "_text",
        "_undecided",
    )

    def __init__(
        self, stops: Sequence[str], tokenizer: Tokenizer, spec: GrammarSpec | None
    ) -> None:
        """``spec``: the constraint on the output, if there is one."""
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = () if spec is not None and spec.binds_all else tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._ends_in_free_text = spec is not None and spec.free_text
        self._undecided = self._ends_in_free_text
        """The first character will tell whether the output is text or a call."""
        self._reasoning = spec is not None and spec.reasons_first
        self._call_start = "" if spec is None else spec.call_start
        self._after_special = False
        self._header: str | None = None
        """The header of a message in harmony, while it is read."""
        self._text = ""
        """The end of the free text, as far as a stop string may begin there."""

    def completes(self, token: int, *, bound: bool) -> bool:
        """Take one more token; whether it completes a stop string.

        Args:
            bound: the grammar decided about this token.
        """
        if not self._stops:
            return False
        found = False
        for segment in self._decoder.push((token,)):
            if segment.special:
                self._pass_special(segment.text)
            elif self._header is not None:
                self._header += segment.text
            elif not self._reasoning:
                found = self._take(segment.text, bound) or found
        return found

    def _pass_special(self, name: str) -> None:
        if name in (START, CHANNEL):
            self._header, self._undecided = (self._header or "") + name, False
        elif name == MESSAGE and self._header is not None:
            told, self._header = self._header, None
            self._reasoning = f"{CHANNEL}{ANALYSIS}" in told or "to=" in told
        if name in REASONING_OPENERS | REASONING_CLOSERS:
            self._reasoning = name in REASONING_OPENERS
        self._text, self._after_special = "", True

    def _take(self, text: str, bound: bool) -> bool:
        if self._after_special:
            text = text.lstrip("\n")
            self._after_special = not text
        if self._undecided and text:
            self._undecided = False
            if text.startswith(self._call_start):
                self._stops = ()
        if bound and not self._ends_in_free_text:
            return False
        text = self._text + text
        self._text = text[max(len(text) - self._longest + 1, 0) :]
        return any(stop in text for stop in self._stops)
