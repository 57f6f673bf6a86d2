"""Which engine session holds the tokens of which entry, and when it may be forgotten.

A branch is one engine session: an append-only run of tokens. A turn continues the branch
its parent ends in if nothing else was appended there, forks it otherwise, and starts a new
one with the whole transcript if the header changed or the engine forgot. Knows no token
ids, only lengths; entries are opaque keys.

Always true: a branch that neither holds an entry nor runs a turn has been released to the
engine exactly once, or died with it.
"""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

from runtime.messages import ReleaseBranch


@dataclass(slots=True, eq=False)
class _Branch:
    branch_id: str
    num_tokens: int = 0
    """Where its last entry ends; what failed turns left behind that is not counted, the
    next turn overwrites it."""
    num_entries: int = 0
    running: bool = False
    lost: bool = False
    adapter: str | None = None
    """The adapter that its newest turn was computed with; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """A turn's right to write to a branch, until ``place`` or ``abandon``."""

    branch_id: str
    base_branch_id: str | None
    base_offset: int
    branch: _Branch


class Branches:
    """All branches of one engine."""

    def __init__(self) -> None:
        self._places: dict[Hashable, tuple[_Branch, int]] = {}
        self._branches: dict[str, _Branch] = {}
        self._releases: list[ReleaseBranch] = []
        self._lost: set[Hashable] = set()
        """Entries that an engine held which is gone."""
        self._foreign: set[Hashable] = set()
        """Entries whose tokens were another model's."""
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """Branches the engine has been told of and not been told to forget."""
        return len(self._branches)

    @property
    def ids(self) -> frozenset[str]:
        """The branches that the engine has been told of and not been told to forget."""
        return frozenset(self._branches)

    @property
    def running_ids(self) -> frozenset[str]:
        """Ids of the branches on which a turn runs."""
        return frozenset(name for name, branch in self._branches.items() if branch.running)

    @property
    def places(self) -> dict[Hashable, str]:
        """The branch that holds the tokens up to each entry's end."""
        return {entry: branch.branch_id for entry, (branch, _) in self._places.items()}

    def held(self, parent: Hashable | None, adapter: str | None = None) -> tuple[int, bool]:
        """How many tokens ending at ``parent`` the engine holds as a session, computed with that
        adapter, 0 if none; and whether it holds it computed with another."""
        place = None if parent is None else self._places.get(parent)
        if place is None:
            return 0, False
        other = place[0].adapter != adapter
        return 0 if other else place[1], other

    def claim(
        self,
        parent: Hashable | None,
        *,
        rebuilt: bool = False,
        forks: bool = False,
        adapter: str | None = None,
    ) -> Claim:
        """Choose the branch for a turn behind ``parent`` (None: a whole transcript).

        Args:
            rebuilt: the tokens are not those of ``parent`` from the first one on. The claim
                names the parent's branch with offset 0, so that the engine knows whose
                tokens these replace.
            forks: the branch is left to whoever else goes on from ``parent``.
            adapter: that the turn is computed with; the tokens before may be another one's.
        """
        place = None if parent is None else self._places.get(parent)
        if place is None:
            branch = self._new_branch(adapter)
            return Claim(
                branch_id=branch.branch_id, base_branch_id=None, base_offset=0, branch=branch
            )
        base, offset = (place[0], 0) if rebuilt else place
        branch = base
        if rebuilt or forks or base.running or base.num_tokens != offset:
            branch = self._new_branch(adapter)
        branch.running, branch.adapter = True, adapter
        return Claim(
            branch_id=branch.branch_id,
            base_branch_id=base.branch_id,
            base_offset=offset,
            branch=branch,
        )

    def place(self, claim: Claim, entry: Hashable, num_tokens: int) -> None:
        """The turn ended well: ``entry`` ends at ``num_tokens`` of the claimed branch."""
        branch = claim.branch
        branch.running = False
        if branch.lost:
            return
        branch.num_tokens = num_tokens
        branch.num_entries += 1
        self._places[entry] = (branch, num_tokens)

    def abandon(self, claim: Claim) -> None:
        """The turn left nothing to continue."""
        claim.branch.running = False
        self._release_if_unused(claim.branch)

    def drop(self, entry: Hashable) -> None:
        """Nobody can continue ``entry`` any more. Unknown entries are ignored."""
        self._lost.discard(entry)
        self._foreign.discard(entry)
        place = self._places.pop(entry, None)
        if place is not None:
            place[0].num_entries -= 1
            self._release_if_unused(place[0])

    def forgotten(self, branch_id: str) -> None:
        """The engine no longer knows this session: its entries need a whole transcript. It is
        released all the same, since who is charged for its KV waits to hear that it is gone."""
        branch = self._branches.get(branch_id)
        if branch is None:
            return
        self._lose(branch)
        self._releases.append(ReleaseBranch(branch_id=branch_id))
        for entry in [e for e, place in self._places.items() if place[0] is branch]:
            del self._places[entry]

    def engine_lost(self) -> None:
        """The engine died and knows no session any more."""
        for branch in list(self._branches.values()):
            self._lose(branch)
        self._lost |= self._places.keys()
        self._places.clear()
        self._releases.clear()

    def recalled(self, entry: Hashable, *, foreign: bool) -> None:
        """``entry`` came back from a journal: whichever engine held it is gone. ``foreign``: its
        tokens were another model's."""
        (self._foreign if foreign else self._lost).add(entry)

    def is_foreign(self, entry: Hashable | None) -> bool:
        """Whether ``entry`` was said to another model, and this one has not held it yet."""
        return entry in self._foreign and entry not in self._places

    def lost_with_engine(self, entry: Hashable | None) -> bool:
        """Whether an engine that is gone held ``entry``, and none has held it since."""
        return entry in self._lost and entry not in self._places

    def pop_releases(self) -> tuple[ReleaseBranch, ...]:
        """Releases to tell the engine of; each branch appears once in all calls together."""
        releases, self._releases = tuple(self._releases), []
        return releases

    def _new_branch(self, adapter: str | None) -> _Branch:
        name = f"branch_{next(self._numbers)}"
        branch = _Branch(branch_id=name, running=True, adapter=adapter)
        self._branches[branch.branch_id] = branch
        return branch

    def _lose(self, branch: _Branch) -> None:
        branch.lost = True
        branch.num_entries = 0
        del self._branches[branch.branch_id]

    def _release_if_unused(self, branch: _Branch) -> None:
        if branch.lost or branch.running or branch.num_entries:
            return
        self._lose(branch)
        self._releases.append(ReleaseBranch(branch_id=branch.branch_id))
