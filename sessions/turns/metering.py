"""One turn's dealings with the accounts it draws on: its session's, those above, and its own.

Knows the turn's plan and what the engine reported; what is held and why is
``sessions.durable.reservation``.

Always true: tokens that are told were held before; what was held is settled or given back, once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from runtime.messages import SequenceOutput, SequenceStart
from sessions.durable.account import NOTHING, Account, Amount, BudgetExceeded
from sessions.durable.budgets import bounds_of
from sessions.durable.ledger import NOTHING_UNSETTLED, Ledger, PromptTokens, TurnUsage
from sessions.durable.reservation import GRANT_TOKENS, LOW_TOKENS, Reservation
from sessions.turns.turn_plan import TurnPlan

_ENDING_UNAFFORDABLE = (
    "no legal ending of this turn's output is known within what is left of its budgets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnNeeds:
    """The amounts that a turn wants to consume."""

    prompt_tokens: int
    max_output: int
    """Without a budget; 0 for a warm-up."""
    bound: bool
    """A grammar may bind its output, so that it has to have room to end legally."""
    thinks: bool
    own: tuple[Account, ...] = ()
    """Accounts of this turn alone."""


class WrittenTokens(Protocol):
    """The tokens that a turn has written so far."""

    tokens: list[int]

    def before_reasoning(self, tokens: Iterable[int], most: int) -> int:
        """As ``OutputReader.before_reasoning``."""
        ...


class Meter:
    """From a turn's start to its end."""

    def __init__(self, needs: TurnNeeds, ledger: Ledger, *, is_turn: bool = True) -> None:
        """``is_turn``: what it consumes counts as one of the session's turns."""
        self._needs = needs
        self._is_turn = is_turn
        self._ledger = ledger
        self._cut = False
        self._open = False
        """Something is held."""
        self._reservation = Reservation(
            (*needs.own, *ledger.accounts), ledger.prices, whole=needs.bound, thinks=needs.thinks
        )
        self.ask_at = 0
        """With up to so many output tokens a step need not be looked at by ``within_budget``."""
        self.noted = NOTHING
        """The amount that the turn may consume of every account before it is noted anew: what is
        held, but of output that is all held at once no more than a grant. Another object whenever
        it has changed."""

    @property
    def limit(self) -> int:
        """Most output tokens to ask the engine for."""
        return self._reservation.ceiling

    @property
    def limited(self) -> bool:
        """A budget ends the output, not the client's own limit or the context."""
        return self._cut or self._reservation.limited

    @property
    def uncached(self) -> int:
        """Prompt tokens to be computed that are held."""
        return self._reservation.uncached

    def lacking_to_start(self) -> list[tuple[Account, Amount]]:
        """The accounts that other servers draw on too of which more is needed before the turn is
        admitted, whatever of its prompt is found in the cache."""
        needs, reservation = self._needs, self._reservation
        first = needs.max_output if needs.bound else min(needs.max_output, GRANT_TOKENS)
        count = needs.prompt_tokens
        computed = reservation.wanted(PromptTokens(uncached=count), first)
        found = reservation.wanted(PromptTokens(cached=count), first)
        return list(reservation.lacking(computed.most(found)))

    def lacking_for(self, output: SequenceOutput, told: int) -> list[tuple[Account, Amount]]:
        """The same before ``adjust`` and ``within_budget`` take that output."""
        reservation, upto = self._reservation, told + len(output.new_tokens)
        if not self._open or (output.start is None and upto <= self.ask_at):
            return []
        prompt = reservation.prompt
        if output.start is not None:
            cached = output.start.cached_tokens
            prompt = PromptTokens(self._needs.prompt_tokens - cached, cached)
        return list(reservation.lacking(reservation.wanted(prompt, reservation.next_grant(upto))))

    def admit(self, *, cached: int) -> None:
        """Hold the prompt, of which so many tokens are in the cache, and output.

        Raises:
            BudgetExceeded: it does not fit; nothing is held.
        """
        self._open = False
        self._reservation.admit(
            uncached=self._needs.prompt_tokens - cached,
            cached=cached,
            max_output=self._needs.max_output,
        )
        self._open = True
        self._set_mark(told=0)

    def adjust(self, start: SequenceStart) -> None:
        """The engine has said how many tokens it found: hold the prompt so, and no more output
        than it was asked for.

        Raises:
            BudgetExceeded: as for ``admit``; or a budget might cut what a grammar binds.
        """
        if not self._open:
            return
        self._open, asked = False, self.limit
        if self.uncached != start.input_tokens - start.cached_tokens:
            cached = start.cached_tokens
            self._reservation.adjust(uncached=self._needs.prompt_tokens - cached, cached=cached)
        if self.limited and not start.ending_known and self.limit == asked:
            self._reservation.release()
            raise BudgetExceeded(_ENDING_UNAFFORDABLE)
        self._open = True
        self._set_mark(told=0)

    def within_budget(self, output: SequenceOutput, written: WrittenTokens) -> SequenceOutput:
        """The part of a step's tokens that may be told: all of them, in the same object, or those
        that are held."""
        reservation, told, new = self._reservation, len(written.tokens), len(output.new_tokens)
        kept = max(reservation.allow(told + new) - told, 0)
        self._set_mark(told=told + new)
        if reservation.reasoning is not None:
            kept = written.before_reasoning(output.new_tokens[:kept], reservation.reasoning)
        if kept == new:
            return output
        self._cut = True
        return replace(output, new_tokens=output.new_tokens[:kept], forced=min(output.forced, kept))

    def settle(self, usage: TurnUsage, *, goes_on: bool = False) -> tuple[TurnUsage, int]:
        """The turn has ended: what it consumed is spent, and what the session's KV was charged
        meanwhile is recorded with it. Returns both with their cost; nothing if nothing was
        held. ``goes_on``: only a part of it has."""
        is_turn = self._is_turn and not goes_on
        if not self._open:
            return usage, 0
        self._open = False
        self.noted = NOTHING
        cost = self._reservation.settle(usage)
        if self._ledger.unsettled is not NOTHING_UNSETTLED:
            unsettled = self._ledger.take_unsettled()
            usage = replace(usage, residency=unsettled.block_us)
            cost += unsettled.cost
        self._ledger.settled(usage, cost, is_turn=is_turn)
        return usage, cost

    def _set_mark(self, *, told: int) -> None:
        """Note what is held, and say with which token to look again."""
        held = self._reservation.held
        grant = -(-(told + LOW_TOKENS) // GRANT_TOKENS) * GRANT_TOKENS
        if held.output > grant:
            held = self._reservation.held_for(grant)
        if held != self.noted:
            self.noted = held
        bounded = self._reservation.reasoning is not None
        mark = self._reservation.top_up_at
        if held.output < self._reservation.granted:
            mark = min(mark, held.output - LOW_TOKENS)
        self.ask_at = -1 if bounded else mark

    def release(self) -> None:
        """Give back what is held, if anything is."""
        self._open = False
        self.noted = NOTHING
        self._reservation.release()


def needs_of(plan: TurnPlan) -> TurnNeeds:
    """The amounts that a planned turn wants to consume, and the account that it brings."""
    own: list[Account] = []
    spent = NOTHING if plan.begun is None else plan.begun.spent
    for budget in plan.request.keepwarm.budget:
        if budget.scope == "turn":
            bounds, soft = bounds_of(budget), bounds_of(budget.soft)
            own.append(Account(scope="turn", budget=bounds, soft=soft, spent=spent))
    return TurnNeeds(
        prompt_tokens=plan.prompt_tokens,
        max_output=plan.max_output,
        bound=plan.grammar is not None,
        thinks=plan.options.thinking and plan.max_output > 0,
        own=tuple(own),
    )
