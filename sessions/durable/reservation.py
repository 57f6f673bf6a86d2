"""One turn's hold on every account it draws on, from before its first step to its end.

Input is held for what the engine says that it computes and finds. Output of free text is held in
grants, topped up while the turn decodes, so that turns which run at the same time share what is
left; a turn whose output a grammar binds holds all it may write from the start, since it has to
end legally within it. What was held and not consumed is given back at the end.

Always true: an account's turns never hold more than is left of any of its bounds; what a turn
consumes was held before it was told to the client; a turn gives back all it holds once.
"""

from collections.abc import Iterator

from sessions.durable.account import (
    NOTHING,
    UNBOUNDED_AMOUNT,
    Account,
    Amount,
    BudgetExceeded,
    is_bound,
)
from sessions.durable.ledger import PriceTable, PromptTokens, TurnUsage, dollars

GRANT_TOKENS = 256
"""Output tokens held at a time."""
LOW_TOKENS = 128
"""The rest of a grant at which the next one is asked for; no step brings so many."""

_new = tuple.__new__
"""Makes an ``Amount`` without the call to its constructor."""


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
        self._prompt = PromptTokens()
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
        return self._prompt.uncached

    @property
    def prompt(self) -> PromptTokens:
        """The prompt that is held."""
        return self._prompt

    @property
    def held(self) -> Amount:
        """The amount that it holds of each account."""
        return self._held

    def held_for(self, output: int) -> Amount:
        """The amount that it would hold for so many output tokens, which are fewer."""
        reasoning = min(self._held.reasoning, output)
        cost = self._prices.most(self._prompt, output, reasoning)
        return self._held._replace(output=output, reasoning=reasoning, cost=cost)

    def lacking(self, wanted: Amount) -> Iterator[tuple[Account, Amount]]:
        """The accounts that other servers draw on too of which this one needs more if the turn is
        to hold ``wanted``, and how much."""
        for account in self._accounts:
            lacks = account.lacks(wanted.minus(self._held))
            if lacks is not None:
                yield account, lacks

    def wanted(self, prompt: PromptTokens, output: int) -> Amount:
        """The amount that the turn is to hold for such a prompt and so many output tokens."""
        return self._amount(prompt, output, output if self._thinks else 0)

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
        self._prompt = PromptTokens(uncached, cached)
        self._max_output = max_output
        room = self._room()
        self._check_prompt(room)
        most = max_output if most is None else most
        fitting = self._fitting(most, room)
        first = fitting if self._whole else min(fitting, GRANT_TOKENS)
        if first < min(1, max_output):
            self.granted = self.ceiling = 0
            short = self._short()
            raise BudgetExceeded(f"{short.whose} has no output token left{short.renewal}")
        if self._thinks and max_output and room.reasoning < 1:
            raise BudgetExceeded("no reasoning token is left in a budget of this turn")
        self.ceiling = fitting
        if fitting < most and not self._whole:
            self.ceiling = max(self._fitting(most, self._unspent()), first)
        self._hold(first, room)

    def adjust(self, *, uncached: int, cached: int) -> None:
        """The engine has found so much of the prompt: hold it so, and the same output where
        that still fits, else less.

        Raises:
            BudgetExceeded: as for ``admit``.
        """
        prompt = PromptTokens(uncached, cached)
        held = self._amount(prompt, self._held.output, self._held.reasoning)
        if not self._has_room(held.minus(self._held)):
            self.admit(
                uncached=uncached,
                cached=cached,
                max_output=self._max_output,
                most=self.ceiling,
            )
            return
        self._prompt = prompt
        self._replace_held(held)

    def allow(self, output: int) -> int:
        """How many of ``output`` tokens, counted from the turn's first, it may tell, after a
        top-up if one is due."""
        if output > self.granted - LOW_TOKENS and self.granted < self.ceiling:
            self._top_up(output)
        return min(output, self.granted)

    def settle(self, usage: TurnUsage) -> int:
        """Replace what is held by what the turn consumed; returns its cost."""
        cost = self._prices.cost(usage)
        spent = amount_of(usage, cost)
        held, self._held = self._held, NOTHING
        self.granted = 0
        for account in self._accounts:
            account.spend(spent, held)
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
        wanted = min(max(granted, output) + GRANT_TOKENS, self.ceiling)
        room = self._room().plus(self._held)  # of what it holds itself it may hold all again
        self._hold(max(self._fitting(wanted, room), granted), room)

    def _hold(self, granted: int, room: Amount) -> None:
        """Hold the prompt and so many output tokens, in the place of what is held."""
        self.granted = granted
        self.top_up_at = granted - LOW_TOKENS if granted < self.ceiling else granted
        reasoning = held = self._held.reasoning
        if self._thinks:
            # No less than before, if a budget was lowered meanwhile: it may be told already.
            reasoning = max(min(granted, room.reasoning), held)
        if reasoning > held and granted == self._held.output:
            # There is room for more of it as reasoning, but perhaps not the money.
            whole = self._amount(self._prompt, granted, reasoning)
            reasoning = reasoning if whole.cost <= room.cost else held
        bounded = self._thinks and (is_bound(room.reasoning) or reasoning < granted)
        self.reasoning = reasoning if bounded else None
        self._replace_held(self._amount(self._prompt, granted, reasoning))

    def _amount(self, prompt: PromptTokens, output: int, reasoning: int) -> Amount:
        """The amount that is held for that, at the most that it may cost."""
        cost = self._prices.most(prompt, output, reasoning)
        return _new(Amount, (*prompt, output, reasoning, cost, 0))

    def _replace_held(self, held: Amount) -> None:
        """Hold that of every account instead of what is held."""
        before, self._held = self._held, held
        a, b, c, d, e, _ = held if before is NOTHING else held.minus(before)
        for account in self._accounts:
            k, x, m, n, o, p = account.held
            account.held = _new(Amount, (a + k, b + x, c + m, d + n, e + o, p))

    def _fitting(self, output: int, room: Amount) -> int:
        """The part of ``output`` tokens that fits behind the prompt."""
        if is_bound(room.cost):
            affordable = self._prices.affordable(self._prompt, room.cost, thinks=self._thinks)
            if affordable is not None:
                output = min(output, affordable)
        return min(output, room.output)

    def _room(self) -> Amount:
        """The rest everywhere of all that is held. For every account of every turn, several times:
        in one pass that makes nothing on its way."""
        a, b, c, d, e, f = UNBOUNDED_AMOUNT
        for account in self._accounts:
            if account.limits is UNBOUNDED_AMOUNT:
                continue
            if account.reach is None:
                free, spent = account.limits, account.spent
            else:
                free, spent = account.free(), NOTHING
            k, x, m, n, o, _ = free
            q, r, s, t, u, _ = spent
            v, w, y, z, h, _ = account.held
            k -= q + v
            x -= r + w
            m -= s + y
            n -= t + z
            o -= u + h
            a = k if k < a else a
            b = x if x < b else b
            c = m if m < c else c
            d = n if n < d else d
            e = o if o < e else e
        return Amount(a, b, c, d, e, f)

    def _has_room(self, more: Amount) -> bool:
        """Whether what is more than nothing of ``more`` is left everywhere."""
        a, b, c, d, e, _ = more
        k, x, m, n, o, _ = self._room()
        lacks = (a > k and a > 0) or (b > x and b > 0) or (c > m and c > 0)
        if lacks or (d > n and d > 0) or (e > o and e > 0):
            return False
        for account in self._accounts:
            if account.reach is not None and account.lacks(more) is not None:
                return False
        return True

    def _unspent(self) -> Amount:
        """The rest of output and money if no turn held anything and no other server had a share."""
        output, cost = UNBOUNDED_AMOUNT.output, UNBOUNDED_AMOUNT.cost
        for account in self._accounts:
            limits, spent = account.limits, account.spent
            output = min(output, limits.output - spent.output)
            cost = min(cost, limits.cost - spent.cost)
        return Amount(output=output, cost=cost)

    def _check_prompt(self, room: Amount) -> None:
        uncached, cached = self._prompt
        cost = self._prices.most(self._prompt, 0, 0)
        if uncached > room.input_uncached or cached > room.input_cached or cost > room.cost:
            for account in self._accounts:
                _refuse_prompt(account, Amount(uncached, cached, cost=cost))

    def _short(self) -> Account:
        """The account that has no output token left."""
        for account in self._accounts:
            left = account.free().minus(account.held)
            if self._fitting(1, left) < 1:
                return account
        return self._accounts[0]


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
    whose, more = account.whose, account.renewal
    for name, count, room in (
        ("uncached", prompt.input_uncached, left.input_uncached),
        ("cached", prompt.input_cached, left.input_cached),
    ):
        if count > room:
            raise BudgetExceeded(
                f"the prompt has {count} {name} tokens, {whose} has {max(room, 0)} left{more}"
            )
    if prompt.cost > left.cost:
        raise BudgetExceeded(
            f"the prompt costs {dollars(prompt.cost):.9f} dollars, {whose} has "
            f"{dollars(max(left.cost, 0)):.9f} left{more}"
        )
