"""Random turns of models whose rows behind a window are given back: what a step reads is always
what was computed for these very tokens, and a prefix is begun where a window of it has rows.

KEEPWARM_WINDOW_OPERATIONS sets how many operations are played, KEEPWARM_WINDOW_SEED where the seeds
begin.
"""

import os
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.handle import CachedSequence
from radix_cache.window_rows import WindowRows, blocks_of_window, claim_of
from tests.support.caches import make_cache

OPERATIONS = int(os.environ.get("KEEPWARM_WINDOW_OPERATIONS", "6000"))
SEED = int(os.environ.get("KEEPWARM_WINDOW_SEED", "0"))
LANES = 8
PER_RUN = 250


class Rows:
    """The memory of one kind of layers: of each slot the tokens before and at it, as a hash."""

    def __init__(self, blocks: int, size: int) -> None:
        self.slots = np.zeros((blocks, size), dtype=np.int64)

    def write(self, block: int, offset: int, content: int) -> None:
        self.slots[block, offset] = content


class Turn:
    """A sequence that runs, with all its tokens."""

    def __init__(self, name: str, tokens: list[int], cached: CachedSequence) -> None:
        self.name = name
        self.tokens = tokens
        self.cached = cached
        self.computed = cached.num_cached_tokens

    def contents(self) -> list[int]:
        chain, found = 0, []
        for token in self.tokens:
            chain = hash((chain, token))
            found.append(chain)
        return found


