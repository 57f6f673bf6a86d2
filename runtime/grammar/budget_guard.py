"""Keeps a constrained output closable within the tokens its sequence has left.

The guard holds a plan: tokens that end the sequence legally from where it stands. A token is
let through if from behind it there is a plan that still fits; otherwise the plan's own next
token takes its place. So once a plan fits, one fits until the end.

A search for a plan may take long: a decision is work in pieces, and the caller may do other
things in between, as long as the sequence waits. A plan that forced tokens led away from is only
looked for again when something is to be decided.

Knows the matcher and the search for plans. Knows no masks, no phases and no sampling.

Always true: decisions depend on the sequence's tokens and its limit alone, neither on how many
tokens a step brought nor on time.
"""

from itertools import chain

import llguidance

from runtime.grammar.closing import QUICK, ClosingSearch, Work, complete
from runtime.grammar.closing_tables import Way

HORIZON_TOKENS = 4096
"""Tokens left from which on the plan is kept up. Closing takes a few tokens per open
bracket, so nothing real needs it earlier."""
_SLACK_TOKENS = 256
_LOST_RETRY_TOKENS = 32
_MAX_SKIPPED = 24
"""Tokens of a plan that one drawn token may have taken the place of."""


class BudgetGuard:
    """One sequence's plan. Owned by its GrammarState."""

    __slots__ = ("_active", "_fed", "_lost_tokens", "_next", "_plan", "_search", "_strayed")

    def __init__(self, search: ClosingSearch, plan: Way | None) -> None:
        self._search = search
        self._plan = plan
        self._strayed = 0
        """``_plan`` is from before so many of the last tokens."""
        self._active = False
        self._lost_tokens = 0
        self._fed: list[int] = []
        self._next: tuple[int, Way | None] | None = None

    @property
    def plan(self) -> Way | None:
        """Tokens that end the sequence legally from here; None if not known."""
        return None if self._strayed else self._plan

    def admit(self, matcher: llguidance.LLMatcher, token: int, remaining: int) -> int:
        """``admitting`` in one go."""
        return complete(self.admitting(matcher, token, remaining))

    def admitting(self, matcher: llguidance.LLMatcher, token: int, remaining: int) -> Work[int]:
        """The token to emit: ``token``, or the plan's when ``token`` leads too far.

        Args:
            matcher: at the present state; not changed, neither here nor between the pieces.
            token: legal here.
            remaining: tokens that may still be emitted, this one included.
        """
        if remaining > HORIZON_TOKENS:
            return token
        if self._strayed:
            self._plan = yield from self._plan_behind(matcher, self._fed[-1], ())
            self._strayed = 0
        elif self._plan is None and (not self._active or self._lost_tokens >= _LOST_RETRY_TOKENS):
            self._plan = yield from self._find(matcher, ())
            self._lost_tokens = 0
        self._active = True
        if self._plan is not None and len(self._plan) > remaining:
            self._plan = None  # it came too late, and a cut one is worth no more than a free one
            self._lost_tokens = 0
        if self._plan is None or self._plan[0] == token:
            return token
        after = matcher.deep_copy()
        rest: Way | None = None
        if after.consume_token(token):
            rest = yield from self._plan_behind(after, token, (token,))
        self._next = (token, rest)
        if rest is None:
            return token if remaining > len(self._plan) + _SLACK_TOKENS else self._plan[0]
        return token if len(rest) < remaining else self._plan[0]

    def advance(self, tokens: list[int]) -> None:
        """Follow the emitted ``tokens``, which the matcher has just consumed."""
        plan, known, self._next = self._plan, self._next, None
        self._fed += tokens
        if plan is None:
            self._lost_tokens += len(tokens)
        elif self._strayed:
            self._strayed += len(tokens)
        elif list(plan[: len(tokens)]) == tokens:
            self._plan = plan[len(tokens) :]
        elif not self._active:
            self._plan = None
        elif known is not None and [known[0]] == tokens:
            self._plan = known[1]
        else:
            self._strayed = len(tokens)

    def _plan_behind(
        self, matcher: llguidance.LLMatcher, token: int, tried: Way
    ) -> Work[Way | None]:
        """A plan for behind ``token``, which ``matcher`` has consumed: mostly the old one,
        as inside a string, with something half written finished or no longer to finish.
        ``tried``: what ``matcher`` has consumed beyond the sequence's own tokens."""
        plan = self._plan
        assert plan is not None
        repaired = (repair + plan for repair in self._search.repairs(token))
        later = (plan[skipped:] for skipped in range(1, _MAX_SKIPPED + 1))
        resumed = self._search.resumed(plan, token)
        spelt = self._search.behind(plan, self._fed[-self._strayed :]) if self._strayed else None
        for candidate in chain((spelt, plan), repaired, later, resumed):
            if candidate and matcher.validate_tokens(list(candidate)) == len(candidate):
                return candidate
        return (yield from self._find(matcher, tried))

    def _find(self, matcher: llguidance.LLMatcher, tried: Way) -> Work[Way | None]:
        return (
            yield from self._search.finding_behind(
                (*self._fed, *tried), matcher, limit=HORIZON_TOKENS, effort=QUICK
            )
        )
