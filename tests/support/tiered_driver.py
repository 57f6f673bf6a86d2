"""Random turns on a prefix cache with host memory and disk, and a mover that keeps content.

What every block holds is noted as the tokens whose KV it would be, in each tier. An order
from or to the disk copies when it completes, not when it is given: so a block that is used
again too early shows as wrong content.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from radix_cache.block_pool import BlockArray, OutOfBlocks
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence
from radix_cache.keys import chain_keys
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, RunContent, StoredRun
from tests.support.caches import make_cache

Tokens = tuple[int, ...]
BLOCK = 2
TENANTS = ("red", "blue")


class ContentMover:
    """Copies between device and host at once, from and to the disk when ``complete`` says."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self.content: dict[Tier, dict[int, Tokens]] = {tier: {} for tier in Tier}
        self.pending: list[BlockMove] = []
        self.leaving: dict[int, list[Tokens]] = {}
        """What device blocks held when they were ordered to the disk."""
        self.stored: dict[int, StoredRun] = {}
        """What a restart would find, by disk block."""
        self.before_arrival: Callable[[], None] = lambda: None
        """Called before blocks of the device are written."""

    def move(self, move: BlockMove) -> None:
        if move.target == Tier.DEVICE:
            self.before_arrival()
        if Tier.DISK in (move.source, move.target):
            self.pending.append(move)
            if move.source == Tier.DEVICE:
                device = self.content[Tier.DEVICE]
                self.leaving[move.number] = [device[b] for b in move.source_blocks.tolist()]
        else:
            self.copy(move)

    def copy(self, move: BlockMove) -> None:
        source, target = self.content[move.source], self.content[move.target]
        held = self.leaving.pop(move.number, None)
        if held is None:
            held = [source[block] for block in move.source_blocks.tolist()]
        for block, tokens in zip(move.target_blocks.tolist(), held, strict=True):
            target[block] = tokens
        if move.content is not None:
            self._note_stored(move.content, move.target_blocks)

    def restart(self) -> None:
        """What is not on the disk is gone."""
        self.content[Tier.DEVICE], self.content[Tier.HOST] = {}, {}
        self.pending, self.leaving = [], {}

    def _note_stored(self, content: RunContent, blocks: BlockArray) -> None:
        """Each block on its own: one that is written over later takes no other with it."""
        keys = [content.parent_key, *chain_keys(content.parent_key, content.tokens, self.block)]
        for index, block in enumerate(blocks.tolist()):
            part = replace(
                content,
                position=content.position + index,
                parent_key=keys[index],
                tokens=content.tokens[index * self.block : (index + 1) * self.block],
            )
            self.stored[block] = StoredRun(content=part, blocks=blocks[index : index + 1])