class Driver:
    """Plays turns of a few branches of two tenants on one cache, as the engine does."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.counts = rng, Counter[str]()
        self.size = rng.choice([2, 4])
        self.window = rng.randint(1, 5 * self.size)
        self.step_tokens = rng.choice([4, 9, 16])
        claim = claim_of(self.window, self.size)
        least = claim + -(-self.step_tokens // self.size)
        self.running = rng.randint(1, 3)
        blocks = rng.randint(least + 8, least + 60)
        room = min(blocks - 1, least + (self.running - 1) * claim + rng.randint(0, 6))
        self.now = 0.0
        self.near, self.all = Rows(room, self.size), Rows(blocks, self.size)
        self.knobs: dict[str, Any] = {
            "block_size": self.size,
            "window_blocks": room,
            "window_tokens": self.window,
            "step_tokens": self.step_tokens,
            "policy": rng.choice(["lease", "lru"]),
        } | self.below(blocks, room)
        self.cache = self.made()
        self.turns: list[Turn] = []
        self.branches: dict[str, list[int]] = {}
        self.number = 0

    def below(self, blocks: int, room: int) -> dict[str, Any]:
        """What the cache is given for tiers below the device, of so many blocks and window
        blocks."""
        return {}

    def made(self) -> PrefixCache:
        """A cache in which nothing is."""
        return make_cache(len(self.all.slots), clock=lambda: self.now, **self.knobs)

    @property
    def windows(self) -> WindowRows:
        assert self.cache.windows is not None
        return self.cache.windows

    def step(self) -> None:
        self.now += self.rng.random()
        if self.turns and self.rng.random() < 0.75:
            self.compute()
        elif self.rng.random() < 0.1 and self.branches:
            name = self.rng.choice(list(self.branches))
            self.cache.release_branch(name)
            del self.branches[name]
            self.counts["released"] += 1
        elif len(self.turns) < self.running:
            self._begin()

    def _prompt(self) -> tuple[str, list[int], str | None]:
        """A branch, what it is to compute, and what that goes on from."""
        rng = self.rng
        idle = [name for name in self.branches if all(turn.name != name for turn in self.turns)]
        more = [rng.randrange(3) for _ in range(rng.randint(1, 3 * self.size))]
        if idle and rng.random() < 0.6:
            name = rng.choice(idle)
            tokens = self.branches[name]
            kind = rng.random()
            if kind < 0.15 and len(tokens) > 1:
                self.counts["rewound"] += 1
                return name, tokens[: rng.randrange(1, len(tokens))] + more, name
            if kind < 0.4:
                self.counts["forked"] += 1
                self.number += 1
                at = rng.randrange(1, len(tokens) + 1)
                return f"{name[0]}{self.number}", tokens[:at] + more, name
            return name, tokens + more, name
        self.number += 1
        long = [rng.randrange(2) for _ in range(rng.randint(1, 8 * self.size))]
        return f"{rng.choice('ab')}{self.number}", long, None

    def _begin(self) -> None:
        name, tokens, base = self._prompt()
        prompt = np.array(tokens, dtype=np.int32)
        told = {"branch_id": name, "tenant": name[0], "tokens": prompt, "base_branch_id": base}
        if base is not None and self.rng.random() < 0.7:
            told["base_offset"] = _common(tokens, self.branches[base])
        foreseen = self.cache.match_length(**told)
        cached = self.cache.begin(**told)
        found = cached.num_cached_tokens + cached.num_restorable_tokens
        assert foreseen == found, "another prefix than was foreseen"
        try:
            self.restore(cached)
            need = self.cache.blocks_for(len(tokens) + 1) - cached.num_blocks
            self.cache.allocate(cached, need)
        except OutOfBlocks:
            self.cache.finish(cached, lease_s=0.0)
            self.counts["refused"] += 1
            return
        if self.rng.random() < 0.3:
            self.cache.keep_rows(cached, [self.rng.randrange(len(tokens))])
        self.counts["begun"] += 1
        self.counts["resumed"] += cached.num_cached_tokens > 0
        self.counts["without rows"] += cached.miss_causes.get("state_missing", 0) > 0
        self.turns.append(Turn(name, tokens, cached))

    def restore(self, cached: CachedSequence) -> None:
        """Bring up what is below the device, or leave it there."""

    def compute(self) -> None:
        """A step of some of those that run, of so many tokens together."""
        left = self.step_tokens
        for turn in self.rng.sample(self.turns, len(self.turns)):
            if left and turn in self.turns:
                left -= self._chunk(turn, left)

    def _chunk(self, turn: Turn, most: int) -> int:
        pending = len(turn.tokens) - turn.computed
        count = min(pending, self.rng.randint(1, most))
        start, end = turn.computed, turn.computed + count
        self.windows.reach(turn.cached, end)
        first, rows = self.windows.window_of(turn.cached, start, end)
        table, contents, size = turn.cached.block_table, turn.contents(), self.size
        for at in range(start, end):
            self.near.write(rows[at // size - first], at % size, contents[at])
            self.all.write(table[at // size], at % size, contents[at])
        for at in range(start):
            assert self.all.slots[table[at // size], at % size] == contents[at], f"row {at}"
        for at in range(max(0, start - self.window + 1), end):
            block = rows[at // size - first]
            assert at // size >= first, f"row {at} of a window is left out"
            assert block >= 0, f"row {at} of a window has no room"
            assert self.near.slots[block, at % size] == contents[at], f"row {at} of a window"
        turn.computed = end
        self.cache.commit(turn.cached, np.array(turn.tokens[:end], dtype=np.int32))
        if turn.computed == len(turn.tokens):
            self._drawn(turn)
        return count

    def _drawn(self, turn: Turn) -> None:
        if self.rng.random() < 0.2:
            self.end(turn)
            return
        turn.tokens.append(self.rng.randrange(2))
        try:
            need = self.cache.blocks_for(len(turn.tokens)) - turn.cached.num_blocks
            self.cache.allocate(turn.cached, max(0, need))
        except OutOfBlocks:
            turn.tokens.pop()
            self.counts["preempted"] += 1
            self.end(turn)

    def end(self, turn: Turn) -> None:
        self.turns.remove(turn)
        self.branches[turn.name] = turn.tokens
        self.cache.finish(turn.cached, lease_s=self.rng.choice([0.0, 5.0]))

    def drain(self) -> None:
        while self.turns:
            self.compute()
        self.counts["evicted"] += self.windows.evicted


def _common(tokens: list[int], others: list[int]) -> int:
    count = 0
    for one, other in zip(tokens, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def play(lane: int, kind: type[Driver] = Driver) -> Counter[str]:
    counts = Counter[str]()
    for run in range(max(1, OPERATIONS // (LANES * PER_RUN))):
        seed = SEED + lane * 1_000_000 + run
        driver = kind(random.Random(seed))
        try:
            for _ in range(PER_RUN):
                driver.step()
            driver.drain()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts += driver.counts
    return counts


@pytest.mark.parametrize("lane", range(LANES))
def test_steps_read_what_was_computed_for_their_tokens(lane: int) -> None:
    counts = play(lane)
    if OPERATIONS >= 6000:
        kinds = {"begun", "resumed", "without rows", "forked", "rewound", "released", "evicted"}
        assert kinds <= {kind for kind, count in counts.items() if count}


@pytest.mark.parametrize("seed", range(50))
def test_a_prefix_is_begun_where_a_window_of_it_has_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    window, size = int(rng.integers(1, 30)), 4
    rows = WindowRows(
        num_blocks=64, num_window_blocks=40, block_size=size, window=window, step_tokens=4
    )
    rows.place[rng.random(64) < 0.8] = 0
    table = rng.permutation(64).astype(np.int32)[: int(rng.integers(0, 64))]
    needed = blocks_of_window(window, size)
    plain = max(
        count
        for count in range(len(table) + 1)
        if all(rows.place[block] >= 0 for block in table[max(0, count - needed) : count])
    )
    assert rows.reach_of(table) == plain
