"""Why prompt tokens were not cached: records of what was evicted, and the account of causes.

When blocks leave the cache, one record stays behind: where the run began and with which
tokens, how long it was, when and why it went. A later prompt that misses there with the same
block is told so. A run is known by its first block, which is enough for an account; no KV is
ever found this way. What a node has lost behind its end is kept at the node; when all of it
is gone the record moves to a bounded list, where the oldest go first and then count as
first sight.
"""

import enum
from collections import OrderedDict
from dataclasses import dataclass


class MissCause(enum.StrEnum):
    """Why the KV of prompt tokens had to be computed. Each token has one cause."""

    FIRST_SIGHT = "first_sight"
    """No whole block of this tenant, or published, ever held it here, as far as is known."""
    EVICTED = "evicted"
    """It was cached and was evicted."""
    EXPIRED = "expired"
    """Likewise, after the branch's lease had run out before the branch came back."""
    FORKED = "forked"
    """The branch leaves its base inside a block, so that block is computed anew."""
    STATE_MISSING = "state_missing"
    """It is cached, but behind the last state of recurrent layers that was kept."""
    HEADER_CHANGED = "header_changed"
    """The base's transcript was rebuilt from its first token on."""


@dataclass(slots=True)
class Ghost:
    """A run of evicted blocks that began with a block of tokens ``first``."""

    first: bytes
    num_blocks: int
    evicted_s: float
    cause: MissCause


class GhostRecords:
    """Evicted runs by block position and by the hash of their first block. Holds at most
    ``capacity`` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ghosts: OrderedDict[tuple[int, int], Ghost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ghosts)

    def add(self, position: int, key: int, ghost: Ghost) -> None:
        """Keep ``ghost``; it replaces an older one of the same place."""
        self._ghosts[position, key] = ghost
        if len(self._ghosts) > self._capacity:
            self._ghosts.popitem(last=False)

    def find(self, position: int, key: int, first: bytes) -> Ghost | None:
        """The run that began there with these tokens."""
        ghost = self._ghosts.get((position, key))
        return ghost if ghost is not None and ghost.first == first else None
