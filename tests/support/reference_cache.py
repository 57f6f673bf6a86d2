"""A prefix cache too simple to be wrong: every cached block is one entry of a dict.

The key is (owner, all tokens up to the block's end), the value the tick of the last turn that
passed through it. Everything else follows by looking at all entries each time. Owner None is
the operator, whose prefixes every tenant sees.
"""

from dataclasses import dataclass

Tokens = tuple[int, ...]
Key = tuple[str | None, Tokens]
IDLE, LEASED, QUEUED, RUNNING = range(4)


def restore_s(tokens: int) -> float:
    """What a transcript costs to compute again."""
    return tokens * 0.9


@dataclass
class ModelSession:
    owner: str | None
    path: Tokens = ()
    known: int = 0
    leased_until: float = 0.0
    left: float = 0.0
    hinted: bool = False
    queued: bool = False
    broken: bool = False
    open: bool = False
    admitted: bool = False
    is_new: bool = True
    warm: bool = False
    private: int = 0


class ReferenceCache:
    def __init__(self, num_blocks: int, block: int, *, leasing: bool, cap_s: float) -> None:
        self.num_blocks, self.block, self.leasing, self.cap_s = num_blocks, block, leasing, cap_s
        self.cached: dict[Key, int] = {}
        self.sessions: dict[str, ModelSession] = {}
        self.now, self.tick = 0.0, 0
        self.used: dict[str, float] = {}
        """When each tenant used the cache last."""

    @property
    def free(self) -> int:
        return self.num_blocks - len(self.cached) - sum(s.private for s in self.sessions.values())

    def prefixes(self, tokens: Tokens) -> list[Tokens]:
        return [tokens[:n] for n in range(self.block, len(tokens) + 1, self.block)]

    def key(self, owner: str | None, prefix: Tokens) -> Key | None:
        """The entry for ``prefix`` that ``owner`` may use."""
        if (None, prefix) in self.cached:
            return None, prefix
        return (owner, prefix) if (owner, prefix) in self.cached else None

    def match(self, owner: str | None, tokens: Tokens) -> Tokens:
        found: Tokens = ()
        for prefix in self.prefixes(tokens[:-1]):
            if self.key(owner, prefix) is None:
                break
            found = prefix
        return found

    def session_class(self, session: ModelSession) -> int:
        if session.open:
            return RUNNING
        if session.broken:
            return IDLE
        if session.owner is None or (session.queued and self.leasing):
            return QUEUED
        return LEASED if session.leased_until > self.now else IDLE

    def classes(self) -> dict[Key, int]:
        found = dict.fromkeys(self.cached, IDLE)
        for session in self.sessions.values():
            klass = self.session_class(session)
            for prefix in self.prefixes(session.path) if klass else ():
                key = self.key(session.owner, prefix)
                assert key is not None, "a session holds what is not cached"
                found[key] = max(found[key], klass)
        return found

    def rights(self, session: ModelSession | None) -> int:
        if not any(s.open and s is not session for s in self.sessions.values()):
            return QUEUED
        return LEASED if session is not None and (session.warm or session.admitted) else IDLE

    def available(self, session: ModelSession | None) -> int:
        if session is not None:
            self.use(session.owner)
        rights, classes = self.rights(session), self.classes()
        blocks = self.free + sum(klass <= rights for klass in classes.values())
        if rights < LEASED and len(self.active()) > 1:
            for owner in self.active():
                mine = [klass for (o, _), klass in classes.items() if o == owner]
                above = self.excess(owner) - mine.count(IDLE)
                blocks += max(0, min(mine.count(LEASED), above))
        return blocks

    def active(self) -> list[str]:
        return [owner for owner, used in self.used.items() if used > self.now - 600.0]

    def excess(self, owner: str | None, asking: str | None = None, wanted: int = 0) -> int:
        """Blocks above the owner's share; what is wanted counts as had."""
        if owner is None:
            return 0
        held = sum(o == owner for o, _ in self.cached) + wanted * (owner == asking)
        held += sum(s.private for s in self.sessions.values() if s.owner == owner)
        active = self.active()
        return held - self.num_blocks // len(active) if owner in active else held

    def use(self, owner: str | None) -> None:
        if owner is not None:
            self.used[owner] = self.now

    def begin(
        self, name: str, owner: str | None, tokens: Tokens, base: str | None, at: int
    ) -> None:
        start = self.sessions.get(base) if base is not None else None
        if start is not None and start.owner != owner:
            start = None
        self.use(owner)
        session = self.sessions.setdefault(name, ModelSession(owner))
        session.known = min(start.known, at // self.block) if start is not None else 0
        session.path = self.match(owner, tokens)
        wanted = min(session.known, (len(tokens) - 1) // self.block)
        session.warm = wanted > 0 and len(session.path) // self.block >= 0.8 * wanted
        session.open, session.admitted = True, False

    def allocate(self, name: str, count: int) -> None:
        session = self.sessions[name]
        self.use(session.owner)
        rights = self.rights(session)
        ended: list[tuple[ModelSession, float]] = []
        while self.free < count:
            ended += self.evict_one(rights, session.owner, count)
        for left, until in ended:
            if left.path:
                left.leased_until, left.broken = until, False
        session.private += count
        if not session.admitted:
            session.admitted, session.queued, session.leased_until = True, False, 0.0
            session.broken = False

    def evict_one(
        self, rights: int, asking: str | None, wanted: int
    ) -> list[tuple[ModelSession, float]]:
        """A block, or a claim: a lease that ends is returned with the end it had."""
        classes = self.classes()
        leaves = [k for k in classes if classes[k] == IDLE and not self.has_child(k)]

        def excess(owner: str | None) -> int:
            return self.excess(owner, asking, wanted)

        above = [
            session
            for session in self.sessions.values()
            if self.session_class(session) == LEASED
            and session.owner in self.active()
            and len(self.active()) > 1
            and any(o == session.owner and c == LEASED for (o, _), c in classes.items())
            and excess(session.owner) > 0
        ]
        if above and not any(excess(owner) > 0 for owner, _ in leaves):
            session = max(above, key=lambda s: (excess(s.owner), self.away(s)))
            ended = [(session, session.leased_until)]
            session.leased_until, session.broken = 0.0, True
            return ended
        if leaves:
            victim = min(leaves, key=lambda k: (-excess(k[0]), self.cached[k]))
            del self.cached[victim]
            for session in self.sessions.values():
                while session.path and self.key(session.owner, session.path) is None:
                    session.path = session.path[: -self.block]
            return []
        held = [s for s in self.sessions.values() if IDLE < self.session_class(s) <= rights]
        leased = [s for s in held if self.session_class(s) == LEASED]
        if leased:
            session = max(leased, key=lambda s: (excess(s.owner), self.away(s)))
        else:
            session = min(held, key=lambda s: (s.owner is None, self.last_use(s), -len(s.path)))
        ended = [(session, session.leased_until)] if leased else []
        session.queued, session.leased_until, session.broken = False, 0.0, True
        return ended

    def away(self, session: ModelSession) -> float:
        return session.leased_until - self.now if session.hinted else self.now - session.left

    def has_child(self, key: Key) -> bool:
        owner, prefix = key
        longer = len(prefix) + self.block
        return any(
            len(p) == longer and p[: len(prefix)] == prefix and (owner is None or o == owner)
            for o, p in self.cached
        )

    def last_use(self, session: ModelSession) -> int:
        if not session.path:  # nothing comes free with it: as late as any other
            return max((t for (o, _), t in self.cached.items() if o == session.owner), default=0)
        key = self.key(session.owner, session.path)
        return 0 if key is None else self.cached[key]

    def commit(self, name: str, tokens: Tokens) -> None:
        session = self.sessions[name]
        for prefix in self.prefixes(tokens)[len(session.path) // self.block :]:
            session.private -= 1
            session.path = prefix
            if self.key(session.owner, prefix) is None:
                self.cached[session.owner, prefix] = 0

    def finish(self, name: str, lease_s: float | None, keep: bool) -> None:
        session = self.sessions[name]
        session.open, session.private = False, 0
        self.use(session.owner)
        if session.admitted:
            self.tick += 1
            for prefix in self.prefixes(session.path):
                key = self.key(session.owner, prefix)
                assert key is not None
                self.cached[key] = self.tick
            session.known = max(session.known, len(session.path) // self.block)
            if self.leasing and lease_s != 0.0 and session.path:
                seconds = restore_s(len(session.path)) if lease_s is None else lease_s
                session.leased_until = self.now + min(seconds, self.cap_s)
                session.left, session.hinted = self.now, lease_s is not None
        if not keep or (session.is_new and not session.admitted):
            del self.sessions[name]
        session.is_new = session.broken = False

    def set_queued(self, name: str, queued: bool) -> None:
        session = self.sessions[name]
        if session.queued != queued:
            session.queued, session.broken = queued, False
