"""Walks through a grammar before a turn does: along forced tokens, its known ending and tokens
drawn at random, with the masks and within the bounds that a turn has.

What stops a walk would have stopped a turn, and is a reason to refuse the grammar, with the place
in its schemas where that was. What no walk comes across may still stop a turn.

Knows grammars and vocabularies. Knows no sequences but its own.

Always true: the draws are the same for the same grammar and vocabulary; a trial is bounded in
tokens and, by its clock, in time.
"""

import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from runtime.grammar.closing_tables import ClosingTables, allowed
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.mask_bits import MaskRow, mask_words
from runtime.grammar.refusal import DEAD_END, STUCK, bounded
from runtime.grammar.schema_places import place_of_value
from runtime.grammar.state import GrammarState

_WALKS = 4
_TOKENS = 48
"""Tokens of each walk that is drawn."""
_ENDING_TOKENS = 256
"""Tokens of the known ending."""
_RUN = 64
_SECONDS = 0.3
"""Seconds of the processor: no further token is looked at."""
_STRUCTURAL = 0.6
"""How often a token that opens, closes or separates is drawn, where one is legal: any other goes on
with the same text."""


class Trial:
    """Tries grammars over one vocabulary."""

    def __init__(
        self, tables: ClosingTables, *, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._tokenizer = tables.tokenizer
        self._clock = clock
        self._structure = [
            *(tables.separators, tables.quotes, tables.brackets),
            *(tables.closes_string, tables.structure),
        ]
        self._row: MaskRow = np.zeros(mask_words(tables.tokenizer.vocab_size), dtype=np.int32)

    def of(self, compiled: CompiledGrammar) -> None:
        """Walk through a grammar.

        Raises:
            GrammarRefused: a walk was stopped.
        """
        until = self._clock() + _SECONDS
        self._along(compiled, (compiled.closing or ())[:_ENDING_TOKENS], until)
        for number in range(_WALKS):
            self._drawing(compiled, random.Random(number), until)

    def _along(self, compiled: CompiledGrammar, tokens: Sequence[int], until: float) -> None:
        state = self._begun(compiled)
        for at, token in enumerate(tokens):
            if self._clock() > until:
                return
            state.fill_mask(self._row)
            state.advance([token])
            self._refuse_stopped(state, tokens[:at])

    def _drawing(self, compiled: CompiledGrammar, rng: random.Random, until: float) -> None:
        state, out = self._begun(compiled), list[int]()
        while len(out) < _TOKENS and not state.ended and self._clock() <= until:
            run = state.forced_tokens(_RUN)
            if not run and state.failed is None:
                state.fill_mask(self._row)
                run = self._draw(rng)
            if not run:
                self._refuse_stopped(state, out, stuck=True)
            state.advance(run)
            self._refuse_stopped(state, out)
            out += run

    def _begun(self, compiled: CompiledGrammar) -> GrammarState:
        """A state at the point from which the grammar binds."""
        state = GrammarState(compiled, self._tokenizer)
        phases = (compiled.after_id, compiled.trigger_id)
        state.advance(token for token in phases if token is not None)
        return state

    def _draw(self, rng: random.Random) -> list[int]:
        """One of the tokens that the mask allows; none if it allows none."""
        if rng.random() < _STRUCTURAL:
            table = rng.choice(self._structure)
            ways = allowed(self._row, table, len(table))
            if ways:
                return [rng.choice(ways)]
        bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")
        ids = np.flatnonzero(bits)
        return [int(rng.choice(ids))] if len(ids) else []

    def _refuse_stopped(
        self, state: GrammarState, out: Sequence[int], *, stuck: bool = False
    ) -> None:
        """
        Args:
            out: what the state had written before.
            stuck: no token is legal.
        """
        message = STUCK if stuck and state.failed is None else state.failed
        if message is None:
            return
        message = DEAD_END if message == STUCK else message
        written = b"".join(map(self._tokenizer.token_bytes, out)).decode("utf-8", "replace")
        lark = state.spec.lark
        raise bounded(message, lark, place_of_value(lark, written))
