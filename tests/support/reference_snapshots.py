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
    device: bool = True
    host: bool = False
    used: int = 0
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
        self,
        num_slots: int,
        most_running: int,
        block: int,
        *,
        leasing: bool,
        cap_s: float,
        host_slots: int = 0,
    ) -> None:
        self.num_slots, self.most_running, self.block = num_slots, most_running, block
        self.host_slots = host_slots
        self.leasing, self.cap_s = leasing, cap_s
        self.kept: list[Kept] = []
        self.branches: dict[str, Branch] = {}
        self.cached: set[tuple[str | None, Tokens]] = set()
        """Whole blocks whose keys and values are there."""
        self.used: dict[str, float] = {}
        self.now = self.inflation = 0.0
        self.numbers = self.uses = 0

    # What is where

    @property
    def running(self) -> int:
        return sum(branch.admitted for branch in self.branches.values())

    def slots_of(self, owner: str | None) -> int:
        mine = sum(kept.owner == owner and kept.device for kept in self.kept)
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
        if kept.kind == "interval" and not kept.ends:
            return bool(kept.forks)
        return bool(kept.ends) or ((not kept.released or len(kept.forks) > 1) and not behind)

    def is_replaced(self, kept: Kept) -> bool:
        return self.there(kept.successor) and not kept.forks

    def worth(self, kept: Kept) -> float:
        here = len(kept.prefix)
        if kept.successor is not None and self.is_replaced(kept):
            return kept.age + (restore_s(len(kept.successor.prefix)) - restore_s(here))
        below = max(
            (
                len(other.prefix)
                for other in self.visible(kept.owner)
                if len(other.prefix) < here
                and kept.prefix[: len(other.prefix)] == other.prefix
                and (other.kind != "interval" or other.ends or other.forks)
            ),
            default=0,
        )
        users = max(1, len(kept.ends) + len(kept.forks))
        return kept.age + (restore_s(here) - restore_s(below)) * users

    def victim(self, owner: str | None, rights: int, *, host: bool = False) -> Kept | None:
        """Of those in host memory, or on the device."""
        active = self.active()
        size = self.host_slots if host else self.num_slots
        share = size // len(active) if len(active) > 1 else size

        def excess(of: str | None) -> int:
            held = self.slots_of(of)
            if host:
                held = sum(kept.owner == of and kept.host for kept in self.kept)
            return max(0, held + (of == owner) - share) if of is not None else 0

        def rank(kept: Kept) -> tuple[float, ...]:
            copied = kept.device and kept.host
            klass = IDLE if copied else self.class_of(kept)
            if copied and self.is_wanted(kept):
                return -excess(kept.owner), klass, 1, kept.used, 0
            stage = 2 if self.is_wanted(kept) else 0
            return -excess(kept.owner), klass, stage, self.worth(kept), kept.number

        pinned = [branch.resume for branch in self.branches.values()]
        found = [
            kept
            for kept in self.kept
            if (kept.host if host else kept.device)
            and kept not in pinned
            and (
                self.class_of(kept) <= rights
                or (len(active) > 1 and self.class_of(kept) == LEASED and excess(kept.owner) > 0)
                or (kept.device and kept.host)
            )
        ]
        return min(found, key=rank, default=None)

    @property
    def free(self) -> int:
        return self.num_slots - sum(kept.device for kept in self.kept) - self.running

    def copy_below(self, kept: Kept) -> None:
        """To host memory, if it is worth it."""
        if kept.host or not self.is_wanted(kept) or not self.host_slots:
            return
        while sum(each.host for each in self.kept) >= self.host_slots:
            victim = self.victim(kept.owner, IDLE, host=True)
            if victim is None:
                return
            if self.is_wanted(victim) and not victim.device:
                if self.worth(victim) > self.worth(kept):
                    return
                self.inflation = max(self.inflation, self.worth(victim))
            victim.host = False
            if not victim.device:
                self.lose_for_good(victim)
        kept.host = True

    def evict(self, owner: str | None, rights: int) -> None:
        victim = self.victim(owner, rights)
        assert victim is not None
        wanted, worth = self.is_wanted(victim), self.worth(victim)
        self.copy_below(victim)
        victim.device = False
        if victim.host:
            return
        if wanted:
            self.inflation = max(self.inflation, worth)
        self.lose_for_good(victim)

    def lose_for_good(self, kept: Kept) -> None:
        ends = [self.branches[name] for name in kept.ends]
        self.lose(kept)
        for branch in ends:
            if not branch.open and branch.klass > IDLE:
                branch.queued, branch.leased_until, branch.klass = False, 0.0, IDLE

    def touch(self, kept: Kept) -> None:
        self.uses += 1
        kept.age, kept.used = self.inflation, self.uses

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
        if kept is None or not kept.device or pins != 1 or kept.ends != {name} or kept.forks:
            return False
        victim = self.victim(branch.owner, self.rights(name))
        if victim is None or kept.host:
            return True
        if victim.host:
            return False
        return self.class_of(victim) > IDLE or self.is_wanted(victim)

    def admit(self, name: str) -> bool:
        branch = self.branches[name]
        self.use(branch.owner)
        if self.running >= self.most_running:
            return False
        resume = branch.resume
        if not self.free:
            if self.moves(name):
                assert resume is not None
                self.touch(resume)
                resume.device = False
                if not resume.host:
                    self.lose(resume)
            elif self.victim(branch.owner, self.rights(name)) is None:
                return False
            else:
                if resume is not None:
                    self.touch(resume)
                self.evict(branch.owner, self.rights(name))
        elif resume is not None:
            self.touch(resume)
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
        self.touch(kept)
        return kept

    def known(self, owner: str | None, tokens: Tokens, kind: str) -> Kept | None:
        kept = self.same(owner, tokens)
        if kept is not None and kept.kind == "interval":
            kept.kind = kind
        return kept

    def save(self, name: str, tokens: Tokens, kind: str) -> bool:
        owner = self.branches[name].owner
        if self.known(owner, tokens, kind) is not None:
            return False
        if kind == "interval":
            return self._save_below(owner, tokens)
        if not self.free:
            victim, before = self.victim(owner, IDLE), self.resume(owner, tokens)
            below = 0 if before is None else len(before.prefix)
            worth = self.inflation + (restore_s(len(tokens)) - restore_s(below))
            if victim is None or (
                self.is_wanted(victim) and not victim.host and self.worth(victim) > worth
            ):
                return False
            self.evict(owner, IDLE)
        self.copy_below(self.keep(owner, tokens, kind))
        return True

    def _save_below(self, owner: str | None, tokens: Tokens) -> bool:
        """Where host memory has room, or something that nobody is known to come back to."""
        if not self.host_slots:
            return False
        if sum(each.host for each in self.kept) >= self.host_slots:
            victim = self.victim(owner, IDLE, host=True)
            if victim is None or self.is_wanted(victim):
                return False
            victim.host = False
            if not victim.device:
                self.lose_for_good(victim)
        kept = self.keep(owner, tokens, "interval")
        kept.device, kept.host = False, True
        return True

    def finish(self, name: str, tokens: Tokens | None, kind: str, lease_s: float | None) -> None:
        branch = self.branches[name]
        self.use(branch.owner)
        branch.resume = None
        admitted, branch.admitted = branch.admitted, False
        if admitted and tokens:
            kept = self.known(branch.owner, tokens, kind)
            is_new = kept is None
            if kept is None:
                kept = self.keep(branch.owner, tokens, kind)
            self.touch(kept)
            kept.device = True
            self._now_ends(name, branch, kept, kind)
            if is_new:
                self.copy_below(kept)
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
