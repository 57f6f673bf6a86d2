"""What one turn holds of every account it draws on, from before its first step to its end.

Input is held for what the engine says that it computes and finds. Output of free text is held in
grants, topped up while the turn decodes, so that turns which run at the same time share what is
left; a turn whose output a grammar binds holds all it may write from the start, since it has to
end legally within it. What was held and not consumed is given back at the end.

Always true: an account's turns never hold more than is left of any of its bounds; what a turn
consumes was held before it was told to the client; a turn gives back all it holds once.
"""

from collections.abc import Iterator
from operator import gt

from sessions.durable.account import (
    NO_BUDGET,
    NOTHING,
    UNBOUNDED_AMOUNT,
    Account,
    Amount,
    BudgetExceeded,
    is_bound,
)
from sessions.durable.ledger import PriceTable, TurnUsage, dollars

GRANT_TOKENS = 256
"""Output tokens held at a time."""
_HELD_KINDS = 5
"""Of an ``Amount``: all but residency, which never refuses a turn."""
LOW_TOKENS = 128
"""What is left of a grant when the next one is asked for; no step brings so many."""


class Reservation:
    """One turn's. Not reusable once settled or released."""

    __slots__ = ("_accounts", "_held", "_max_output", "_prices", "_prompt", "_thinks", "_whole",
                 "ceiling", "granted", "reasoning", "top_up_at")  # fmt: skip

    def __init__(
        self, accounts: tuple[Account, ...], prices: PriceTable, *, whole: bool, thinks: bool
    ) -> None:
        """
        Args:
            whole: all output is held at once.
            thinks: output may be reasoning.
        """
        self._accounts = accounts
        self._prices = prices
        self._whole = whole
        self._thinks = thinks
        self._held = NOTHING
        self._prompt = TurnUsage()
        self._max_output = 0
        self.ceiling = 0
        """Most output tokens that the engine should be asked for."""
        self.granted = 0
        """Output tokens that are held."""
        self.reasoning: int | None = None
        """Reasoning tokens that are held; None: nothing bounds them."""
        self.top_up_at = 0
        """From so many output tokens on, ask ``allow`` before telling more of them."""

    @property
    def limited(self) -> bool:
        """A budget, not the caller's own limit, decides ``ceiling``."""
        return self.ceiling < self._max_output

    @property
    def uncached(self) -> int:
        """Prompt tokens to compute that are held."""
        return self._prompt.uncached_tokens

    @property
    def prompt(self) -> TurnUsage:
        """The prompt that is held."""
        return self._prompt

    @property
    def held(self) -> Amount:
        """What it holds of each account."""
        return self._held

    def held_for(self, output: int) -> Amount:
        """What it would hold if it held so many output tokens, which are fewer."""
        reasoning = min(self._held.reasoning, output)
        cost = self._prices.most(self._prompt, output, reasoning)
        return self._held._replace(output=output, reasoning=reasoning, cost=cost)

    def lacking(self, wanted: Amount) -> Iterator[tuple[Account, Amount]]:
        """Of which accounts that other servers draw on too this one needs more if the turn is to
        hold ``wanted``, and how much."""
        for account in self._accounts:
            lacks = account.lacks(wanted.minus(self._held))
            if lacks is not None:
                yield account, lacks

    def wanted(self, prompt: TurnUsage, output: int) -> Amount:
        """What the turn is to hold for such a prompt and so many output tokens."""
        reasoning = output if self._thinks else 0
        return Amount(
            prompt.uncached_tokens,
            prompt.cached_tokens,
            output,
            reasoning,
            self._prices.most(prompt, output, reasoning),
        )

    def next_grant(self, output: int) -> int:
        """Output tokens to be held from ``output`` told ones on; as many as before: it is too
        early for more."""
        if output <= self.granted - LOW_TOKENS or self.granted >= self.ceiling:
            return self.granted
        return min(max(self.granted, output) + GRANT_TOKENS, self.ceiling)

    def admit(
        self, *, uncached: int, cached: int, max_output: int, most: int | None = None
    ) -> None:
        """Hold a prompt and what the turn may write, or the first part of it; what was held
        before is given back.

        Args:
            max_output: the limit without a budget; 0 for a warm-up.
            most: the engine has been asked for so many tokens already.

        Raises:
            BudgetExceeded: the prompt, or not even one output token, fits; nothing is held.
        """
        self.release()
        self._prompt = TurnUsage(input_tokens=uncached + cached, cached_tokens=cached)
        self._max_output = max_output
        room, unspent = self._room()
        self._check_prompt(room)
        most = max_output if most is None else most
        first = self._fitting(most if self._whole else min(most, GRANT_TOKENS), room)
        if first < min(1, max_output):
            self.granted = self.ceiling = 0
            raise BudgetExceeded(f"the {self._short_scope()}'s budget has no output token left")
        if self._thinks and max_output and room.reasoning < 1:
            raise BudgetExceeded("no reasoning token is left in a budget of this turn")
        self.ceiling = first
        if not self._whole:
            self.ceiling = max(self._fitting(most, unspent), first)
        self._hold(first, room)

    def adjust(self, *, uncached: int, cached: int) -> None:
        """The engine has found so much of the prompt: hold it so, and the same output where
        that still fits, else less.

        Raises:
            BudgetExceeded: as for ``admit``.
        """
        prompt = TurnUsage(input_tokens=uncached + cached, cached_tokens=cached)
        cost = self._prices.most(prompt, self.granted, self._held.reasoning)
        held = self._held._replace(input_uncached=uncached, input_cached=cached, cost=cost)
        more = held.minus(self._held)
        if any(not _holds(account, more) for account in self._accounts):
            self.admit(
                uncached=uncached,
                cached=cached,
                max_output=self._max_output,
                most=self.ceiling,
            )
            return
        self._prompt, self._held = prompt, held
        for account in self._accounts:
            account.held = account.held.plus(more)

    def allow(self, output: int) -> int:
        """How many of ``output`` tokens, counted from the turn's first, it may tell, after a
        top-up if one is due."""
        if output > self.granted - LOW_TOKENS and self.granted < self.ceiling:
            self._top_up(output)
        return min(output, self.granted)

    def settle(self, usage: TurnUsage) -> int:
        """Replace what is held by what the turn consumed; returns its cost."""
        self.release()
        cost = self._prices.cost(usage)
        spent = amount_of(usage, cost)
        for account in self._accounts:
            account.spend(spent)
        return cost

    def release(self) -> None:
        """Give back all that is held. May be called again."""
        held, self._held = self._held, NOTHING
        self.granted = 0
        if held is not NOTHING:
            for account in self._accounts:
                account.held = account.held.minus(held)

    def _top_up(self, output: int) -> None:
        granted = self.granted
        self.release()
        wanted = min(max(granted, output) + GRANT_TOKENS, self.ceiling)
        room, _ = self._room()
        self._hold(max(self._fitting(wanted, room), granted), room)

    def _hold(self, granted: int, room: Amount) -> None:
        """Hold the prompt and so many output tokens."""
        self.granted = granted
        self.top_up_at = granted - LOW_TOKENS if granted < self.ceiling else granted
        reasoning = min(granted, max(room.reasoning, 0)) if self._thinks else 0
        bounded = self._thinks and is_bound(room.reasoning)
        self.reasoning = reasoning if bounded else None
        prompt = self._prompt
        self._held = held = Amount(
            prompt.uncached_tokens,
            prompt.cached_tokens,
            granted,
            reasoning,
            self._prices.most(prompt, granted, reasoning),
        )
        for account in self._accounts:
            account.held = account.held.plus(held)

    def _fitting(self, output: int, room: Amount) -> int:
        """Of ``output`` tokens those that fit behind the prompt."""
        if is_bound(room.cost):
            affordable = self._prices.affordable(self._prompt, room.cost, thinks=self._thinks)
            if affordable is not None:
                output = min(output, affordable)
        return min(output, room.output)

    def _room(self) -> tuple[Amount, Amount]:
        """What is left everywhere, and what would be if other turns held nothing."""
        left = unspent = UNBOUNDED_AMOUNT
        for account in self._accounts:
            if account.budget is not NO_BUDGET:
                free = account.limits.minus(account.spent)
                unspent = unspent.least(free)
                if account.reach is not None:
                    free = account.free()
                left = left.least(free.minus(account.held))
        return left, unspent

    def _check_prompt(self, room: Amount) -> None:
        prompt = self._prompt
        cost = self._prices.cost(prompt)
        wanted = Amount(prompt.uncached_tokens, prompt.cached_tokens, cost=cost)
        if any(map(gt, wanted[:_HELD_KINDS], room)):
            for account in self._accounts:
                _refuse_prompt(account, wanted)

    def _short_scope(self) -> str:
        """Whose budget has no output token left."""
        for account in self._accounts:
            left = account.free().minus(account.held)
            if self._fitting(1, left) < 1:
                return account.scope
        return "session"


