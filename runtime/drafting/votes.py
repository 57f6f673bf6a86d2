"""Which token comes next, by the places of a text that went on from the same tokens.

Each place votes for the token that followed there. Knows texts and places in them; what is
legal it is told. Knows nothing of how far its estimates have held.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runtime.drafting.ngram_index import MAX_MATCH
from runtime.drafting.sources import BREAK, Source
from runtime.messages import TokenArray
from runtime.scheduling.draft import DraftSource

_SMOOTHING = 0.3
_MOST_LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class Vote:
    """A token, and what speaks for it."""

    token: int
    probability: float
    """How probably the proposed token is right, by the votes alone."""
    source: DraftSource
    length: int
    """How many tokens before it agree, at most ``MAX_MATCH``."""


class Walk:
    """Follows the places that matched, as long as the chain goes on as they do."""

    __slots__ = ("_length", "_positions", "_source")

    def __init__(self, source: Source, length: int, positions: list[int]) -> None:
        """``positions`` is where the text goes on at each place, behind ``length`` tokens that
        agree."""
        self._source = source
        self._length = length
        self._positions = positions

    @classmethod
    def begin(cls, source: Source, context: TokenArray) -> "Walk | None":
        """From where the text stands like the end of ``context``; None where it never does."""
        matches = source.index.match(source.tokens, context)
        if matches is None:
            return None
        return cls(source, matches.length, matches.next_positions.tolist())

    def vote(self, is_legal: Callable[[int], bool]) -> Vote | None:
        """The token most places go on with, among those that are legal here (Laplace-like
        share of the votes; longer matches are trusted more)."""
        tokens = self._source.tokens
        counts = Counter(int(tokens[position]) for position in self._positions)
        legal = [
            (count, token)
            for token, count in counts.most_common(_MOST_LOOKED_AT)
            if token != BREAK and is_legal(token)
        ]
        if not legal:
            return None
        count, token = legal[0]
        share = count / (sum(c for c, _ in legal) + _SMOOTHING)
        return Vote(token, share * (1 - 2.0**-self._length), self._source.kind, self._length)

    def follow(self, chosen: Iterable[int]) -> "Walk | None":
        """The walk behind ``chosen``; None when no place goes on like that."""
        tokens, end = self._source.tokens, len(self._source.tokens)
        positions, length = self._positions, self._length
        for token in chosen:
            positions = [p + 1 for p in positions if tokens[p] == token and p + 1 < end]
            length += 1
        return Walk(self._source, min(length, MAX_MATCH), positions) if positions else None
