"""Drafts: tokens a sequence will probably emit next.

A draft is a guess that the engine verifies in one forward pass; it changes how many passes a
sequence takes and never what it emits. Knows tokens and how likely they are. Knows not where they
come from but by name, and no logits.

Always true: a draft's survival never rises, so what is worth most of it is a leading part.
"""

import enum
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import numpy as np

from runtime.messages import TokenArray


class DraftSource(enum.Enum):
    """Where a drafted token comes from."""

    FORCED = "forced"
    SESSION = "session"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A chain of proposed tokens, in order."""

    tokens: TokenArray
    """The proposed tokens, int32 [k], k >= 0."""
    sources: tuple[DraftSource, ...]
    survival: tuple[float, ...]
    """Estimated probability that the chain is right up to and including each token; never
    rising. What is worth computing in a step is for ``share_budget`` to say."""

    def cut(self, length: int) -> "Draft":
        """The first ``length`` tokens."""
        return Draft(
            tokens=self.tokens[:length],
            sources=self.sources[:length],
            survival=self.survival[:length],
        )

    @property
    def forced(self) -> tuple[int, ...]:
        """Indices of the tokens that the grammar forces: certain if those before them are right."""
        return tuple(
            index for index, source in enumerate(self.sources) if source is DraftSource.FORCED
        )


EMPTY_DRAFT = Draft(tokens=np.empty(0, dtype=np.int32), sources=(), survival=())


_Key = TypeVar("_Key", bound=Hashable)


def share_budget(drafts: Mapping[_Key, Draft], budget: int) -> dict[_Key, Draft]:
    """Divide the draft tokens of one step, at most ``budget``, among several sequences: those that
    are most likely to be right, wherever they come from. Of each draft it is a leading part, as
    survival never rises; among equals the earlier sequence's come first."""
    if sum(len(draft.tokens) for draft in drafts.values()) <= budget:
        return dict(drafts)
    ranked = sorted(
        ((-chance, key) for key, draft in drafts.items() for chance in draft.survival),
        key=itemgetter(0),
    )
    shares = Counter(key for _, key in ranked[:budget])
    return {key: drafts[key].cut(count) for key, count in shares.items()}
