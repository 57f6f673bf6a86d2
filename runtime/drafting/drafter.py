"""The drafter: forced runs and copied tokens in one chain, as far as that is worth computing.

Where the grammar leaves one token, that one; else what followed the longest earlier occurrence
of the last tokens, in the branch itself or, failing that, in the tenant's earlier outputs. The
chain stops where it is more likely wrong than worth computing, by what was learnt of votes like
its own.

Knows tokens and the grammar's state. Knows no logits, no schedule and no devices; all of it
is host code of some 100 us a step.

Always true: what is copied comes from the same branch or the same tenant; memory is
bounded in bytes; a draft never goes beyond an end of turn.
"""

from collections.abc import Callable
from typing import Protocol

from runtime.drafting.calibration import Calibration
from runtime.drafting.chain import Chain
from runtime.drafting.ngram_index import MAX_MATCH
from runtime.drafting.sources import BranchTexts, TenantMemory
from runtime.drafting.votes import Vote
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.scheduling.draft import EMPTY_DRAFT, Draft

_MIN_SURVIVAL = 0.25
"""A chain ends before the token with which it would be right less often than this."""


class Drafter(Protocol):
    """The engine's side of drafting."""

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        """A chain for behind the last of ``tokens``.

        Args:
            tokens: int32 [n], the branch's whole transcript; grows from call to call. If
                it was cut since, say so by ``close``.
            grammar: the sequence's state at the same place; not changed.
            limit: most tokens the draft may have.
            may_go_on: asked before each token that is not forced; the chain ends at a no.
        """

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        """The first ``verified`` tokens of the branch's last draft were looked at, and the first
        ``accepted`` of them were right."""

    def remember(self, tenant: str, output: TokenArray) -> None:
        """Keep a sequence's output as a source for the tenant's other branches."""

    def close(self, branch_id: str) -> None:
        """Forget the branch's index."""

    @property
    def num_bytes(self) -> int:
        """Memory of all indices and earlier outputs."""


class InterleavedDrafter:
    """A ``Drafter`` for all branches of an engine."""

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
            max_index_bytes: for the indices of all branches.
            max_memory_bytes: for the tenants' earlier outputs.
        """
        self._end_of_turn_ids = end_of_turn_ids
        self._min_survival = min_survival
        self._texts = BranchTexts(max_bytes=max_index_bytes)
        self._memory = TenantMemory(max_bytes=max_memory_bytes)
        self._calibration = Calibration()
        self._open: dict[str, tuple[str, list[tuple[int, Vote]]]] = {}

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        if limit <= 0:
            return EMPTY_DRAFT
        sources = [self._texts.source(branch_id, tokens)]
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
            self._open[branch_id] = (tenant, chain.added)
        return chain.draft()

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        tenant, votes = self._open.pop(branch_id, ("", []))
        for index, vote in votes:
            # Behind the first wrong token nothing was learnt.
            if index < min(verified, accepted + 1):
                self._calibration.learn(tenant, vote, index < accepted)

    def remember(self, tenant: str, output: TokenArray) -> None:
        self._memory.remember(tenant, output)

    def close(self, branch_id: str) -> None:
        self._open.pop(branch_id, None)
        self._texts.close(branch_id)

    @property
    def num_bytes(self) -> int:
        return self._texts.num_bytes + self._memory.num_bytes
