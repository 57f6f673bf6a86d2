"""The drafter: forced runs and copied tokens in one chain, as far as that is worth computing.

Where the grammar leaves one token, that one; else what followed the longest earlier occurrence
of the last tokens, in the session itself or, failing that, in the tenant's earlier outputs. The
chain stops where it is more likely wrong than worth computing, by what was learnt of votes like
its own.

Knows tokens and the grammar's state. Knows no logits, no schedule and no devices; all of it
is host code of some 100 us a step.

Always true: what is copied comes from the same session or the same tenant; memory is
bounded in bytes; a draft never goes beyond an end of turn.
"""

from collections.abc import Callable

from runtime.draft_calibration import Calibration
from runtime.draft_chain import Chain
from runtime.draft_sources import AppMemory, SessionTexts
from runtime.draft_votes import Vote
from runtime.drafts import EMPTY_DRAFT, Draft
from runtime.messages import TokenArray
from runtime.ngram_index import MAX_MATCH
from runtime.token_mask import GrammarState

_MIN_SURVIVAL = 0.25
"""A chain ends before the token with which it would be right less often than this."""


class InterleavedDrafter:
    """A ``Drafter`` for all sessions of an engine."""

    def __init__(
        self,
        *,
        end_of_turn_ids: frozenset[int],
        max_index_bytes: int,
        max_memory_bytes: int,
        min_survival: float = _MIN_SURVIVAL,
    ) -> None:
        """
        Args:
            max_index_bytes: for the indices of all sessions.
            max_memory_bytes: for the tenants' earlier outputs.
        """
        self._end_of_turn_ids = end_of_turn_ids
        self._min_survival = min_survival
        self._texts = SessionTexts(max_bytes=max_index_bytes)
        self._memory = AppMemory(max_bytes=max_memory_bytes)
        self._calibration = Calibration()
        self._open: dict[str, tuple[str, list[tuple[int, Vote]]]] = {}

    def propose(
        self,
        session_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        if limit <= 0:
            return EMPTY_DRAFT
        sources = [self._texts.source(session_id, tokens)]
        memory = self._memory.source(tenant)
        if memory is not None:
            sources.append(memory)
        chain = Chain(tokens[-MAX_MATCH:], grammar, limit, self._end_of_turn_ids)
        for vote in chain.votes(sources, may_go_on):
            survival = chain.survival * self._calibration.probability(tenant, vote)
            if survival < self._min_survival and not (
                chain.is_empty and self._calibration.is_probe(tenant)
            ):
                break
            chain.add(vote, survival)
        if chain.added:
            self._open[session_id] = (tenant, chain.added)
        return chain.draft()

    def verified(self, session_id: str, verified: int, accepted: int) -> None:
        tenant, votes = self._open.pop(session_id, ("", []))
        for place, vote in votes:
            # Behind the first wrong token nothing was learnt.
            if place < min(verified, accepted + 1):
                self._calibration.learn(tenant, vote, place < accepted)

    def remember(self, tenant: str, output: TokenArray) -> None:
        self._memory.remember(tenant, output)

    def close(self, session_id: str) -> None:
        self._open.pop(session_id, None)
        self._texts.close(session_id)
