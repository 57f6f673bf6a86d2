"""One turn's hold on all accounts that it draws on, from before its first step to its end.

These are its session's, those above, and one that the turn brings.

Input is held for what the engine says that it computes and finds. Output of free text is held in
grants, topped up while the turn decodes, so that turns which run at the same time share what is
left; a turn whose output a grammar binds holds all it may write from the start, since it has to
end legally within it. What was held and not consumed is given back at the end.

Always true: an account's turns never hold more than is left of any of its bounds; what a turn
consumes was held before it was told to the client; a turn gives back all it holds once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from runtime.messages import SequenceOutput, SequenceStart
from sessions.durable.account import (
    NOTHING,
    UNBOUNDED_AMOUNT,
    Account,
    Amount,
    BudgetExceeded,
    is_bound,
)
from sessions.durable.ledger import NOTHING_UNSETTLED, Ledger, PromptTokens, TurnUsage, dollars

GRANT_TOKENS = 256
"""Output tokens held at a time."""
LOW_TOKENS = 128
"""The rest of a grant at which the next one is asked for; no step brings so many."""

_ENDING_UNAFFORDABLE = (
    "no legal ending of this turn's output is known within what is left of its budgets"
)
_new = tuple.__new__
"""Makes an ``Amount`` without the call to its constructor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnNeeds:
    """The amounts that a turn wants to consume."""

    prompt_tokens: int
    max_output: int
    """Most output tokens without a budget; 0 for a warm-up."""
    bound: bool
    """A grammar may bind its output, so that it has to have room to end legally: all of it is held
    at once."""
    thinks: bool
    """Output tokens of the turn may be reasoning."""
    own: tuple[Account, ...] = ()
    """Accounts of this turn alone."""
    adapter: str | None = None
    """The adapter whose prices it has; None: the model's."""


class WrittenTokens(Protocol):
    """The tokens that a turn has written so far."""

    tokens: list[int]

    def before_reasoning(self, tokens: Iterable[int], most: int) -> int:
        """Tokens before the reasoning, as ``OutputReader.before_reasoning``."""
        ...


