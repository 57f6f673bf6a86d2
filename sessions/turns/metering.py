"""One turn's dealings with the accounts it draws on: its session's, those above, and its own.

Knows the turn's plan and what the engine reported; what is held and why is
``sessions.durable.reservation``.

Always true: tokens that are told were held before; what was held is settled or given back, once.
"""

from dataclasses import replace

from runtime.messages import SequenceOutput
from sessions.durable.account import Account
from sessions.durable.budgets import bounds_of
from sessions.durable.ledger import Ledger, TurnUsage
from sessions.durable.reservation import Reservation
from sessions.turns.output_reader import OutputReader
from sessions.turns.turn_plan import TurnPlan


class Meter:
    """From a turn's start to its end."""

    def __init__(self, plan: TurnPlan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._cut = False
        self._open = False
        """Something is held."""
        self._reservation = Reservation(
            (*_own(plan), *ledger.accounts),
            ledger.prices,
            whole=plan.grammar is not None,
            thinks=plan.options.thinking and plan.max_output > 0,
        )

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

    def admit(self, *, cached: int) -> None:
        """Hold the prompt, of which so many tokens are in the cache, and output.

        Raises:
            BudgetExceeded: it does not fit; nothing is held.
        """
        self._admit(cached, None)

    def adjust(self, *, cached: int) -> None:
        """The engine has said how many tokens it found: hold the prompt so, and no more output
        than it was asked for.

        Raises:
            BudgetExceeded: as for ``admit``.
        """
        self._admit(cached, self.limit)

    def _admit(self, cached: int, most: int | None) -> None:
        self._open = False
        self._reservation.admit(
            uncached=self._plan.prompt_tokens - cached,
            cached=cached,
            max_output=self._plan.max_output,
            most=most,
        )
        self._open = True

    def within_budget(self, output: SequenceOutput, reader: OutputReader) -> SequenceOutput:
        """What of a step's tokens may be told: all of them, in the same object, or those that
        are held."""
        reservation, told, new = self._reservation, len(reader.tokens), len(output.new_tokens)
        if told + new <= reservation.top_up_at and reservation.reasoning is None:
            return output
        kept = max(reservation.allow(told + new) - told, 0)
        if reservation.reasoning is not None:
            kept = reader.before_reasoning(output.new_tokens[:kept], reservation.reasoning)
        if kept == new:
            return output
        self._cut = True
        return replace(output, new_tokens=output.new_tokens[:kept], forced=min(output.forced, kept))

    def settle(self, usage: TurnUsage) -> int:
        """The turn has ended: what it consumed is spent. Returns its cost; 0 if nothing was
        held."""
        if not self._open:
            return 0
        self._open = False
        cost = self._reservation.settle(usage)
        self._ledger.settled(usage, cost)
        return cost

    def withdraw(self) -> None:
        """Give back what is held, if anything is."""
        self._open = False
        self._reservation.release()


def _own(plan: TurnPlan) -> tuple[Account, ...]:
    """The account of a turn that brings a budget for itself."""
    own = [budget for budget in plan.request.keepwarm.budget if budget.scope == "turn"]
    return tuple(Account(scope="turn", budget=bounds_of(budget)) for budget in own)
