"""What one turn holds of every account it draws on, from before its first step to its end.

Input is held for what the engine says that it computes and finds. Output of free text is held in
grants, topped up while the turn decodes, so that turns which run at the same time share what is
left; a turn whose output a grammar binds holds all it may write from the start, since it has to
end legally within it. What was held and not consumed is given back at the end.

Always true: an account's turns never hold more than is left of any of its bounds; what a turn
consumes was held before it was told to the client; a turn gives back all it holds once.
"""

from sessions.durable.account import Account, Amount, Budget, BudgetExceeded
from sessions.durable.ledger import PriceTable, TurnUsage, dollars

GRANT_TOKENS = 256
"""Output tokens held at a time."""
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
        self._held = Amount()
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
    def held(self) -> Amount:
        """What it holds of each account."""
        return self._held

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
        prompt = TurnUsage(input_tokens=uncached + cached, cached_tokens=cached)
        self._prompt, self._max_output = prompt, max_output
        for account in self._accounts:
            _check_prompt(account.scope, account.left(), prompt, self._prices)
        if self._thinks and max_output and self._fitting_reasoning(1)[0] < 1:
            raise BudgetExceeded("no reasoning token is left in a budget of this turn")
        most = max_output if most is None else most
        first = most if self._whole else min(most, GRANT_TOKENS)
        granted = self._fitting(first, [account.left() for account in self._accounts])
        if granted < min(1, max_output):
            self.granted = self.ceiling = 0
            raise BudgetExceeded(f"the {self._short_scope()}'s budget has no output token left")
        self.ceiling = granted
        if not self._whole:
            unspent = [account.unspent() for account in self._accounts]
            self.ceiling = max(self._fitting(most, unspent), granted)
        self._hold(granted)

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
            account.spent = account.spent + spent
        return cost

    def release(self) -> None:
        """Give back all that is held. May be called again."""
        held, self._held = self._held, Amount()
        self.granted = 0
        for account in self._accounts:
            account.held = account.held - held

    def _top_up(self, output: int) -> None:
        held, granted, self._held = self._held, self.granted, Amount()
        for account in self._accounts:
            account.held = account.held - held
        wanted = min(max(granted, output) + GRANT_TOKENS, self.ceiling)
        fitting = self._fitting(wanted, [account.left() for account in self._accounts])
        self._hold(max(fitting, granted))

    def _hold(self, granted: int) -> None:
        """Hold the prompt and so many output tokens."""
        self.granted = granted
        self.top_up_at = granted - LOW_TOKENS if granted < self.ceiling else granted
        reasoning, self.reasoning = self._fitting_reasoning(granted)
        prompt = self._prompt
        self._held = Amount(
            input_uncached=prompt.uncached_tokens,
            input_cached=prompt.cached_tokens,
            output=granted,
            reasoning=reasoning,
            cost=self._prices.most(prompt, granted, reasoning),
        )
        for account in self._accounts:
            account.held = account.held + self._held

    def _fitting_reasoning(self, granted: int) -> tuple[int, int | None]:
        """Reasoning tokens to hold, and the bound on them if there is one."""
        if not self._thinks:
            return 0, None
        bounds = [account.left().reasoning for account in self._accounts]
        known = [bound for bound in bounds if bound is not None]
        if not known:
            return granted, None
        bound = max(min(known), 0)
        return min(granted, bound), bound

    def _fitting(self, output: int, lefts: list[Budget]) -> int:
        """Of ``output`` tokens those that fit in what is left everywhere."""
        for left in lefts:
            if left.output is not None:
                output = min(output, left.output)
            if left.cost is not None:
                affordable = self._prices.affordable(self._prompt, left.cost, thinks=self._thinks)
                if affordable is not None:
                    output = min(output, affordable)
        return output

    def _short_scope(self) -> str:
        """Whose budget has no output token left."""
        short = (a.scope for a in self._accounts if self._fitting(1, [a.left()]) < 1)
        return next(short, "session")


def amount_of(usage: TurnUsage, cost: int) -> Amount:
    """A turn's usage as what it spends."""
    return Amount(
        input_uncached=usage.uncached_tokens,
        input_cached=usage.cached_tokens,
        output=usage.output_tokens,
        reasoning=usage.reasoning_tokens,
        cost=cost,
    )


def _check_prompt(scope: str, left: Budget, prompt: TurnUsage, prices: PriceTable) -> None:
    whose = f"the {scope}'s budget"
    for kind, count, bound in (
        ("uncached", prompt.uncached_tokens, left.input_uncached),
        ("cached", prompt.cached_tokens, left.input_cached),
    ):
        if bound is not None and count > bound:
            raise BudgetExceeded(
                f"the prompt has {count} {kind} tokens, {whose} has {max(bound, 0)} left"
            )
    cost = prices.cost(prompt)
    if left.cost is not None and cost > left.cost:
        raise BudgetExceeded(
            f"the prompt costs {dollars(cost):.9f} dollars, {whose} has "
            f"{dollars(max(left.cost, 0)):.9f} left"
        )
