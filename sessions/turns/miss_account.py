"""Which tokens of a turn's prompt had to be computed, and for which reason.

Joins the cache's account (``SequenceStart.miss_causes``: evicted, expired, forked, behind the
last state that was kept, another header, first sight) with what the session knows of the turn:
what it continues, what it adds, what the client changed. Nothing here tells a tenant of another
one: what others have cached counts as never seen.

Always true: the misses of a turn add up to its prompt less what was cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.messages import SequenceStart, TokenArray
from sessions.durable.branches import Branches
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.transcript import Entry, Header, chain_ids
from sessions.turns.cache_diagnostics import shared_prefix
from sessions.turns.turn_plan import TurnPlan

_ENGINE_REASONS = {
    "evicted": MissReason.EVICTED,
    "expired": MissReason.EXPIRED,
    "forked": MissReason.FORKED,
    "state_missing": MissReason.STATE_MISSING,
}
_GONE = frozenset({MissReason.EVICTED, MissReason.EXPIRED})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptFacts:
    """The facts of a turn that the account needs."""

    continued: Entry | None
    """The stored entry the turn comes behind."""
    parent: Entry | None
    """The part of it that the model reads."""
    said_before: Entry | None
    """Where the session stood, if the turn continues nothing of it."""
    header: Header
    input_ids: TokenArray
    lost_with_engine: bool
    """The engine that had computed ``continued`` is gone."""
    foreign: bool = False
    """The continued response was said to another model, or with another adapter."""
    idle_s: float | None
    """Since the session's last turn ended; None: it is the first."""
    cut: bool = False
    """Truncation left something out for this turn, be it of what the client resent."""

    def ids(self) -> TokenArray:
        """The whole of it, int32 [tokens]."""
        return chain_ids(self.header, self.parent, self.input_ids)


def prompt_of(plan: TurnPlan, branches: Branches, *, other_adapter: bool) -> PromptFacts:
    """The facts of ``plan`` that the account needs.

    Args:
        other_adapter: what it continues was computed with another adapter.
    """
    return PromptFacts(
        continued=plan.continued,
        parent=plan.parent,
        said_before=plan.last_turn.said,
        header=plan.header,
        input_ids=plan.input_ids,
        lost_with_engine=branches.lost_with_engine(plan.continued),
        foreign=other_adapter or branches.is_foreign(plan.continued),
        idle_s=plan.last_turn.idle_s,
        cut=plan.cut,
    )


def account(prompt: PromptFacts, start: SequenceStart) -> tuple[Miss, ...]:
    """The misses of an admitted turn, the largest first."""
    left = start.input_tokens - start.cached_tokens
    misses: list[Miss] = []
    for cause, reason in _ENGINE_REASONS.items():
        tokens = min(start.miss_causes.get(cause, 0), left)
        left -= tokens
        kept_s = _kept_s(prompt, start) if reason in _GONE else None
        misses += [Miss(reason=reason, tokens=tokens, kept_s=kept_s)] if tokens else []
    own = min(left, _own_tokens(prompt))
    changed = _changed(prompt, start.miss_causes)
    if changed is not None:
        misses += _parts((changed[0], left - own, changed[1]))
    else:
        misses += _parts((_unexplained(prompt, left - own), left - own, None))
    new = MissReason.NEW_SESSION if _is_first(prompt) else MissReason.NEW_INPUT
    misses += _parts((new, own, None))
    return tuple(sorted(misses, key=lambda miss: -miss.tokens))


def _parts(*parts: tuple[MissReason, int, int | None]) -> list[Miss]:
    return [
        Miss(reason=reason, tokens=tokens, at_token=at)
        for reason, tokens, at in parts
        if tokens > 0
    ]


def _is_first(prompt: PromptFacts) -> bool:
    return prompt.continued is None and prompt.said_before is None


def _own_tokens(prompt: PromptFacts) -> int:
    """How much of the prompt no cache could hold, because nobody said it before."""
    if _is_first(prompt):
        return len(prompt.header.ids) + len(prompt.input_ids)
    if prompt.continued is None:
        before = prompt.said_before
        assert before is not None
        ids = prompt.ids()
        return max(len(ids) - len(before.header.ids) - before.num_tokens, 0)
    return len(prompt.input_ids)


def _changed(prompt: PromptFacts, causes: Mapping[str, int]) -> tuple[MissReason, int] | None:
    """The client's change to what was there, and from which token on."""
    before = prompt.continued or prompt.said_before
    if before is None:
        return None
    if prompt.continued is not None and not causes.get("header_changed", 0):
        same = prompt.header.same_tokens(before.header) and prompt.parent is prompt.continued
        if same:
            return None
    ids = prompt.ids()
    compared = chain_ids(before.header, before, ids[:0])
    shared = shared_prefix(compared, ids)
    if shared == len(compared):
        return None
    return _what_changed(prompt, before), shared


def _what_changed(prompt: PromptFacts, before: Entry) -> MissReason:
    now, then = prompt.header, before.header
    if not now.same_tokens(then):
        if now.tools != then.tools:
            return MissReason.TOOLS_CHANGED
        if (now.instructions, now.opening) != (then.instructions, then.opening):
            return MissReason.INSTRUCTIONS_CHANGED
        return MissReason.OPTIONS_CHANGED
    shortened = prompt.continued is not None and prompt.parent is not prompt.continued
    if shortened or prompt.cut:
        return MissReason.TRUNCATED
    return MissReason.HISTORY_CHANGED


def _unexplained(prompt: PromptFacts, tokens: int) -> MissReason:
    if prompt.foreign:
        return MissReason.MODEL_CHANGED
    if prompt.lost_with_engine:
        return MissReason.RESTARTED
    return MissReason.PARTIAL_BLOCK if tokens < _LARGEST_BLOCK else MissReason.NOT_KEPT


_LARGEST_BLOCK = 64
"""Tokens; what is left over behind the last whole block is less."""


def _kept_s(prompt: PromptFacts, start: SequenceStart) -> float | None:
    if prompt.idle_s is None or start.evicted_ago_s is None:
        return None
    return max(prompt.idle_s - start.evicted_ago_s, 0.0)
