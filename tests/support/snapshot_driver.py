"""Plays random turns of a model with recurrent layers on a prefix cache and carries out its orders.

The driver plays the engine's part: it notes in every block and every slot of which tokens it is the
outcome, and so sees a slot that is written though a snapshot owns it, a state of other tokens, a
tail that was not copied; likewise in the tiers below. With ample blocks all is compared with
``reference_snapshots``; with few, what is found is compared with what the tree holds.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from radix_cache.block_pool import OutOfBlocks
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence, Snapshot
from radix_cache.nodes import Tier
from radix_cache.resume_points import kept_in
from radix_cache.slot_pool import OutOfSlots
from radix_cache.snapshots import SnapshotKind, StateMove
from tests.support.caches import make_cache
from tests.support.reference_snapshots import ReferenceSnapshots, Tokens, restore_s
from tests.support.state_mover import StateMover
from tests.support.tiered_driver import ContentMover

TENANTS = ("red", "blue")
CAP_S = 60.0
MAX_BRANCHES = 8
KINDS = {"end": SnapshotKind.END, "pause": SnapshotKind.PAUSE}


class Open:
    """A turn that runs."""

    def __init__(self, sequence: CachedSequence, prompt: Tokens) -> None:
        self.sequence = sequence
        self.prompt = prompt
        self.computed = sequence.num_cached_tokens


class SnapshotDriver:
    OPERATIONS = (
        ("begin",) * 5 + ("grow",) * 6 + ("finish",) * 4 + ("wait", "queue", "release", "look")
    )
    BELOW = ("prefetch", "prefetch", "complete", "complete", "complete", "tend", "tend")
    """Operations of tiers below the device."""

    def __init__(
        self,
        choose: Callable[[int], int],
        *,
        slots: int,
        running: int,
        blocks: int,
        block: int,
        leasing: bool,
        exact: bool,
        below: dict[str, int] | None = None,
    ) -> None:
        """``below``: sizes of the tiers below the device, as ``CacheConfig`` names them."""
        self.choose, self.block, self.exact = choose, block, exact
        self.below = below or {}
        self.operations = self.OPERATIONS
        if self.below:
            self.operations += self.BELOW + (("restart",) if self.below.get("disk_states") else ())
        self.settings: dict[str, Any] = {
            "num_blocks": blocks,
            "block_size": block,
            "debug": False,
            "clock": lambda: self.model.now,
            "policy": "lease" if leasing else "lru",
            "lease_cap_s": CAP_S,
            "kappa": 1.0,
            "restore_cost": restore_s,
            "state_slots": slots,
            "running_slots": running,
        }
        self.model_of = lambda: ReferenceSnapshots(
            slots,
            running,
            block,
            leasing=leasing,
            cap_s=CAP_S,
            host_slots=self.below.get("host_states", 0),
        )
        self.model = self.model_of()
        self.left: list[tuple[str | None, Tokens]] = []
        """What sessions of earlier processes had, that may come back."""
        self.mover, self.states = ContentMover(block), StateMover()
        self.mover.before_arrival = self.carry_out
        self._start()
        self.transcripts: dict[str, Tokens] = {}
        self.owners: dict[str, str | None] = {}
        self.open: dict[str, Open] = {}
        self.running: dict[int, Open] = {}
        self.counter = 0
        self.counts: dict[str, int] = {}
        if choose(2):
            self._begin("-", None, self._tokens(3 + choose(6)), None, 0)
            self._end("-", "end")

    def _start(self) -> None:
        self.cache = make_cache(mover=self.mover, **self.settings, **self.below)

    @property
    def blocks(self) -> dict[int, Tokens]:
        """Of which tokens the keys and values of each block on the device are."""
        return self.mover.content[Tier.DEVICE]

    def step(self) -> None:
        """One random operation, and the comparison after it."""
        getattr(self, self.operations[self.choose(len(self.operations))])()
        self.compare()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _tokens(self, count: int) -> Tokens:
        return tuple(self.choose(2) for _ in range(count))

    # Operations

    def begin(self) -> None:
        idle = [n for n in self.transcripts if n not in self.open and self.owners[n] is not None]
        kind = self.choose(6)
        if self.left and self.choose(3) == 0:
            owner, tokens = self.left[self.choose(len(self.left))]
            self._count("came back after a restart")
            self._new(owner, tokens + self._tokens(1 + self.choose(3)), None, 0)
            return
        if kind == 0 or not idle:
            self._new(TENANTS[self.choose(2)], self._tokens(1 + self.choose(9)), None, 0)
            return
        name = idle[self.choose(len(idle))]
        tokens, owner = self.transcripts[name], self.owners[name]
        more = self._tokens(1 + self.choose(6))
        if kind <= 2 and tokens:
            self._count("continued")
            self._begin(name, owner, tokens + more, name, len(tokens))
            return
        at = self.choose(len(tokens) + 1)
        if kind == 3:
            self._count("rewound")
            self._begin(name, owner, tokens[:at] + more, name, at)
        elif kind == 4:
            self._count("forked")
            self._new(owner, tokens[:at] + more, name, at)
        else:
            self._count("resent")
            self._new(TENANTS[self.choose(2)], tokens + more, None, 0)

    def grow(self) -> None:
        if not self.open:
            return
        name = self._pick(self.open)
        turn = self.open[name]
        if turn.computed >= len(turn.prompt):
            turn.prompt += self._tokens(1 + self.choose(4))
        self._compute(name, turn.computed + 1 + self.choose(len(turn.prompt) - turn.computed))
        if name not in self.open:
            return
        if turn.sequence.junction == turn.computed or not self.choose(4):
            self._keep(name, SnapshotKind.HEADER)
        elif turn.computed % self.block == 0:
            self._keep(name, SnapshotKind.INTERVAL)

    def _keep(self, name: str, kind: SnapshotKind) -> None:
        turn = self.open[name]
        tokens = turn.prompt[: turn.computed]
        kept = self.cache.keep_state(turn.sequence, _array(tokens), kind)
        self._count("kept" if kept else "not kept")
        self._count(f"{kind} {'kept' if kept else 'not kept'}")
        if self.exact:
            assert kept == self.model.save(name, tokens, str(kind)), "kept"

    def finish(self) -> None:
        if self.open:
            name = self._pick(self.open)
            self._end(name, ("end", "end", "end", "pause", "error")[self.choose(5)])

    def wait(self) -> None:
        self.model.now += 1.0 + self.choose(30) if self.choose(40) else 700.0

    def queue(self) -> None:
        names = [n for n in self.transcripts if n not in self.open]
        if names:
            name, queued = names[self.choose(len(names))], bool(self.choose(2))
            self.cache.set_queued(name, queued)
            self.model.set_queued(name, queued)

    def release(self) -> None:
        names = [n for n in self.transcripts if n not in self.open and self.owners[n] is not None]
        if not names:
            return
        name = names[self.choose(len(names))]
        if not self.exact and self.choose(2):
            self._count("dropped")
            self.cache.drop_branch(name)
            return
        self._count("released")
        self._release(name)

    def look(self) -> None:
        """What a turn would find is told without one."""
        known = list(self.transcripts.values())
        tokens = known[self.choose(len(known))] if known else ()
        tokens = tokens[: self.choose(len(tokens) + 1)] + self._tokens(1 + self.choose(3))
        owner = TENANTS[self.choose(2)]
        expected = self._expected(owner, tokens)
        found = self.cache.match_length(branch_id="unknown", tenant=owner, tokens=_array(tokens))
        assert found == expected, f"match_length {found}, {expected} expected"

    # Below the device

    def prefetch(self) -> None:
        """A prompt waits in the queue."""
        known = [(self.owners[n], t) for n, t in self.transcripts.items()] + self.left
        if not known:
            return
        owner, tokens = known[self.choose(len(known))]
        tokens += self._tokens(1 + self.choose(2))
        coming = self.cache.prefetch(branch_id="unknown", tenant=owner, tokens=_array(tokens))
        self._count("prefetched" if coming else "nothing to prefetch")

    def complete(self) -> None:
        """One order from or to the disk ends, in any order; at times it fails."""
        self.carry_out()
        orders = [*self.mover.pending, *self.states.pending]
        if not orders:
            return
        order, ok = orders[self.choose(len(orders))], self.choose(12) > 0
        mover = self.states if isinstance(order, StateMove) else self.mover
        mover.pending.remove(order)  # type: ignore[arg-type]
        if ok:
            mover.copy(order)  # type: ignore[arg-type]
        self._count("moved" if ok else "failed to move")
        self.cache.moved(order.number, ok=ok)

    def tend(self) -> None:
        self.cache.tend()
        self.model.expire()
        self.carry_out()

    def restart(self) -> None:
        """The process ends, in order or not, and another one begins with what the disk holds."""
        if self.choose(2):
            return
        for name in list(self.open):
            self._end(name, "end")
        orderly = self.choose(2) > 0
        if orderly:
            self.carry_out()
            self.cache.copy_down()
            self.carry_out()
        while orderly and (self.mover.pending or self.states.pending):
            self.complete()
        for name, tokens in self.transcripts.items():
            if self.owners[name] is not None:  # what is published anew hides what tenants have
                self.left.append((self.owners[name], tokens))
        del self.left[:-12]
        self.transcripts, self.owners = {}, {}
        now, self.model = self.model.now, self.model_of()
        self.model.now = now
        self.mover.restart()
        self.states.restart()
        if not orderly and self.choose(2):  # of another layout, or harmed: blocks alone are known
            self.states.stored.clear()
            self._count("states lost")
        self._start()
        _, states = self.cache.load(self.mover.stored.values(), self.states.stored.values())
        self._count("restarted")
        self._count("found states again" if states else "found none again")

    # Parts

    def _pick(self, names: dict[str, Any]) -> str:
        return list(names)[self.choose(len(names))]

    def _release(self, name: str) -> None:
        self.cache.release_branch(name)
        del self.transcripts[name], self.owners[name]
        self.model.leave(name)

    def _new(self, owner: str | None, prompt: Tokens, base: str | None, at: int) -> None:
        if len(self.transcripts) >= MAX_BRANCHES:
            idle = [n for n in self.transcripts if n not in self.open and n not in (base, "-")]
            if not idle:
                return
            self._release(idle[self.choose(len(idle))])
        self.counter += 1
        self._begin(f"b{self.counter}", owner, prompt, base, at)

    def _expected(self, owner: str | None, prompt: Tokens) -> int:
        if self.exact:
            kept = self.model.resume(owner, prompt)
            return 0 if kept is None else len(kept.prefix)
        found = [
            len(prefix)
            for of, prefix, each in self._listed()
            if of in (owner, None)
            and each.ready
            and each.node.tier <= Tier.HOST
            and len(prefix) < len(prompt)
            and prompt[: len(prefix)] == prefix
        ]
        return max(found, default=0)

    def _begin(
        self, name: str, owner: str | None, prompt: Tokens, base: str | None, at: int
    ) -> None:
        expected = self._expected(owner, prompt)
        sequence = self.cache.begin(
            branch_id=name,
            tenant=owner,
            tokens=_array(prompt),
            base_branch_id=base,
            base_offset=at if base is not None else None,
        )
        self.model.begin(name, owner, prompt, base, at)
        found = sequence.num_cached_tokens + sequence.num_restorable_tokens
        assert found == expected, f"begins at {found}, {expected} expected"
        if sequence.num_restorable_tokens and self.choose(4):
            try:
                self.cache.restore(sequence)
                assert sequence.num_cached_tokens == expected, "restored less than found"
                self._count("restored")
            except OutOfBlocks:
                assert sequence.num_cached_tokens < expected, "a failed restore changed something"
        expected = sequence.num_cached_tokens + sequence.num_restorable_tokens
        missed = sum(sequence.miss_causes.values())
        assert missed + expected == len(prompt), "causes do not add up"
        if self.exact:
            matched = self.model.matched(owner, prompt)
            missing = max(0, matched - expected)
            assert sequence.miss_causes.get("state_missing", 0) == missing, "state_missing"
            assert sequence.junction == (matched if missing else None), "junction"
        if name in self.transcripts:  # it has lost what is behind, also if it does not run
            self.transcripts[name] = prompt[:at]
        self._admit(name, owner, Open(sequence, prompt))

    def _admit(self, name: str, owner: str | None, turn: Open) -> None:
        sequence = turn.sequence
        blocks = self.cache.blocks_for(len(turn.prompt)) - sequence.num_blocks
        try:
            self.cache.allocate(sequence, blocks)
            admitted = True
        except OutOfSlots:
            self._count("out of slots")
            admitted = False
        except OutOfBlocks:
            assert not self.exact, "blocks are ample"
            self.cache.finish(sequence, lease_s=0.0)
            self.model.finish(name, None, "end", 0.0)
            return
        if self.exact:
            assert admitted == self.model.admit(name), f"admitted: {admitted}"
        elif admitted:
            self.model.branches[name].admitted = True
        if not admitted:
            self.cache.finish(sequence, lease_s=0.0)
            self.model.finish(name, None, "end", 0.0)
            return
        missed = sum(sequence.miss_causes.values())
        assert missed + sequence.num_cached_tokens == len(turn.prompt), "causes do not add up"
        if sequence.num_cached_tokens:
            self._count("resumed")
        self.open[name] = turn
        self.transcripts[name], self.owners[name] = turn.prompt, owner
        if self.choose(3):
            self._compute(name, turn.computed + 1)

    def _compute(self, name: str, until: int) -> None:
        """A step of the model: the orders before it are carried out, blocks and state written."""
        turn = self.open[name]
        sequence = turn.sequence
        more = self.cache.blocks_for(until) - sequence.num_blocks
        if more > 0:
            self.model.use(self.owners[name])
            try:
                self.cache.allocate(sequence, more)
            except OutOfBlocks:
                assert not self.exact, "blocks are ample"
                self._end(name, "pause")
                return
        self.carry_out()
        tokens, size = turn.prompt[:until], self.block
        device = self.states.states[Tier.DEVICE]
        assert device[sequence.state_slot] == tokens[: turn.computed], "another state"
        for index, block in enumerate(sequence.block_table.tolist()[: -(-turn.computed // size)]):
            held = tokens[: min((index + 1) * size, turn.computed)]
            assert self.blocks[block][: len(held)] == held, "keys and values of others"
        for index in range(turn.computed // size, -(-until // size)):
            assert index >= sequence.num_shared_blocks, "a shared block is written"
            self.blocks[int(sequence.block_table[index])] = tokens[: (index + 1) * size]
        turn.computed = until
        device[sequence.state_slot] = tokens
        self.cache.commit(sequence, _array(tokens))
        self.model.commit(name, tokens)

    def carry_out(self) -> None:
        for order in self.cache.take_state_orders():
            way = self.states.carry_out(order, self.blocks)
            if way is not None:
                self._count(way)

    def _end(self, name: str, kind: str) -> None:
        turn = self.open.pop(name, None)
        if turn is None:
            return
        tokens = turn.prompt[: turn.computed] if kind != "error" else None
        lease_s = (None, None, 0.0, 5.0)[self.choose(4)] if kind == "end" else 0.0
        self._count(kind)
        self.cache.finish(
            turn.sequence,
            lease_s=lease_s,
            state_of=None if tokens is None else _array(tokens),
            kind=KINDS.get(kind, SnapshotKind.END),
        )
        self.transcripts[name] = turn.prompt[: turn.computed]
        self.model.finish(name, tokens, kind, lease_s)
        if tokens is None:  # the model knows the length from the tokens
            branch = self.model.branches.get(name)
            if branch is not None:
                branch.known = max(branch.known, turn.computed // self.block)

    # Comparing

    def _listed(self) -> list[tuple[str | None, Tokens, Snapshot]]:
        """All snapshots of the tree."""
        tree = self.cache.tree
        nodes = [*(owner.root for owner in tree.owners()), *tree.nodes()]
        return [(s.owner.name or None, _prefix(s), s) for node in nodes for s in kept_in(node)]

    def compare(self) -> None:
        stats = self.cache.stats()
        running = len(self.open)
        assert stats.free_slots + running + stats.snapshots == stats.slots, "the slot equation"
        if not self.exact:
            return
        listed = sorted(str((of, p, s.slot >= 0, s.host >= 0)) for of, p, s in self._listed())
        expected = sorted(
            str((kept.owner, kept.prefix, kept.device, kept.host)) for kept in self.model.kept
        )
        assert listed == expected, f"snapshots {listed}, {expected} expected"
        for name, branch in self.model.branches.items():
            klass = self.cache.branches.by_id[name].klass
            assert klass == branch.klass, f"class {klass} of {name}, {branch.klass} expected"
        for owner in TENANTS:
            charged = self.cache.tree.account(owner).state_slots
            assert charged == self.model.slots_of(owner), f"slots charged to {owner}"

    def check(self) -> None:
        """The long look: the cache's own, and every snapshot's content."""
        self.cache.check()
        self.carry_out()
        for _, prefix, snapshot in self._listed():
            for tier in Tier:
                slot = snapshot.at(tier)
                if slot < 0 or snapshot.pending is tier:
                    continue
                assert self.states.states[tier][slot] == prefix, "a snapshot of other tokens"
                if len(snapshot.tail):
                    assert self.states.tails[tier][slot] == prefix, "a tail of other tokens"
            node, blocks = snapshot.node, snapshot.blocks
            while node.parent is not None:
                ids = node.edge.block_ids()[: blocks - node.start].tolist()
                content = self.mover.content[Tier(node.tier)]
                for index, block in enumerate(ids, start=node.start):
                    assert content[block] == prefix[: (index + 1) * self.block], "other KV below"
                node, blocks = node.parent, node.start


def _prefix(snapshot: Snapshot) -> Tokens:
    """The tokens before a snapshot, by the tree's own edges."""
    parts, node, blocks = [snapshot.tail.tolist()], snapshot.node, snapshot.blocks
    while node.parent is not None:
        blocks = min(blocks, node.end)
        parts += [
            np.frombuffer(node.edge.block_tokens(index), dtype=np.int32).tolist()
            for index in reversed(range(blocks - node.start))
        ]
        node = node.parent
    return tuple(token for part in reversed(parts) for token in part)


def _array(tokens: Tokens) -> TokenArray:
    return np.array(tokens, dtype=np.int32)
