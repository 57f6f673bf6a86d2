"""The account of misses: one cause for every prompt token that was not cached.

Whoever lets blocks leave the cache says so here before they go, and whoever admits a sequence
says that; both are counted. Always true: what a sequence found and what it missed add up to its
prompt.
"""

from collections.abc import Callable
from typing import Final

from radix_cache.counters import Counters
from radix_cache.edge import TokenArray
from radix_cache.ghosts import Ghost, GhostRecords, MissCause
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.matching import Match
from radix_cache.nodes import Node, Owner
from radix_cache.tree import RadixTree

_WARM_SHARE: Final = 0.8


class MissAccount:
    """Records what leaves ``tree`` and the cache, and explains later prompts by it.

    Args:
        tree: whose nodes are evicted.
        counters: of the cache; prompts and evicted tokens are counted here.
        clock: seconds.
        capacity: bounds the records of nodes that are gone wholly.
    """

    def __init__(
        self, tree: RadixTree, counters: Counters, *, clock: Callable[[], float], capacity: int
    ) -> None:
        self._tree = tree
        self._counters = counters
        self._clock = clock
        self._ghosts = GhostRecords(capacity)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def forgetting(self, node: Node, keep: int) -> None:
        """Account for all but the first ``keep`` blocks of ``node``, which are about to leave the
        cache; later prompts will be told the cause."""
        cause = MissCause.EVICTED
        for holder in node.holders:
            if holder.lease_ran_out:
                cause = MissCause.EXPIRED
        lost = count = node.size - keep
        ghost = node.ghost
        if ghost is not None:
            count += ghost.num_blocks
        node.ghost = Ghost(node.edge.block_tokens(keep).tobytes(), count, self._clock(), cause)
        if not keep:
            self._ghosts.add(node.start, node.key, node.ghost)
        self._counters.evicted_tokens[cause] += lost * self._tree.block_size

    def admitted(self, sequence: CachedSequence) -> None:
        """Count the prompt of a sequence that begins to run. What it found in host memory and
        did not restore is evicted for it."""
        counters, misses = self._counters, sequence.misses
        if sequence.beyond is not None:
            lost = sequence.num_restorable_tokens
            misses[MissCause.EVICTED] = misses.get(MissCause.EVICTED, 0) + lost
        counters.prompt_tokens += sequence.num_prompt_tokens
        counters.hit_tokens += sequence.num_cached_tokens
        for cause, count in misses.items():
            counters.miss_tokens[cause] += count

    def restored(self, num_blocks: int) -> None:
        """Count blocks of a prompt that came back from host memory."""
        self._counters.restored_tokens += num_blocks * self._tree.block_size

    def explain(
        self,
        sequence: CachedSequence,
        handle: BranchHandle,
        tokens: TokenArray,
        match: Match,
        *,
        base: BranchHandle | None,
        base_offset: int | None,
    ) -> None:
        """Write ``sequence.misses``, the tokens behind ``match`` by cause, and whether the sequence
        is warm; ``handle.known`` becomes what an endless cache would hold of the branch.

        Where the sequence forks or rewinds ``base`` at ``base_offset``, what lies before that
        and was not evicted is laid to the branch.
        """
        misses, size = sequence.misses, self._tree.block_size
        count, known = len(tokens), 0
        told = match.position * size
        if self._ghosts or match.node.ghost is not None:
            told = self._explain_evicted(sequence, handle.owner, tokens, match)
        if base is not None:
            known = base.known
            if base_offset is not None:
                known = min(known, base_offset // size)
                cause, end = MissCause.FORKED, 0
                if base_offset == 0 and base is not handle:
                    cause, end = MissCause.HEADER_CHANGED, min(base.known * size, count)
                elif base.known > known:
                    end = min(base_offset, count)
                if end > told:
                    misses[cause] = end - told
                    told = end
        if told < count:
            misses[MissCause.FIRST_SIGHT] = count - told
        handle.known = known
        known = min(known, (count - 1) // size)
        sequence.warm = known > 0 and match.position >= _WARM_SHARE * known

    def resumed(self, sequence: CachedSequence, found: int, *, position: int, known: int) -> None:
        """Tokens ``found`` in the cache are not all of use: with recurrent layers a sequence begins
        where a state was kept, which may also lie a little behind.

        Args:
            position: where that is, once all of the blocks before are on the device.
            known: blocks that an endless cache would hold of the branch.
        """
        misses = sequence.misses
        if position < found:
            misses[MissCause.STATE_MISSING] = found - position
        more = position - found
        for cause in list(misses) if more > 0 else ():
            taken = min(more, misses[cause])
            misses[cause] -= taken
            more -= taken
            if not misses[cause]:
                del misses[cause]
        known = min(known, (sequence.num_prompt_tokens - 1) // self._tree.block_size)
        reached = position // self._tree.block_size
        sequence.warm = known > 0 and reached >= _WARM_SHARE * known

    def _explain_evicted(
        self, sequence: CachedSequence, owner: Owner, tokens: TokenArray, match: Match
    ) -> int:
        """Account for the runs that were evicted behind the match, one after the other;
        returns the token behind them."""
        size, misses = self._tree.block_size, sequence.misses
        whole = len(tokens) // size
        position, node = match.position, match.node
        ghost = node.ghost if position == node.end else None
        while position < whole:
            block = tokens[position * size : (position + 1) * size]
            if ghost is None or ghost.first != block.tobytes():
                ghost = self._find(owner, position, block)
            if ghost is None:
                break
            count = min(ghost.num_blocks, whole - position)
            misses[ghost.cause] = misses.get(ghost.cause, 0) + count * size
            if sequence.evicted_s is None:
                sequence.evicted_s = ghost.evicted_s
            position += count
            ghost = None
        return position * size

    def _find(self, owner: Owner, position: int, block: TokenArray) -> Ghost | None:
        tree, first = self._tree, block.tobytes()
        ghost = self._ghosts.find(position, tree.hash_block(block, owner.salt), first)
        if ghost is None and owner.published.root.children and not owner.is_published:
            key = tree.hash_block(block, owner.published.salt)
            ghost = self._ghosts.find(position, key, first)
        return ghost
