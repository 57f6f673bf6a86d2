"""Plays random turns on a prefix cache and on its reference model, and compares the two.

Every decision comes from ``choose(n)``, an integer below n, so that a seeded generator and
hypothesis drive the same code. The driver also plays the engine's part: it notes in every
block the tokens whose KV would be there, and so sees any write to a shared block.
"""

from collections.abc import Callable

import numpy as np

from radix_cache.block_pool import OutOfBlocks
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence
from radix_cache.tree import hash_tokens
from tests.support.caches import make_cache
from tests.support.reference_cache import ReferenceCache, Tokens, restore_s

BLOCK = 2
TENANTS = ("red", "blue")
CAP_S = 50.0
MAX_SESSIONS = 7


class CacheDriver:
    def __init__(
        self,
        choose: Callable[[int], int],
        *,
        num_blocks: int,
        leasing: bool,
        hash_block: Callable[[TokenArray, int], int] = hash_tokens,
    ) -> None:
        self.choose = choose
        self.model = ReferenceCache(num_blocks, BLOCK, leasing=leasing, cap_s=CAP_S)
        self.cache = make_cache(
            num_blocks,
            block_size=BLOCK,
            debug=False,
            clock=lambda: self.model.now,
            policy="lease" if leasing else "lru",
            lease_cap_s=CAP_S,
            kappa=1.0,
            restore_cost=restore_s,
            ghost_records=16,
            hash_block=hash_block,
        )
        self.transcripts: dict[str, Tokens] = {}
        self.owners: dict[str, str | None] = {}
        self.open: dict[str, CachedSequence] = {}
        self.written: dict[int, Tokens] = {}
        self.counter = 0
        if choose(2):
            self._publish()

    OPERATIONS = (
        "turn",
        "turn",
        "turn",
        "begin",
        "begin",
        "begin",
        "grow",
        "grow",
        "grow",
        "grow",
        "finish",
        "finish",
        "queue",
        "release",
        "wait",
        "look",
    )

    def step(self) -> None:
        """One random operation, and the comparison after it."""
        getattr(self, self.OPERATIONS[self.choose(len(self.OPERATIONS))])()
        self.compare()

    # Operations

    def turn(self) -> None:
        """A whole turn in one go, as far as there are blocks."""
        name = self.begin()
        if name is not None:
            while name in self.open and len(self.transcripts[name]) < 4 + self.choose(24):
                self._grow(name)
            if name in self.open:
                self._finish(name)

    def begin(self) -> str | None:
        # The published prefix does not grow: what tenants had cached of it would be shadowed.
        idle = [n for n in self.transcripts if n not in self.open and self.owners[n]]
        kind = self.choose(4)
        if kind == 0 or not idle:
            return self._new_session()
        name = idle[self.choose(len(idle))]
        tokens = self.transcripts[name]
        if kind == 1 or not tokens:
            return self._begin(name, tokens + self._tokens(1 + self.choose(5)), name, len(tokens))
        at = self.choose(len(tokens) + 1)
        continued = tokens[:at] + self._tokens(1 + self.choose(5))
        if kind == 2:
            return self._begin(name, continued, name, at)
        return self._new_session(base=name, tokens=continued, at=at)

    def grow(self) -> None:
        if self.open:
            self._grow(self._pick_open())

    def finish(self) -> None:
        if self.open:
            self._finish(self._pick_open())

    def queue(self) -> None:
        names = [n for n in self.transcripts if n not in self.open]
        if names:
            name, queued = names[self.choose(len(names))], bool(self.choose(2))
            self.cache.set_queued(name, queued)
            self.model.set_queued(name, queued)

    def release(self) -> None:
        names = [n for n in self.transcripts if n not in self.open]
        if names:
            self._release(names[self.choose(len(names))])

    def wait(self) -> None:
        self.model.now += 1.0 + self.choose(20) if self.choose(40) else 700.0

    def look(self) -> None:
        """Match some prompt without opening a turn."""
        names = list(self.transcripts)
        known = self.transcripts[names[self.choose(len(names))]] if names else ()
        tokens = known[: self.choose(len(known) + 1)] + self._tokens(1 + self.choose(4))
        owner = TENANTS[self.choose(2)]
        found = self.cache.match_length(branch_id="unknown", tenant=owner, tokens=_array(tokens))
        assert found == len(self.model.match(owner, tokens)), "match_length"

    # Parts

    def _publish(self) -> None:
        self.transcripts["-"] = ()
        self.owners["-"] = None
        self._begin("-", self._tokens(4 + self.choose(5)), None, 0)
        self._grow("-")
        self._finish("-")

    def _new_session(
        self, base: str | None = None, tokens: Tokens | None = None, at: int = 0
    ) -> str | None:
        if len(self.transcripts) >= MAX_SESSIONS:
            self.release()
        if base is not None and base not in self.transcripts:
            return None
        self.counter += 1
        name = f"s{self.counter}"
        owner = TENANTS[self.choose(2)]
        if base is not None and self.choose(4):
            owner = self.owners[base] or owner
        self.owners[name] = owner
        self.transcripts[name] = ()
        return self._begin(name, tokens or self._tokens(1 + self.choose(9)), base, at)

    def _begin(self, name: str, tokens: Tokens, base: str | None, at: int) -> str:
        owner = self.owners[name]
        told = at if base is not None and self.choose(4) else None
        sequence = self.cache.begin(
            branch_id=name,
            tenant=owner,
            tokens=_array(tokens),
            base_branch_id=base,
            base_offset=told,
        )
        self.model.begin(name, owner, tokens, base, 1 << 30 if told is None else at)
        self.open[name] = sequence
        self.transcripts[name] = tokens
        session = self.model.sessions[name]
        assert sequence.num_cached_tokens == len(session.path), "hit length"
        assert sequence.warm == session.warm, "warm"
        missed = len(tokens) - sequence.num_cached_tokens
        assert sum(sequence.miss_causes.values()) == missed, "miss causes do not add up"
        return name

    def _grow(self, name: str) -> None:
        """Compute what is pending and some more, as an engine would in one step."""
        sequence, tokens = self.open[name], self.transcripts[name]
        tokens += self._tokens(self.choose(4)) if sequence.admitted else ()
        needed = max(0, self.cache.blocks_for(len(tokens)) - sequence.num_blocks + self.choose(2))
        available = self.model.available(self.model.sessions[name])
        assert self.cache.available_blocks(sequence) == available
        try:
            self.cache.allocate(sequence, needed)
        except OutOfBlocks:
            assert needed > available, f"a stall: {needed} wanted, {available} available"
            self._finish(name)
            return
        assert needed <= available, f"{needed} allocated, {available} were available"
        self.model.allocate(name, needed)
        self.transcripts[name] = tokens
        for index in range(sequence.num_shared_blocks, sequence.num_blocks):
            block = int(sequence.block_table[index])
            self.written[block] = tokens[: (index + 1) * BLOCK]
        written = tokens[: len(tokens) - self.choose(2)]
        self.cache.commit(sequence, _array(written))
        self.model.commit(name, written)
        if self.choose(2):
            self.cache.trim(sequence, len(tokens))
            session = self.model.sessions[name]
            session.private = -(-len(tokens) // BLOCK) - len(session.path) // BLOCK

    def _finish(self, name: str) -> None:
        keep = bool(self.choose(8))
        lease_s: float | None = None
        if self.choose(2):
            lease_s = min(1, self.choose(3)) * (1.0 + 45.0 * self.choose(1 << 20) / (1 << 20))
        self.model.now += 1 / 1024  # no two are away equally long
        if not keep:
            self.cache.release_branch(name)
        self.cache.finish(self.open.pop(name), lease_s=lease_s)
        self.model.finish(name, lease_s, keep)
        if name not in self.model.sessions:
            del self.transcripts[name]

    def _release(self, name: str) -> None:
        self.cache.release_branch(name)
        del self.model.sessions[name], self.transcripts[name]

    def _pick_open(self) -> str:
        return list(self.open)[self.choose(len(self.open))]

    def _tokens(self, count: int) -> Tokens:
        return tuple(int(self.choose(4) == 0) for _ in range(count))

    # Comparison

    def compare(self) -> None:
        cache, model = self.cache, self.model
        assert cache.available_blocks() == model.available(None), "available to a cold turn"
        stats = cache.stats()
        counted = stats.free + stats.evictable + stats.protected + stats.reserved
        assert counted == stats.total, "the block identity"
        assert stats.free == model.free, "a block leaked"
        assert stats.private == sum(s.private for s in model.sessions.values()), "private blocks"
        assert stats.prompt_tokens == stats.hit_tokens + sum(stats.miss_tokens.values())
        for name, sequence in self.open.items():
            path = model.sessions[name].path
            assert sequence.num_shared_blocks * BLOCK == len(path), "shared blocks"
            for index, block in enumerate(sequence.block_table.tolist()):
                if index < sequence.num_shared_blocks:
                    expected = self.transcripts[name][: (index + 1) * BLOCK]
                    assert self.written[block] == expected, "a shared block was written"

    def close(self) -> None:
        """End everything: nothing may stay protected, and a full recount must agree."""
        for name in list(self.open):
            self._finish(name)
        for name in list(self.transcripts):
            self._release(name)
        stats = self.cache.stats()
        assert stats.protected == stats.leased == 0, "a claim leaked"
        self.cache.check()


def _array(tokens: Tokens) -> TokenArray:
    return np.array(tokens, dtype=np.int32)
