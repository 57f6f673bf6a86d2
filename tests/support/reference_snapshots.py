"""Snapshots too simple to be wrong: a plain list of (owner, prefix), looked through each time.

Keys and values are taken to be unbounded here. Owner None is the operator, whose snapshots every
tenant sees.
"""

from dataclasses import dataclass, field

Tokens = tuple[int, ...]
IDLE, LEASED, QUEUED, RUNNING = range(4)


def restore_s(tokens: int) -> float:
    """What a transcript costs to compute again."""
    return tokens * 0.9 + tokens * tokens * 0.01


@dataclass(eq=False)
class Kept:
    owner: str | None
    prefix: Tokens
    kind: str
    number: int
    age: float
    before: "Kept | None" = None
    successor: "Kept | None" = None
    released: bool = False
    ends: set[str] = field(default_factory=set)
    forks: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Branch:
    owner: str | None
    end: Kept | None = None
    klass: int = IDLE
    leased_until: float = 0.0
    queued: bool = False
    known: int = 0
    open: bool = False
    admitted: bool = False
    is_new: bool = True
    warm: bool = False
    resume: Kept | None = None
    came_from: Kept | None = None


class ReferenceSnapshots:
    def __init__(
        self, num_slots: int, most_running: int, block: int, *, leasing: bool, cap_s: float
    ) -> None:
        self.num_slots, self.most_running, self.block = num_slots, most_running, block
        self.leasing, self.cap_s = leasing, cap_s
        self.kept: list[Kept] = []
        self.branches: dict[str, Branch] = {}
        self.cached: set[tuple[str | None, Tokens]] = set()
        """Whole blocks whose keys and values are there."""
        self.used: dict[str, float] = {}
        self.now = self.inflation = 0.0
        self.numbers = 0

    # What is where

    @property
    def running(self) -> int:
        return sum(branch.admitted for branch in self.branches.values())

    def slots_of(self, owner: str | None) -> int:
        mine = sum(kept.owner == owner for kept in self.kept)
        return mine + sum(b.admitted and b.owner == owner for b in self.branches.values())

    def visible(self, owner: str | None) -> list[Kept]:
        return [kept for kept in self.kept if kept.owner in (owner, None)]

    def resume(self, owner: str | None, prompt: Tokens) -> Kept | None:
        found = [
            kept
            for kept in self.visible(owner)
            if len(kept.prefix) < len(prompt) and prompt[: len(kept.prefix)] == kept.prefix
        ]
        return max(found, key=lambda kept: (len(kept.prefix), kept.number), default=None)

    def matched(self, owner: str | None, prompt: Tokens) -> int:
        """Tokens of whole blocks whose keys and values are there."""
        found = 0
        for end in range(self.block, len(prompt), self.block):
            if (owner, prompt[:end]) not in self.cached and (None, prompt[:end]) not in self.cached:
                break
            found = end
        return found

    # What goes first

    def active(self) -> list[str]:
        return [owner for owner, used in self.used.items() if used > self.now - 600.0]

    def use(self, owner: str | None) -> None:
        if owner is not None:
            self.used[owner] = self.now

    def class_of(self, kept: Kept) -> int:
        ends = [self.branches[name] for name in kept.ends]
        return max((branch.klass for branch in ends if not branch.open), default=IDLE)

    def there(self, kept: Kept | None) -> bool:
        return kept is not None and kept in self.kept

    def is_wanted(self, kept: Kept) -> bool:
        behind = (
            kept.successor is not None
            and self.is_replaced(kept)
            and self.is_replaced(kept.successor)
        )
        return bool(kept.ends) or ((not kept.released or len(kept.forks) > 1) and not behind)

    def is_replaced(self, kept: Kept) -> bool:
        return self.there(kept.successor) and not kept.forks

    def worth(self, kept: Kept) -> float:
        here = len(kept.prefix)
        if kept.successor is not None and self.is_replaced(kept):
            return kept.age + (restore_s(len(kept.successor.prefix)) - restore_s(here))
        before = self.resume(kept.owner, kept.prefix)
        below = 0 if before is None else len(before.prefix)
        users = max(1, len(kept.ends) + len(kept.forks))
        return kept.age + (restore_s(here) - restore_s(below)) * users

    def victim(self, owner: str | None, rights: int) -> Kept | None:
        active = self.active()
        share = self.num_slots // len(active) if len(active) > 1 else self.num_slots

        def excess(of: str | None) -> int:
            return max(0, self.slots_of(of) + (of == owner) - share) if of is not None else 0

        pinned = [branch.resume for branch in self.branches.values()]
        found = [
            kept
            for kept in self.kept
            if kept not in pinned
            and (
                self.class_of(kept) <= rights
                or (len(active) > 1 and self.class_of(kept) == LEASED and excess(kept.owner) > 0)
            )
        ]
        return min(
            found,
            key=lambda kept: (
                -excess(kept.owner),
                self.class_of(kept),
                self.is_wanted(kept),
                self.worth(kept),
                kept.number,
            ),
            default=None,
        )

    @property
    def free(self) -> int:
        return self.num_slots - len(self.kept) - self.running

    def evict(self, owner: str | None, rights: int) -> None:
        victim = self.victim(owner, rights)
        assert victim is not None
        if self.is_wanted(victim):
            self.inflation = max(self.inflation, self.worth(victim))
        ends = [self.branches[name] for name in victim.ends]
        self.lose(victim)
        for branch in ends:
            if not branch.open and branch.klass > IDLE:
                branch.queued, branch.leased_until, branch.klass = False, 0.0, IDLE

    def lose(self, kept: Kept) -> None:
        self.kept.remove(kept)
        for name in kept.ends:
            self.branches[name].end = None
        kept.ends = set()

    # Turns

    def expire(self) -> None:
        for branch in self.branches.values():
            if branch.klass == LEASED and branch.leased_until <= self.now:
                branch.klass, branch.leased_until = IDLE, 0.0

    def rights(self, name: str) -> int:
        if not any(b.open for other, b in self.branches.items() if other != name):
            return QUEUED
        return LEASED if self.branches[name].warm else IDLE

    def begin(
        self, name: str, owner: str | None, prompt: Tokens, base: str | None, at: int
    ) -> Kept | None:
        self.expire()
        start = self.branches.get(base) if base is not None else None
        known = 0 if start is None or start.owner != owner else min(start.known, at // self.block)
        branch = self.branches.setdefault(name, Branch(owner))
        self.use(owner)
        branch.known = known
        branch.resume = self.resume(owner, prompt)
        position = 0 if branch.resume is None else len(branch.resume.prefix)
        known = min(known, (len(prompt) - 1) // self.block)
        branch.warm = known > 0 and position // self.block >= 0.8 * known
        branch.came_from = None
        branch.open, branch.admitted, branch.klass = True, False, RUNNING
        return branch.resume

    def moves(self, name: str) -> bool:
        branch = self.branches[name]
        kept = branch.resume
        pins = sum(other.resume is kept for other in self.branches.values())
        if kept is None or pins != 1 or kept.ends != {name} or kept.forks:
            return False
        victim = self.victim(branch.owner, self.rights(name))
        if victim is None or self.class_of(victim) > IDLE:
            return True
        return self.is_wanted(victim)

    def admit(self, name: str) -> bool:
        branch = self.branches[name]
        self.use(branch.owner)
        if self.running >= self.most_running:
            return False
        resume = branch.resume
        if not self.free:
            if self.moves(name):
                assert resume is not None
                resume.age = self.inflation
                self.lose(resume)
            elif self.victim(branch.owner, self.rights(name)) is None:
                return False
            else:
                if resume is not None:
                    resume.age = self.inflation
                self.evict(branch.owner, self.rights(name))
        elif resume is not None:
            resume.age = self.inflation
        branch.resume = None
        if resume is not None and resume in self.kept:
            branch.came_from = resume
            if name not in resume.ends:
                resume.forks.add(name)
        branch.admitted, branch.queued, branch.leased_until = True, False, 0.0
        return True

    def commit(self, name: str, tokens: Tokens) -> None:
        owner = self.branches[name].owner
        for end in range(self.block, len(tokens) + 1, self.block):
            if (None, tokens[:end]) not in self.cached:
                self.cached.add((owner, tokens[:end]))

    def same(self, owner: str | None, tokens: Tokens) -> Kept | None:
        found = [kept for kept in self.visible(owner) if kept.prefix == tokens]
        return max(found, key=lambda kept: kept.number, default=None)

    def keep(self, owner: str | None, tokens: Tokens, kind: str) -> Kept:
        self.numbers += 1
        kept = Kept(owner, tokens, kind, self.numbers, self.inflation)
        self.kept.append(kept)
        return kept

    def save(self, name: str, tokens: Tokens, kind: str) -> bool:
        owner = self.branches[name].owner
        if self.same(owner, tokens) is not None:
            return False
        if not self.free:
            victim, before = self.victim(owner, IDLE), self.resume(owner, tokens)
            below = 0 if before is None else len(before.prefix)
            worth = self.inflation + (restore_s(len(tokens)) - restore_s(below))
            if victim is None or (self.is_wanted(victim) and self.worth(victim) > worth):
                return False
            self.evict(owner, IDLE)
        self.keep(owner, tokens, kind)
        return True

    def finish(self, name: str, tokens: Tokens | None, kind: str, lease_s: float | None) -> None:
        branch = self.branches[name]
        self.use(branch.owner)
        branch.resume = None
        admitted, branch.admitted = branch.admitted, False
        if admitted and tokens:
            kept = self.same(branch.owner, tokens)
            if kept is None:
                kept = self.keep(branch.owner, tokens, kind)
            kept.age = self.inflation
            self._now_ends(name, branch, kept, kind)
        branch.open = False
        if not admitted and branch.is_new:
            self.leave(name)
            return
        branch.is_new = False
        if admitted:
            length = len(tokens or ()) // self.block
            branch.known = max(branch.known, length)
            if self.leasing and lease_s != 0.0 and length:
                seconds = restore_s(length * self.block) if lease_s is None else lease_s
                branch.leased_until = self.now + min(self.cap_s, seconds)
        self.settle(branch)

    def _now_ends(self, name: str, branch: Branch, kept: Kept, kind: str) -> None:
        if branch.end is not None and branch.end is not kept:
            branch.end.ends.discard(name)
        branch.end = kept
        kept.ends.add(name)
        kept.forks.discard(name)
        kept.released, kept.successor = False, None
        before, branch.came_from = branch.came_from, None
        if before is kept:
            return
        if kept.before is None:
            kept.before = before
        if kind != "end":
            return
        while before is not None and len(before.prefix) < len(kept.prefix):
            ours = before in self.kept and not before.ends and before.owner == kept.owner
            if ours and before.kind in ("end", "pause"):
                before.successor = kept
            if before.kind != "pause":
                break
            before = before.before if before in self.kept else None

    def settle(self, branch: Branch) -> None:
        if branch.owner is None or (branch.queued and self.leasing):
            branch.klass = QUEUED
        else:
            branch.klass = LEASED if branch.leased_until else IDLE

    def set_queued(self, name: str, queued: bool) -> None:
        branch = self.branches[name]
        if branch.queued != queued:
            branch.queued = queued
            if not branch.open:
                self.settle(branch)

    def leave(self, name: str) -> None:
        branch = self.branches.pop(name)
        if branch.end is not None:
            branch.end.ends.discard(name)
            branch.end.released = not branch.end.ends
        for kept in self.kept:
            kept.forks.discard(name)
