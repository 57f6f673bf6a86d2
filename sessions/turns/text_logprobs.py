"""Which log-probabilities belong to a piece of text that a parser lets through.

A parser holds text back and swallows some (white space around tags), and a token may be a part of
a character. So each token is noted with the text that was complete with it, and a piece of text
takes the tokens that lie where it is found. Knows no parser.

Always true: every token of a piece's text goes with that piece, in order; none goes with two.
"""

from collections import deque

from tools_api.events import Event


class TextLogprobs:
    """The log-probabilities of one turn's text that nobody has taken yet."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[Event | None, str]] = deque()
        """Tokens, with what was complete with each; a token of which nothing is known has no
        event."""

    def add(self, known: Event | None, text: str) -> None:
        """A token has come, and with it ``text`` is complete."""
        self._tokens.append((known, text))

    def complete(self, text: str) -> None:
        """The last token's text is longer: a character that it left unfinished is none."""
        if self._tokens:
            known, before = self._tokens.pop()
            self._tokens.append((known, before + text))

    def logprobs_of(self, text: str) -> tuple[Event, ...]:
        """Those of the tokens that ``text`` was made of; what lies before it was swallowed. Tokens
        that follow stay; so does a character's beginning, for its end."""
        at = max("".join(part for _, part in self._tokens).find(text), 0)
        taken: list[Event] = []
        place, end, part = 0, at + len(text), ""
        while self._tokens and place < end:
            known, part = self._tokens.popleft()
            place += len(part)
            if part and place <= at:
                taken.clear()  # swallowed, with those that began it
            elif known is not None:
                taken.append(known)
        if place > end:  # of the last token a part is held back still
            self._tokens.appendleft((None, part[end - place :]))
        return tuple(taken)

    def clear(self) -> None:
        """The tokens so far are no text."""
        self._tokens.clear()
