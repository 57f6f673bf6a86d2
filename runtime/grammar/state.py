"""Which tokens a constrained output may go on with: masks, forced runs, legal endings.

Each sequence walks its own ``GrammarState`` through a compiled grammar. llguidance decides what
is legal; this module owns the rules around it: when the grammar starts to bind, that
end-of-turn is legal exactly in accepting states and is never fed to the matcher, and that a
sequence closes what it opened before its limit.

Knows token ids and masks. Knows no logits, no sampling and no schedule.

Always true: the mask is a function of the sequence's tokens alone; a forced token is the only
one its mask allows; what ``deciding`` lets pass can still be closed legally.
"""

from collections.abc import Iterable, Sequence

import llguidance
import numpy as np

from runtime.grammar.budget_guard import BudgetGuard
from runtime.grammar.closing import Work
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.mask_bits import MaskRow, mask_words, only_bit, set_bit
from runtime.grammar.refusal import stopped
from runtime.tokenizer import Tokenizer
from tools_api.grammar import GrammarSpec

_RENEWALS = 3
_RENEWED_CHARS = 16_384
"""A longer grammar takes too long to build again while others wait."""


class GrammarState:
    """Where one sequence stands in its grammar. Not thread-safe; only the engine loop touches it.

    Nothing here raises for a grammar's sake: when the matcher gives up (out of fuel, or fed
    a token that is not legal), ``failed`` says why, masks allow nothing, and the caller ends
    the sequence.
    """

    __slots__ = (
        "_compiled",
        "_end_of_turn_ids",
        "_fed",
        "_free_until",
        "_guard",
        "_matcher",
        "_renewals",
        "_row",
        "_row_valid",
        "_run",
        "_run_known",
        "_tokenizer",
        "ended",
        "failed",
    )

    def __init__(self, compiled: CompiledGrammar, tokenizer: Tokenizer) -> None:
        self._compiled = compiled
        self._tokenizer = tokenizer
        self._end_of_turn_ids = tuple(sorted(tokenizer.end_of_turn_ids))
        self._matcher = compiled.pristine.deep_copy()
        self._fed: list[int] = []
        """The tokens that the matcher has consumed."""
        self._renewals = _RENEWALS if len(compiled.spec.lark) <= _RENEWED_CHARS else 0
        self._guard: BudgetGuard | None = BudgetGuard(compiled.search, compiled.closing)
        phases = (compiled.after_id, compiled.trigger_id)
        self._free_until = [token for token in phases if token is not None]
        # The matcher has consumed the forced run already; nothing else could come.
        self._run: list[int] = []
        self._run_known = False
        self._row: MaskRow = np.empty(mask_words(tokenizer.vocab_size), dtype=np.int32)
        self._row_valid = False
        self.failed: str | None = None
        """Why the grammar cannot go on; None while it can."""
        self.ended = False
        """An end-of-turn token was emitted."""

    @property
    def compiled(self) -> CompiledGrammar:
        return self._compiled

    @property
    def spec(self) -> GrammarSpec:
        return self._compiled.spec

    @property
    def bound(self) -> bool:
        """The grammar decides about the next token. Before that, text is free."""
        return not self._free_until

    @property
    def obliged(self) -> bool:
        """The sequence may not end before the grammar is satisfied. False only while a trigger
        is awaited, which need not come."""
        return self._compiled.trigger_id not in self._free_until

    def advance(self, tokens: Iterable[int]) -> None:
        """Follow the tokens the sequence has emitted, end-of-turn included."""
        for token in tokens:
            if self._free_until:
                if token == self._free_until[0]:
                    self._free_until = self._free_until[1:]
            elif self.failed is None and not self.ended:
                self._advance_bound(token)

    def fill_mask(self, row: MaskRow) -> None:
        """Write the packed mask of the next token; bit ``t % 32`` of word ``t // 32``.

        Args:
            row: int32 [ceil(vocab_size / 32)], contiguous. Only while ``bound``; all zero
                when the grammar has failed or the sequence has ended.
        """
        if self._run:
            row[:] = 0
            set_bit(row, self._run[0])
            return
        if not self._row_valid:
            self._compute_row()
        row[:] = self._row

    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that can only come next, at most ``limit``; empty at a real choice.

        Each is the one token its mask allows. End-of-turn is among them where nothing else
        is legal. The state is as before: the caller advances when it emits them.
        """
        if not self.bound or self.failed is not None or self.ended or limit <= 0:
            return []
        if not self._run_known:
            self._find_run(limit)
        return self._run[:limit]

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens spell something legal here. A cheap filter, wider than the
        masks: a token may spell legal text and still not be the one the mask allows."""
        if not self.bound:
            return len(tokens)
        if self.failed is not None or self.ended:
            return 0
        for index, (token, forced) in enumerate(zip(tokens, self._run, strict=False)):
            if token != forced:
                return index
        rest = list(tokens[len(self._run) :])
        valid = self._matcher.validate_tokens(rest) if rest else 0
        return min(len(tokens), len(self._run)) + valid

    def blocked_tokens(self, remaining: int) -> tuple[int, ...]:
        """Tokens that must not be drawn while text is free, ``remaining`` tokens before the
        limit: the trigger out of its turn or without room for a call whose ending is known, and
        end-of-turn while the grammar is still owed."""
        if not self._free_until:
            return ()
        trigger = self._compiled.trigger_id
        if trigger is None:
            return self._end_of_turn_ids
        closing = self._compiled.closing
        fits = closing is None or len(closing) < remaining
        return () if self._free_until[0] == trigger and fits else (trigger,)

    def deciding(self, token: int, remaining: int) -> Work[int]:
        """The token to emit for a drawn one: itself if a legal ending behind it is known to fit,
        or if none is known at all, else the next token of one. Work in pieces: until it is done
        the state must be left as it is.

        Args:
            token: allowed by the mask here.
            remaining: tokens the sequence may still emit, this one included.
        """
        if self.forced_tokens(remaining) or self.failed is not None or self.ended:
            return token  # no choice, so nothing to decide
        if self.bound and self._guard is not None:
            return (yield from self._guard.admitting(self._matcher, token, remaining))
        closing = self._compiled.closing
        due = closing is not None and len(closing) + 1 >= remaining
        if not self.bound and self.obliged and due:
            return self._free_until[0]
        return token

    @property
    def least_tokens(self) -> int:
        """The length of the shortest legal output, from the sequence's start, end-of-turn
        included."""
        return len(self._free_until) + self._compiled.least_tokens if self.obliged else 1

    def ends_within(self, limit: int) -> bool:
        """Whether it is known, at the sequence's start, that ``limit`` tokens hold a legal output
        and that one begun can be ended in time."""
        closing = self._compiled.closing
        if closing is None:
            return False
        return not self.obliged or len(self._free_until) + len(closing) <= limit

    def copy(self) -> "GrammarState":
        """An independent state at the same place, for drafts. It keeps no plan for closing:
        there ``deciding`` lets everything pass."""
        state = GrammarState.__new__(GrammarState)
        state._compiled = self._compiled
        state._tokenizer = self._tokenizer
        state._end_of_turn_ids = self._end_of_turn_ids
        state._matcher = self._matcher.deep_copy()
        state._fed = list(self._fed)
        state._renewals = self._renewals
        state._guard = None
        state._free_until = self._free_until
        state._run = list(self._run)
        state._run_known = self._run_known
        state._row = self._row.copy()
        state._row_valid = self._row_valid
        state.failed = self.failed
        state.ended = self.ended
        return state

    def _advance_bound(self, token: int) -> None:
        if self._run:
            if token != self._run[0]:
                self._fail(f"token {token} came where only {self._run[0]} is legal")
                return
            del self._run[0]
            self.ended = token in self._end_of_turn_ids
            return
        self._run_known = self._row_valid = False
        if token in self._end_of_turn_ids:
            # Never fed: the library does not count it, and a rollback would go wrong.
            self.ended = True
        elif self._consume([token]):
            if self._guard is not None:
                self._guard.advance([token])
        else:
            self._fail(_matcher_error(self._matcher))

    def _consume(self, tokens: list[int]) -> bool:
        if not self._matcher.consume_tokens(tokens) and not (
            self._renew() and self._matcher.consume_tokens(tokens)
        ):
            return False
        self._fed += tokens
        return True

    def _renew(self) -> bool:
        """Walk to the same place in an automaton of this sequence's own: all matchers of a grammar
        share one, and it is unfit for all of them once one has run out of fuel."""
        if not self._renewals:
            return False
        self._renewals -= 1
        self._matcher = self._compiled.build()
        return not self._fed or self._matcher.consume_tokens(self._fed)

    def _find_run(self, limit: int) -> None:
        """Lengthen ``_run``, whose tokens the matcher has consumed already, to the next real choice
        or to ``limit`` tokens, and feed the matcher what is new."""
        run = self._run
        self._run_known = True
        while len(run) < limit:
            forced = self._matcher.compute_ff_tokens()
            if not forced:
                self._compute_row()
                only = only_bit(self._row)
                if only is None:
                    break
                forced = [only]
            ends = (at for at, token in enumerate(forced) if token in self._end_of_turn_ids)
            end = next(ends, None)
            if end is not None and (end == 0 or self._consume(forced[:end])):
                run += forced[: end + 1]
                self._row_valid = False
                break
            if not self._consume(forced):
                self._fail(_matcher_error(self._matcher))
                return
            self._row_valid = False
            if self._guard is not None:
                self._guard.advance(forced)
            run += forced
        else:
            self._run_known = False

    def _compute_row(self) -> None:
        """The mask at the matcher's state. End-of-turn is the only special case: the
        library sets its bit in accepting states, which is our rule as well."""
        self._row_valid = True
        if self.failed is not None or self.ended:
            self._row[:] = 0
            return
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        if self._matcher.is_error() and self._renew():
            self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        if self._matcher.is_error():
            self._fail(_matcher_error(self._matcher))

    def _fail(self, message: str) -> None:
        self.failed = message
        self._run = []
        self._row[:] = 0
        self._row_valid = True


def _matcher_error(matcher: llguidance.LLMatcher) -> str:
    return stopped(matcher.get_error())
