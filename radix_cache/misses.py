"""The account of misses: one cause for every prompt token that was not cached."""

from collections.abc import Callable

from radix_cache.ghosts import Ghost, GhostRecords, MissCause
from radix_cache.handle import CachedSequence, SessionHandle
from radix_cache.nodes import Node, TokenArray


class MissAccount:
    """Records what is evicted, and explains later prompts by it.

    Args:
        block_size: tokens per block.
        hash_block: hash of (tokens of a block, salt), the same as the tree's.
        published_salt: the salt under which every tenant finds prefixes.
        capacity: ghost records kept.
    """

    def __init__(
        self,
        block_size: int,
        *,
        hash_block: Callable[[TokenArray, int], int],
        published_salt: int,
        capacity: int,
    ) -> None:
        self._block_size = block_size
        self._hash_block = hash_block
        self._published_salt = published_salt
        self._ghosts = GhostRecords(capacity)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def evicting(self, leaf: Node, keep: int, now: float) -> MissCause:
        """Record that all but the first ``keep`` blocks of ``leaf`` are about to go; returns
        the cause that later prompts will be told."""
        cause = MissCause.EVICTED
        if any(holder.lease_ran_out for holder in leaf.holders):
            cause = MissCause.EXPIRED
        key = leaf.key
        if keep:
            size = self._block_size
            key = self._hash_block(leaf.tokens[keep * size : (keep + 1) * size], leaf.owner.salt)
        ghost = Ghost(leaf.size - keep, now, cause)
        leaf.ghost = self._ghosts.add(leaf.start + keep, key, ghost, before=leaf.ghost)
        return cause

    def explain(
        self,
        sequence: CachedSequence,
        handle: SessionHandle,
        tokens: TokenArray,
        *,
        base: SessionHandle | None,
        base_offset: int | None,
    ) -> None:
        """Write ``sequence.misses``: the uncached ones of ``tokens`` by cause.

        Where the turn forks or rewinds ``base`` at ``base_offset``, what lies before that
        and was not evicted is laid to the branch.
        """
        misses, size = sequence.misses, self._block_size
        count = len(tokens)
        told = sequence.num_cached_tokens
        if self._ghosts:
            told = self._explain_evicted(sequence, handle.owner.salt, tokens)
        if base is not None and base_offset is not None:
            cause, end = MissCause.FORKED, 0
            if base_offset == 0 and base is not handle:
                cause, end = MissCause.HEADER_CHANGED, min(base.known * size, count)
            elif base.known > base_offset // size:
                end = min(base_offset, count)
            if end > told:
                misses[cause] = end - told
                told = end
        if told < count:
            misses[MissCause.FIRST_SIGHT] = count - told

    def _explain_evicted(self, sequence: CachedSequence, salt: int, tokens: TokenArray) -> int:
        """Account for the runs that were evicted behind the match, one after the other;
        returns the token behind them."""
        size, misses = self._block_size, sequence.misses
        whole = len(tokens) // size
        position = sequence.num_shared_blocks
        while position < whole:
            block = tokens[position * size : (position + 1) * size]
            ghost = self._ghosts.find(position, self._hash_block(block, salt))
            if ghost is None:
                ghost = self._ghosts.find(position, self._hash_block(block, self._published_salt))
            if ghost is None:
                break
            count = min(ghost.num_blocks, whole - position)
            misses[ghost.cause] = misses.get(ghost.cause, 0) + count * size
            if sequence.evicted_s is None:
                sequence.evicted_s = ghost.evicted_s
            position += count
        return position * size
