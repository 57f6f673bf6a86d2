"""Why prompt tokens were not cached: records of what was evicted, and the account of causes.

When blocks leave the cache, one record stays behind: whose they were, where the run began,
how long it was, when and why it went. A later prompt that misses at that place with the same
block is told so. A run is known by the hash of its first block, which is enough for an
account; no KV is ever found this way. Records are bounded: the oldest go first, and what
they knew counts as first sight.
"""

import enum
from collections import OrderedDict
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15


class MissCause(enum.StrEnum):
    """Why the KV of prompt tokens had to be computed. Each token has one cause."""

    FIRST_SIGHT = "first_sight"
    """No whole block of this tenant, or published, ever held it here, as far as is known."""
    EVICTED = "evicted"
    """It was cached and had to make room."""
    EXPIRED = "expired"
    """Likewise, after the session's lease had run out before the session came back."""
    FORKED = "forked"
    """The branch leaves its base inside a block, so that block is computed anew."""
    HEADER_CHANGED = "header_changed"
    """The base's transcript was rebuilt from its first token on."""


@dataclass(slots=True)
class Ghost:
    """A run of evicted blocks."""

    num_blocks: int
    evicted_s: float
    cause: MissCause


class GhostRecords:
    """Evicted runs by where they began. Holds at most ``capacity`` records."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ghosts: OrderedDict[int, Ghost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ghosts)

    def add(self, position: int, key: int, ghost: Ghost, *, before: int | None) -> int:
        """Record a run that began at block ``position`` with a block of hash ``key``.

        ``before`` names the record of the run that followed it, if that went earlier: the
        two become one. Returns the record's name.
        """
        if before is not None:
            behind = self._ghosts.pop(before, None)
            if behind is not None:
                ghost.num_blocks += behind.num_blocks
        name = _name(position, key)
        self._ghosts[name] = ghost
        if len(self._ghosts) > self._capacity:
            self._ghosts.popitem(last=False)
        return name

    def find(self, position: int, key: int) -> Ghost | None:
        """The run that began at block ``position`` with a block of hash ``key``."""
        return self._ghosts.get(_name(position, key))


def _name(position: int, key: int) -> int:
    return key ^ (position * _SPREAD & _MASK)
