"""One turn's request to the model, decided before anything runs.

A plan is made by ``sessions.turns.planning`` and run by ``sessions.turns.turn``. Here is also how
it is put to the engine.

Always true: the engine's prompt is header, chain and new input, whichever part of it the
engine already holds.
"""

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.messages import GenerationRequest, ResumePoint, SamplingParams, TokenArray
from sessions.durable.account import NOTHING as NO_AMOUNT
from sessions.durable.account import Account, Amount
from sessions.durable.branches import Claim
from sessions.durable.budgets import bounds_of
from sessions.durable.conversations import ConversationRead
from sessions.durable.ledger import TurnUsage
from sessions.durable.miss_reasons import Miss
from sessions.durable.reservation import TurnNeeds
from sessions.durable.transcript import NOTHING, Entry, Header, LeftOut, Tail, chain, chain_ids
from sessions.durable.turn_stats import TurnClock
from sessions.durable.usage_keys import NO_KEYS, UsageKeys
from sessions.turns.cache_diagnostics import Comparison
from sessions.turns.recasting import Decision, Rules
from tools_api.chat_format import ChatFormat, TemplateOptions
from tools_api.grammar import GrammarSpec
from tools_api.items import Item
from tools_api.output_checks import OutputChecks
from tools_api.requests import ContextManagement, CreateRequest

NO_CHECKS = OutputChecks()
_TIERS = {
    "auto": ("default", 0),
    "default": ("default", 0),
    "scale": ("default", 0),
    "flex": ("flex", -10),
    "priority": ("priority", 10),
    "fast": ("priority", 10),
    "ultrafast": ("priority", 10),
}
"""The tier in use and its priority, by the requested service tier."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastTurn:
    """The facts of the session that the account of misses needs."""

    said: Entry | None = None
    """Where the session stood, if the turn continues nothing."""
    idle_s: float | None = None
    """Since the session's last turn began or ended; None: there was none."""


