"""Drafts: tokens a turn will probably emit next, and what the engine asks of who proposes them.

A draft is a guess that the engine verifies in one forward pass; it changes how many passes a
turn takes and never what it says. Knows tokens and how likely they are. Knows not where they
come from but by name, and no logits.

Always true: a draft's survival never rises, so what is worth most of it is a leading part.
"""

import enum
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np

from runtime.messages import TokenArray
from runtime.token_mask import GrammarState


class DraftSource(enum.Enum):
    """Where a drafted token comes from."""

    FORCED = "forced"
    SESSION = "session"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A chain of proposed tokens, in order."""

    tokens: TokenArray
    """int32 [k], k >= 0."""
    sources: tuple[DraftSource, ...]
    survival: tuple[float, ...]
    """Estimated probability that the chain is right up to and including each token; never
    rising. What is worth its place in a step is for ``share_budget`` to say."""

    def cut(self, length: int) -> "Draft":
        """The first ``length`` tokens."""
        return Draft(
            tokens=self.tokens[:length],
            sources=self.sources[:length],
            survival=self.survival[:length],
        )

    def certain(self, length: int) -> tuple[int, ...]:
        """Places, of the first ``length``, whose token is certain if those before it are
        right: the grammar forces it."""
        return tuple(
            place
            for place, source in enumerate(self.sources[:length])
            if source is DraftSource.FORCED
        )


EMPTY_DRAFT = Draft(tokens=np.empty(0, dtype=np.int32), sources=(), survival=())


_Turn = TypeVar("_Turn", bound=Hashable)


def share_budget(drafts: Mapping[_Turn, Draft], budget: int) -> dict[_Turn, Draft]:
    """What of several turns' drafts goes into one step of at most ``budget`` draft tokens:
    those that are most likely to be right, wherever they come from. Of each draft it is a
    leading part, as survival never rises; among equals the earlier turn's come first."""
    if sum(len(draft.tokens) for draft in drafts.values()) <= budget:
        return dict(drafts)
    ranked = sorted(
        ((-chance, turn) for turn, draft in drafts.items() for chance in draft.survival),
        key=itemgetter(0),
    )
    shares = Counter(turn for _, turn in ranked[:budget])
    return {turn: drafts[turn].cut(count) for turn, count in shares.items()}


class Drafter(Protocol):
    """What the engine knows of drafting."""

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
        """A chain for behind the last of ``tokens``.

        Args:
            tokens: int32 [n], the session's whole transcript; grows from call to call. If
                it was cut since, say so with ``close``.
            grammar: the turn's state at the same place; not changed.
            limit: most tokens the draft may have.
            may_go_on: asked before each token that is not forced; the chain ends at a no.
        """

    def verified(self, session_id: str, verified: int, accepted: int) -> None:
        """Of the session's last draft, the first ``verified`` tokens were looked at and the
        first ``accepted`` of them were right."""

    def remember(self, tenant: str, output: TokenArray) -> None:
        """Keep a turn's output as a source for the tenant's other sessions."""

    def close(self, session_id: str) -> None:
        """Forget the session's index."""