class Reservation:
    """One turn's. May be admitted again once released; not reusable once settled."""

    __slots__ = ("_accounts", "_cut", "_is_turn", "_ledger", "_needs", "_open", "_prices",
                 "_prompt", "ask_at", "granted", "held", "limit", "noted", "reasoning",
                 "top_up_at")  # fmt: skip

    def __init__(
        self,
        needs: TurnNeeds,
        ledger: Ledger,
        *,
        accounts: tuple[Account, ...] | None = None,
        is_turn: bool = True,
    ) -> None:
        """
        Args:
            accounts: beside its own those that it draws on; None: all of the ledger's.
            is_turn: what it consumes counts as one of the session's turns.
        """
        self._accounts = (*needs.own, *(ledger.accounts if accounts is None else accounts))
        self._needs = needs
        self._ledger = ledger
        self._prices = ledger.prices.adapters.get(needs.adapter, ledger.prices)
        self._is_turn = is_turn
        self._cut = False
        """Whether output was kept from the client for a budget."""
        self._open = False
        """Whether an amount may still be held."""
        self._prompt = PromptTokens()
        self.held = NOTHING
        """The amount that it holds of each account."""
        self.limit = 0
        """Most output tokens to ask the engine for."""
        self.granted = 0
        """Output tokens that are held."""
        self.reasoning: int | None = None
        """Reasoning tokens that are held; None: nothing bounds them."""
        self.top_up_at = 0
        """The number of output tokens from which on ``allow`` is to be asked before more are
        told."""
        self.ask_at = 0
        """The number of output tokens up to which a step need not be looked at by
        ``within_budget``."""
        self.noted = NOTHING
        """The amount that the turn may consume of every account before it is noted anew: what is
        held, but of output that is all held at once no more than a grant. Another object whenever
        it has changed."""

    @property
    def limited(self) -> bool:
        """A budget ends the output, not the client's own limit or the context."""
        return self._cut or self.limit < self._needs.max_output

    @property
    def uncached(self) -> int:
        """Prompt tokens to be computed that are held."""
        return self._prompt.uncached

    def lacking_to_start(self) -> list[tuple[Account, Amount]]:
        """The accounts that other servers draw on too of which more is needed before the turn is
        admitted, and how much, whatever of its prompt is found in the cache."""
        needs, count = self._needs, self._needs.prompt_tokens
        first = needs.max_output if needs.bound else min(needs.max_output, GRANT_TOKENS)
        computed = self._wanted(PromptTokens(uncached=count), first)
        found = self._wanted(PromptTokens(cached=count), first)
        return list(self._lacking(computed.most(found)))

    def lacking_for(self, output: SequenceOutput, told: int) -> list[tuple[Account, Amount]]:
        """The same before ``adjust`` and ``within_budget`` take that output."""
        upto = told + len(output.new_tokens)
        if not self._open or (output.start is None and upto <= self.ask_at):
            return []
        prompt = self._prompt
        if output.start is not None:
            cached = output.start.cached_tokens
            prompt = PromptTokens(self._needs.prompt_tokens - cached, cached)
        return list(self._lacking(self._wanted(prompt, self._next_grant(upto))))

    def admit(self, *, cached: int) -> None:
        """Hold the prompt, of which so many tokens are in the cache, and what the turn may write,
        or the first part of it; what was held before is given back.

        Raises:
            BudgetExceeded: the prompt, or not even one output token, fits; nothing is held.
        """
        prompt = PromptTokens(self._needs.prompt_tokens - cached, cached)
        self._admit(prompt, most=self._needs.max_output)

    def adjust(self, start: SequenceStart) -> None:
        """The engine has said how many tokens it found: hold the prompt so, and the same output
        where that still fits, else less, never more than the engine was asked for.

        Raises:
            BudgetExceeded: as for ``admit``; or a budget might cut what a grammar binds. Nothing
                is held.
        """
        if not self._open:
            return
        asked = self.limit
        if self.uncached != start.input_tokens - start.cached_tokens:
            cached = start.cached_tokens
            prompt = PromptTokens(self._needs.prompt_tokens - cached, cached)
            held = self._amount(prompt, self.held.output, self.held.reasoning)
            if self._has_room(held.minus(self.held)):
                self._prompt = prompt
                self._replace_held(held)
            else:
                self._admit(prompt, most=asked)
        if self.limited and not start.ending_known and self.limit == asked:
            self.release()
            raise BudgetExceeded(_ENDING_UNAFFORDABLE)
        self._set_mark(told=0)

    def within_budget(self, output: SequenceOutput, written: WrittenTokens) -> SequenceOutput:
        """The part of a step's tokens that may be told: all of them, in the same object, or those
        that are held."""
        told, new = len(written.tokens), len(output.new_tokens)
        kept = max(self.allow(told + new) - told, 0)
        self._set_mark(told=told + new)
        if self.reasoning is not None:
            kept = written.before_reasoning(output.new_tokens[:kept], self.reasoning)
        if kept == new:
            return output
        self._cut = True
        return replace(output, new_tokens=output.new_tokens[:kept], forced=min(output.forced, kept))

    def allow(self, output: int) -> int:
        """How many of ``output`` tokens, counted from the turn's first, it may tell, after a
        top-up if one is due."""
        granted = self._next_grant(output)
        if granted > self.granted:
            room = self._room().plus(self.held)  # of what it holds itself it may hold all again
            self._hold(max(self._fitting(granted, room), self.granted), room)
        return min(output, self.granted)

    def settle(self, usage: TurnUsage, *, goes_on: bool = False) -> tuple[TurnUsage, int]:
        """The turn has ended: what it consumed is spent in the place of what is held, and what the
        session's KV was charged meanwhile is recorded with it. Returns both with their cost;
        nothing if nothing was held. ``goes_on``: only a part of it has."""
        if not self._open:
            return usage, 0
        cost = self._prices.cost(usage)
        spent, held = amount_of(usage, cost), self._take_held()
        for account in self._accounts:
            account.spend(spent, held)
        ledger = self._ledger
        if ledger.unsettled is not NOTHING_UNSETTLED:
            unsettled = ledger.pop_unsettled()
            usage = replace(usage, residency=unsettled.block_us)
            cost += unsettled.cost
        is_turn = self._is_turn and not goes_on
        ledger.settled(usage, cost, adapter=self._needs.adapter, is_turn=is_turn)
        return usage, cost

    def release(self) -> None:
        """Give back all that is held. May be called again."""
        held = self._take_held()
        if held is not NOTHING:
            for account in self._accounts:
                account.held = account.held.minus(held)

    def _take_held(self) -> Amount:
        """Take the held amount off; the caller has to give it back or to spend it."""
        held, self.held, self.noted = self.held, NOTHING, NOTHING
        self.granted = 0
        self._open = False
        return held

    def _admit(self, prompt: PromptTokens, *, most: int) -> None:
        """``most``: output tokens that the engine may be asked for, or has been."""
        self.release()
        needs, self._prompt = self._needs, prompt
        room = self._room()
        self._check_prompt(room)
        fitting = self._fitting(most, room)
        first = fitting if needs.bound else min(fitting, GRANT_TOKENS)
        if first < min(1, needs.max_output):
            self.limit = 0
            short = self._short()
            raise BudgetExceeded(f"{short.whose} has no output token left{short.renewal}")
        if needs.thinks and needs.max_output and room.reasoning < 1:
            raise BudgetExceeded("no reasoning token is left in a budget of this turn")
        self.limit = fitting
        if fitting < most and not needs.bound:
            self.limit = max(self._fitting(most, self._unspent()), first)
        self._hold(first, room)
        self._open = True
        self._set_mark(told=0)

    def _set_mark(self, *, told: int) -> None:
        """Note what is held, and say with which token to look again."""
        held = self.held
        grant = -(-(told + LOW_TOKENS) // GRANT_TOKENS) * GRANT_TOKENS
        if held.output > grant:
            reasoning = min(held.reasoning, grant)
            held = self._amount(self._prompt, grant, reasoning)
        if held != self.noted:
            self.noted = held
        mark = self.top_up_at
        if held.output < self.granted:
            mark = min(mark, held.output - LOW_TOKENS)
        self.ask_at = mark if self.reasoning is None else -1

    def _lacking(self, wanted: Amount) -> Iterator[tuple[Account, Amount]]:
        """The accounts that other servers draw on too of which this one needs more if the turn is
        to hold ``wanted``, and how much."""
        for account in self._accounts:
            lacks = account.lacks(wanted.minus(self.held))
            if lacks is not None:
                yield account, lacks

    def _wanted(self, prompt: PromptTokens, output: int) -> Amount:
        """The amount that the turn is to hold for such a prompt and so many output tokens."""
        return self._amount(prompt, output, output if self._needs.thinks else 0)

    def _next_grant(self, output: int) -> int:
        """Output tokens to be held from ``output`` told ones on; as many as before: it is too
        early for more."""
        if output <= self.granted - LOW_TOKENS or self.granted >= self.limit:
            return self.granted
        return min(max(self.granted, output) + GRANT_TOKENS, self.limit)

    def _hold(self, granted: int, room: Amount) -> None:
        """Hold the prompt and so many output tokens, in the place of what is held."""
        self.granted = granted
        self.top_up_at = granted - LOW_TOKENS if granted < self.limit else granted
        reasoning = held = self.held.reasoning
        if self._needs.thinks:
            # No less than before, if a budget was lowered meanwhile: it may be told already.
            reasoning = max(min(granted, room.reasoning), held)
        if reasoning > held and granted == self.held.output:
            # There is room for more of it as reasoning, but perhaps not the money.
            whole = self._amount(self._prompt, granted, reasoning)
            reasoning = reasoning if whole.cost <= room.cost else held
        bounded = self._needs.thinks and (is_bound(room.reasoning) or reasoning < granted)
        self.reasoning = reasoning if bounded else None
        self._replace_held(self._amount(self._prompt, granted, reasoning))

    def _amount(self, prompt: PromptTokens, output: int, reasoning: int) -> Amount:
        """The amount that is held for that, at the most that it may cost."""
        cost = self._prices.most(prompt, output, reasoning)
        return _new(Amount, (*prompt, output, reasoning, cost, 0))

    def _replace_held(self, held: Amount) -> None:
        """Hold an amount of every account instead of what is held."""
        before, self.held = self.held, held
        a, b, c, d, e, _ = held if before is NOTHING else held.minus(before)
        for account in self._accounts:
            k, x, m, n, o, p = account.held
            account.held = _new(Amount, (a + k, b + x, c + m, d + n, e + o, p))

    def _fitting(self, output: int, room: Amount) -> int:
        """The part of ``output`` tokens that fits behind the prompt."""
        if is_bound(room.cost):
            affordable = self._prices.affordable(self._prompt, room.cost, thinks=self._needs.thinks)
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