NO_LAST_TURN = LastTurn()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Due:
    """The context is to be recast before the turn (``sessions.turns.compacting``)."""

    threshold: int
    """The tokens that it has reached; what remains is half of them."""
    entry: ContextManagement | None
    """The entry of the request by which it is due; None: it is asked for without a threshold."""
    inner: bool
    """Clients see nothing of it but the report: no item stands for what is left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recast:
    """The change to the context for this turn."""

    items: tuple[Item, ...] = ()
    """Items that lead the output."""
    report: dict[str, Any] = field(default_factory=dict)
    """The ``response.keepwarm.context`` of a turn whose context was recast."""


@dataclass(slots=True, kw_only=True, eq=False)
class PreparedCut:
    """A cut that was decided and summed up ahead of the turn that makes it."""

    entry: Entry
    """The end of the chain that was looked at; what is said behind it stays."""
    decision: Decision | None = None
    """The decision how to cut; None: there is none (yet)."""
    rules: Rules | None = None
    """The rules by which it was decided."""
    text: str | None = None
    """The summary, if one was needed."""
    cost: dict[str, Any] = field(default_factory=dict)
    """Usage and cost of the summary."""
    warnings: tuple[str, ...] = ()
    """Warnings of the turn that makes the cut."""
    items: tuple[Item, ...] = ()
    """Items of the history up to ``entry``."""
    sizes: tuple[int, ...] = ()
    """Tokens of each of ``items`` on its own."""
    under_way: bool = False
    waiting: tuple[Hashable, ...] = ()
    """Tickets of turns that wait for the cut to be made."""


def prepared_for(held: object, entry: Entry | None) -> PreparedCut | None:
    """The cut that was computed ahead for a chain, or is about to be.

    Args:
        held: what a session has of the kind.
    """
    if not isinstance(held, PreparedCut):
        return None
    return held if any(link is held.entry for link in chain(entry)) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begun:
    """A response before the next part of its turn: the model has called a tool that the server
    runs, and goes on behind its output."""

    first: "TurnPlan"
    """The plan that the turn began with."""
    part: int
    """How many parts there were."""
    items: tuple[Item, ...]
    """Items of the output, those of the server among them."""
    ids: TokenArray
    """Token ids of the items, up to where this part begins to read."""
    told: int
    """Items that the response has told, whoever said them."""
    usage: TurnUsage
    cost: int
    misses: tuple[Miss, ...]
    resumed: tuple[ResumePoint, ...]
    miss_causes: Mapping[str, int]
    clock: TurnClock

    @property
    def spent(self) -> Amount:
        """The amount that its parts have consumed."""
        usage = self.usage
        return Amount(
            input_uncached=usage.uncached_tokens,
            input_cached=usage.cached_tokens,
            output=usage.output_tokens,
            reasoning=usage.reasoning_tokens,
            cost=self.cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnPlan:
    """One turn's context and limits."""

    response_id: str
    request: CreateRequest
    private: bool
    """Only this connection may continue the response (``store: false``, here or before)."""
    tenant: str
    session: str
    number: int
    """The turn's number, 1 for the session's first."""
    model: str
    """The model's name, as the client called it."""
    adapter: str | None
    """The adapter that it is computed with, and all that is computed for it; None: none."""
    previous_response_id: str | None
    continued: Entry | None
    """The stored entry this turn comes behind: that of the response it names, or an older one
    where an output stands in front of what came since."""
    parent: Entry | None
    """The chain the model reads: ``continued``, or what truncation left of it."""
    rebuilt: bool
    """The context differs from that of ``continued`` from its first tokens on: another
    header, or truncation."""
    forks: bool
    """Whether it leaves the chain that it goes on from to somebody else."""
    header: Header
    input_items: tuple[Item, ...]
    input_ids: TokenArray
    tail: Tail
    """How the context ends, before any output."""
    open_calls: frozenset[str]
    digest: bytes
    """The digest over all items of the context."""
    max_output: int
    """Output tokens without a budget: what the client and the context allow. 0: warm-up."""
    context_limited: bool
    """The context, not the client, decides ``max_output``."""
    grammar: GrammarSpec | None
    banned_tokens: tuple[int, ...]
    arrival_s: float
    continued_id: str | None = None
    """The response that ``continued`` is of, if that is known."""
    comparison: Comparison | None = None
    """The response with which the client wants the turn's cache hits compared."""
    last_turn: LastTurn = NO_LAST_TURN
    checks: OutputChecks = NO_CHECKS
    """The parts of the output that the grammar does not hold."""
    left_out: LeftOut = NOTHING
    """Parts of the history that truncation left out."""
    cut: bool = False
    """Whether truncation left something out for this turn, or cut a text."""
    frame_bytes: int = 0
    """Bytes of the frame that asked for it, unless that repeated a history."""
    due: Due | None = None
    """The context is too long, and was rendered as it is; another plan is to be made of it."""
    recast: Recast | None = None
    begun: Begun | None = None
    """The turn has begun already: this is a further part of it."""
    conversation: ConversationRead | None = None
    """The part that it reads of the conversation which it is in."""
    accounts: tuple[str, ...] = ()
    """Names of the accounts that it draws on besides its session's own, once it runs."""
    keys: UsageKeys = NO_KEYS
    """The keys under which its usage is counted."""
    sums_up: str | None = None
    """The response for whose context this turn writes the summary: no client sees it."""
    warnings: tuple[str, ...] = ()
    """Warnings to the client about the turn, a short sentence each: ``keepwarm.warnings``."""

    @property
    def answers(self) -> str:
        """The response that a client waits for."""
        return self.sums_up or self.response_id

    @property
    def start(self) -> "TurnPlan":
        """The plan that the turn began with."""
        return self if self.begun is None else self.begun.first

    @property
    def options(self) -> TemplateOptions:
        return self.header.options

    @property
    def prompt_tokens(self) -> int:
        return len(self.header.ids) + self.tokens_before + len(self.input_ids)

    @property
    def tokens_before(self) -> int:
        """The length of the chain that is continued, header excluded."""
        return 0 if self.parent is None else self.parent.num_tokens

    @property
    def service_tier(self) -> str:
        return _TIERS[self.request.service_tier][0]

    def sampling(self) -> SamplingParams:
        """Without a seed of the client's the response id is one, so that turns differ."""
        request, extra = self.request, self.request.keepwarm.sampling
        digest = hashlib.blake2b(self.response_id.encode(), digest_size=7).digest()
        return SamplingParams(
            temperature=or_default(request.temperature, 1.0),
            top_p=or_default(request.top_p, 1.0),
            top_k=extra.top_k or 0,
            min_p=extra.min_p or 0.0,
            seed=extra.seed if extra.seed is not None else int.from_bytes(digest, "big"),
            presence_penalty=extra.presence_penalty or 0.0,
            frequency_penalty=extra.frequency_penalty or 0.0,
            repetition_penalty=or_default(extra.repetition_penalty, 1.0),
            stop=extra.stop,
            top_logprobs=request.num_logprobs,
        )

    def generation_request(
        self, *, request_id: str, claim: Claim, limit: int, now: float
    ) -> GenerationRequest:
        """The plan for the engine session that was claimed.

        Args:
            limit: most output tokens, the session's budget included.
        """
        options, ids = self.request.keepwarm, self.input_ids
        if claim.base_offset == 0:
            ids = chain_ids(self.header, self.parent, self.input_ids)
        deadline_s = None
        if options.deadline_ms is not None:
            deadline_s = max(options.deadline_ms / 1000 - (now - self.arrival_s), 0.0)
        tool_ms = options.expected_tool_ms
        return GenerationRequest(
            request_id=request_id,
            branch_id=claim.branch_id,
            tenant=self.tenant,
            base_branch_id=claim.base_branch_id,
            base_offset=claim.base_offset,
            new_tokens=ids,
            max_new_tokens=limit,
            sampling=self.sampling(),
            adapter=self.adapter,
            grammar=self.grammar,
            banned_tokens=self.banned_tokens,
            expects_tool_call=self.request.tool_choice.mode == "required",
            priority=options.priority + _TIERS[self.request.service_tier][1],
            deadline_s=deadline_s,
            expected_tool_s=None if tool_ms is None else tool_ms / 1000,
            resume_points=self._resume_points(claim),
        )

    def needs(self) -> TurnNeeds:
        """The amounts that it wants to consume, and the account that it brings."""
        spent = NO_AMOUNT if self.begun is None else self.begun.spent
        own = tuple(
            Account(
                scope="turn", budget=bounds_of(budget), soft=bounds_of(budget.soft), spent=spent
            )
            for budget in self.request.keepwarm.budget
            if budget.scope == "turn"
        )
        return TurnNeeds(
            prompt_tokens=self.prompt_tokens,
            max_output=self.max_output,
            bound=self.grammar is not None,
            thinks=self.options.thinking and self.max_output > 0,
            own=own,
            adapter=self.adapter,
        )

    def _resume_points(self, claim: Claim) -> tuple[int, ...]:
        """Where others will begin: behind instructions and tools, and where a fork leaves the
        branch that it comes from, as far as a turn that ends there is computed."""
        points = {len(self.header.ids)}
        if claim.branch_id != claim.base_branch_id:
            points.add(claim.base_offset - 1)
        inner = self.prompt_tokens - 1
        return tuple(sorted(point for point in points if 0 < point <= inner))


def begins_in_reasoning(chat_format: ChatFormat, options: TemplateOptions, tail: Tail) -> bool:
    """Whether the prompt opens the think block because the model goes on inside its turn."""
    return options.thinking and chat_format.reasons_inside and tail is Tail.INSIDE


def placed(
    grammar: GrammarSpec | None, chat_format: ChatFormat, options: TemplateOptions, tail: Tail
) -> GrammarSpec | None:
    """The grammar of an output behind a context that ends so."""
    if grammar is None or not begins_in_reasoning(chat_format, options, tail):
        return grammar
    return replace(grammar, begins_in_reasoning=True)


def or_default(value: float | None, default: float) -> float:
    return default if value is None else value