def _holds(account: Account, more: Amount) -> bool:
    """Whether what is more than nothing of ``more`` is left."""
    limits, spent, held = account.limits, account.spent, account.held
    for kind, count in enumerate(more):
        if count > 0 and count > limits[kind] - spent[kind] - held[kind]:
            return False
    if account.reach is not None:
        return account.lacks(more) is None
    return True


def amount_of(usage: TurnUsage, cost: int) -> Amount:
    """A turn's usage as what it spends."""
    return Amount(
        usage.uncached_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        cost,
    )


def _refuse_prompt(account: Account, prompt: Amount) -> None:
    """Raise BudgetExceeded if it is this account's budget that does not hold the prompt."""
    left = account.free().minus(account.held)
    whose = f"the {account.scope}'s budget"
    for name, count, room in (
        ("uncached", prompt.input_uncached, left.input_uncached),
        ("cached", prompt.input_cached, left.input_cached),
    ):
        if count > room:
            raise BudgetExceeded(
                f"the prompt has {count} {name} tokens, {whose} has {max(room, 0)} left"
            )
    if prompt.cost > left.cost:
        raise BudgetExceeded(
            f"the prompt costs {dollars(prompt.cost):.9f} dollars, {whose} has "
            f"{dollars(max(left.cost, 0)):.9f} left"
        )