class TieredDriver:
    OPERATIONS = (
        ("turn",) * 6
        + ("begin", "grow", "grow", "finish", "finish")
        + (
            "queue",
            "release",
            "wait",
            "prefetch",
            "complete",
            "complete",
            "tend",
            "tend",
            "copy_down",
        )
    )

    def __init__(
        self,
        choose: Callable[[int], int],
        *,
        num_blocks: int,
        host_blocks: int,
        disk_blocks: int,
        failures: bool,
    ) -> None:
        self.choose = choose
        self.failures = failures
        self.now = 0.0
        self.mover = ContentMover()
        self.cache = make_cache(
            num_blocks,
            block_size=BLOCK,
            debug=False,
            clock=lambda: self.now,
            mover=self.mover,
            host_blocks=host_blocks,
            disk_blocks=disk_blocks,
        )
        self.transcripts: dict[str, Tokens] = {}
        self.tenants: dict[str, str] = {}
        self.open: dict[str, CachedSequence] = {}
        self.committed: set[tuple[str, Tokens]] = set()
        """Every prefix of whole blocks that a tenant has ever had computed."""
        self.counter = 0
        self.restored = 0

    def step(self) -> None:
        getattr(self, self.OPERATIONS[self.choose(len(self.OPERATIONS))])()

    # Operations

    def turn(self) -> None:
        name = self.begin()
        while name in self.open and self.choose(4):
            self._grow(name)
        if name in self.open:
            self._finish(name)

    def begin(self) -> str:
        idle = [n for n in self.transcripts if n not in self.open]
        if not idle or self.choose(5) == 0:
            if len(self.transcripts) > 8 and idle:
                self._release(idle[0])
            return self._begin(self._new_name(), self._tokens(1 + self.choose(30)), None, 0)
        base = idle[self.choose(len(idle))]
        known = self.transcripts[base]
        at = len(known) if self.choose(3) else self.choose(len(known) + 1)
        tokens = known[:at] + self._tokens(1 + self.choose(6))
        if self.choose(4):
            return self._begin(base, tokens, base, at)
        name = self._new_name()
        self.tenants[name] = self.tenants[base]
        return self._begin(name, tokens, base, at)

    def grow(self) -> None:
        if self.open:
            self._grow(list(self.open)[self.choose(len(self.open))])

    def finish(self) -> None:
        if self.open:
            self._finish(list(self.open)[self.choose(len(self.open))])

    def queue(self) -> None:
        names = list(self.transcripts)
        if names:
            self.cache.set_queued(names[self.choose(len(names))], bool(self.choose(2)))

    def release(self) -> None:
        names = [n for n in self.transcripts if n not in self.open]
        if names:
            self._release(names[self.choose(len(names))])

    def wait(self) -> None:
        self.now += 1.0 + self.choose(20)

    def tend(self) -> None:
        self.cache.tend()

    def copy_down(self) -> None:
        self.cache.copy_down()

    def prefetch(self) -> None:
        names = list(self.transcripts)
        if names:
            name = names[self.choose(len(names))]
            tokens = self.transcripts[name] + (1,)
            told = self.choose(2)
            self.cache.prefetch(
                branch_id=name,
                tenant=self.tenants[name],
                tokens=_array(tokens),
                base_branch_id=name if told else None,
                base_offset=len(tokens) - 1 if told else None,
            )

    def complete(self) -> None:
        """Let one order from or to the disk end, in any order."""
        if self.mover.pending:
            move = self.mover.pending.pop(self.choose(len(self.mover.pending)))
            ok = not (self.failures and self.choose(4) == 0)
            if ok:
                self.mover.copy(move)
            self.cache.moved(move.number, ok=ok)

    # Parts

    def _new_name(self) -> str:
        self.counter += 1
        name = f"s{self.counter}"
        self.tenants[name] = TENANTS[self.choose(2)]
        return name

    def _begin(self, name: str, tokens: Tokens, base: str | None, at: int) -> str:
        told = at if base is not None and self.choose(4) else None
        arguments = {
            "branch_id": name,
            "tenant": self.tenants[name],
            "tokens": _array(tokens),
            "base_branch_id": base,
            "base_offset": told,
        }
        found = self.cache.match_length(**arguments)
        sequence = self.cache.begin(**arguments)
        self.transcripts[name] = tokens
        self.open[name] = sequence
        here = sequence.num_cached_tokens + sequence.num_restorable_blocks * BLOCK
        assert found == here, "match_length is not what begin finds"
        self._compare(name, found)
        if sequence.num_restorable_blocks and self.choose(4):
            try:
                self.cache.restore(sequence)
                assert sequence.num_cached_tokens == found, "restored less than found"
                self.restored += 1
            except OutOfBlocks:
                assert sequence.num_cached_tokens < found, "a failed restore changed something"
        self.verify(name)
        return name

    def _grow(self, name: str) -> None:
        sequence = self.open[name]
        tokens = self.transcripts[name] + (
            self._tokens(self.choose(5)) if sequence.admitted else ()
        )
        needed = max(0, self.cache.blocks_for(len(tokens)) - sequence.num_blocks)
        available = self.cache.available_blocks(sequence)
        try:
            self.cache.allocate(sequence, needed)
        except OutOfBlocks:
            assert needed > available, "a stall"
            self._finish(name)
            return
        assert needed <= available, "more than was available"
        missed = sum(sequence.miss_causes.values())
        assert missed == sequence.num_prompt_tokens - sequence.num_cached_tokens, "miss causes"
        self.transcripts[name] = tokens
        device = self.mover.content[Tier.DEVICE]
        for index in range(sequence.num_shared_blocks, sequence.num_blocks):
            device[int(sequence.block_table[index])] = tokens[: (index + 1) * BLOCK]
        self.cache.commit(sequence, _array(tokens))
        tenant = self.tenants[name]
        self.committed |= {(tenant, tokens[:n]) for n in range(BLOCK, len(tokens) + 1, BLOCK)}
        self.verify(name)

    def _finish(self, name: str) -> None:
        self.verify(name)
        self.cache.finish(self.open.pop(name), lease_s=self.choose(2) * 30.0)

    def _release(self, name: str) -> None:
        self.cache.release_branch(name)
        del self.transcripts[name]

    def _tokens(self, count: int) -> Tokens:
        return tuple(int(self.choose(4) == 0) for _ in range(count))

    # Checks

    def _compare(self, name: str, found: int) -> None:
        """As long as nothing was forgotten, and no disk has taken it out of sight, a prompt
        finds all that its tenant ever computed of it; and never more than that."""
        tenant, tokens = self.tenants[name], self.transcripts[name]
        ends = range(BLOCK, len(tokens), BLOCK)
        longest = 0
        for end in ends:
            if (tenant, tokens[:end]) not in self.committed:
                break
            longest = end
        stats = self.cache.stats()
        assert found <= longest, "found what nobody computed"
        if not stats.disk_total and not sum(stats.evicted_tokens.values()):
            assert found == longest, "a hole, or something lost"

    def verify(self, name: str) -> None:
        """Every shared block of an open turn holds what its tokens say."""
        sequence, tokens = self.open[name], self.transcripts[name]
        device = self.mover.content[Tier.DEVICE]
        for index, block in enumerate(sequence.block_table.tolist()):
            if index < sequence.num_shared_blocks:
                assert device[block] == tokens[: (index + 1) * BLOCK], "wrong content in a block"

    def close(self) -> None:
        """End everything: all orders complete, nothing stays protected or in use."""
        for name in list(self.open):
            self._finish(name)
        while self.mover.pending:
            self.complete()
        for name in list(self.transcripts):
            self._release(name)
        stats = self.cache.stats()
        assert stats.protected == stats.leased == 0, "a claim leaked"
        self.cache.check()


def _array(tokens: Tokens) -> TokenArray:
    return np.array(tokens, dtype=np.int32)
