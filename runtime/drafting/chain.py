"""A draft in the making: its tokens, and where grammar and matches stand behind it.

Two sources are spliced in one chain: where the grammar leaves one token, that one; else what
the texts suggest, for the caller to take or to leave. Knows grammar states and texts. Knows not
what a token is worth.

Always true: a chain never goes beyond its limit or an end of turn; the sequence's own grammar state
is not moved.
"""

from collections.abc import Callable, Iterator

import numpy as np

from runtime.drafting.ngram_index import MAX_MATCH
from runtime.drafting.sources import Source
from runtime.drafting.votes import Vote, Walk
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.scheduling.draft import Draft, DraftSource


class Chain:
    """Grows token by token behind a context."""

    def __init__(
        self,
        context: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        end_of_turn_ids: frozenset[int],
    ) -> None:
        """
        Args:
            context: int32; the last tokens before the draft, ``MAX_MATCH`` are enough.
            grammar: the sequence's state behind them.
            limit: most tokens the draft may have.
        """
        self._context = context
        self._grammar = None if grammar is None else grammar.copy()
        self._limit = limit
        self._end_of_turn_ids = end_of_turn_ids
        self._tokens: list[int] = []
        self._sources: list[DraftSource] = []
        self._survival: list[float] = []
        self._walk: Walk | None = None
        self.survival = 1.0
        """Estimated probability that all tokens so far are right."""
        self.added: list[tuple[int, Vote]] = []
        """Copied tokens with their indices in the draft."""

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def votes(self, sources: list[Source], may_go_on: Callable[[], bool]) -> Iterator[Vote]:
        """One vote for each next token, forced runs filled in between; the caller adds the
        vote or stops."""
        while may_go_on():
            self._add_forced()
            if len(self._tokens) >= self._limit or self._has_ended():
                return
            vote = self._vote(sources)
            if vote is None:
                return
            yield vote

    def add(self, vote: Vote, survival: float) -> None:
        """Take the token of a vote; ``survival`` is that of the chain with it."""
        self.survival = survival
        self.added.append((len(self._tokens), vote))
        self._append([vote.token], vote.source)

    def draft(self) -> Draft:
        """The tokens that the chain has come to."""
        return Draft(
            tokens=np.array(self._tokens, dtype=np.int32),
            sources=tuple(self._sources),
            survival=tuple(self._survival),
        )

    def _append(self, tokens: list[int], source: DraftSource) -> None:
        self._tokens += tokens
        self._sources += [source] * len(tokens)
        self._survival += [self.survival] * len(tokens)
        if self._walk is not None:
            self._walk = self._walk.follow(tokens)
        if self._grammar is not None:
            self._grammar.advance(tokens)

    def _add_forced(self) -> None:
        if self._grammar is not None and not self._has_ended():
            run = self._grammar.forced_tokens(self._limit - len(self._tokens))
            if run:
                self._append(run, DraftSource.FORCED)

    def _has_ended(self) -> bool:
        return bool(self._tokens) and self._tokens[-1] in self._end_of_turn_ids

    def _is_legal(self, token: int) -> bool:
        return self._grammar is None or bool(self._grammar.validate((token,)))

    def _vote(self, sources: list[Source]) -> Vote | None:
        if self._walk is not None:
            vote = self._walk.vote(self._is_legal)
            if vote is not None:
                return vote
        drafted = np.array(self._tokens[-MAX_MATCH:], dtype=np.int32)
        context = np.concatenate((self._context, drafted)) if len(drafted) else self._context
        for source in sources:
            walk = Walk.begin(source, context)
            if walk is None:
                continue
            self._walk = walk
            vote = walk.vote(self._is_legal)
            if vote is not None:
                return vote
        return None
