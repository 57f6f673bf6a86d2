"""The account of misses: one cause for every prompt token that was not cached."""

from typing import Final

from radix_cache.edge import TokenArray
from radix_cache.ghosts import Ghost, GhostRecords, MissCause
from radix_cache.handle import CachedSequence, SessionHandle
from radix_cache.matching import Match
from radix_cache.nodes import Node, Owner
from radix_cache.tree import RadixTree

_WARM_SHARE: Final = 0.8


class MissAccount:
    """Records what is evicted from ``tree``, and explains later prompts by it.

    ``capacity`` bounds the records of nodes that are gone wholly.
    """

    def __init__(self, tree: RadixTree, *, capacity: int) -> None:
        self._tree = tree
        self._ghosts = GhostRecords(capacity)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def evicting(self, leaf: Node, keep: int, now: float) -> MissCause:
        """Record that all but the first ``keep`` blocks of ``leaf`` are about to go; returns
        the cause that later prompts will be told."""
        cause = MissCause.EVICTED
        for holder in leaf.holders:
            if holder.lease_ran_out:
                cause = MissCause.EXPIRED
        count = leaf.size - keep
        ghost = leaf.ghost
        if ghost is not None:
            count += ghost.num_blocks
        leaf.ghost = Ghost(leaf.edge.block_tokens(keep).tobytes(), count, now, cause)
        if not keep:
            self._ghosts.add(leaf.start, leaf.key, leaf.ghost)
        return cause

    def explain(
        self,
        sequence: CachedSequence,
        handle: SessionHandle,
        tokens: TokenArray,
        match: Match,
        *,
        base: SessionHandle | None,
        base_offset: int | None,
    ) -> None:
        """Write ``sequence.misses``, the tokens behind ``match`` by cause, and whether the turn
        is warm; ``handle.known`` becomes what an endless cache would hold of the session.

        Where the turn forks or rewinds ``base`` at ``base_offset``, what lies before that
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
        if ghost is None and tree.published.root.children and owner is not tree.published:
            key = tree.hash_block(block, tree.published.salt)
            ghost = self._ghosts.find(position, key, first)
        return ghost
