"""How much of the context of sequences that decode is read together.

Attention in blocks on a CPU (``kernels/native/blocked_attention.h``) and of shared prefixes on a
GPU read what sequences begin with in common once for all of them, so that it costs a step once.
Where each is read by itself, as in float32 or on Intel processors without a matrix unit, a step of
many takes longer than is said, which the scale that ``costs`` learns makes up for in the mean.
Sequences with the same first block are compared with the one that was there first, once, when they
begin to decode.

Knows sequences and the ids of their blocks. Knows no costs and no plan.

Always true: adding and taking out a sequence leaves everything as it was.
"""

from dataclasses import dataclass, field

import numpy as np

from radix_cache.block_pool import BlockArray
from runtime.scheduling.sequence import Sequence


@dataclass(slots=True)
class _Alike:
    """Sequences whose contexts begin with the same block."""

    blocks: BlockArray
    """Blocks of the first that was there."""
    tokens: dict[Sequence, int] = field(default_factory=dict)
    """Tokens that each has in common with that one."""

    @property
    def saved(self) -> int:
        """Tokens that all of them together need not read: one reads the longest part for all."""
        return sum(self.tokens.values()) - max(self.tokens.values(), default=0)


class SharedContext:
    """The context that decoding sequences of one scheduler share."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._alike: dict[int, _Alike] = {}
        self._first_block: dict[Sequence, int] = {}
        self.tokens = 0
        """Tokens of context that are read together with another sequence's."""

    def add(self, sequence: Sequence) -> None:
        """A sequence decodes from now on."""
        blocks = None if sequence.cached is None else sequence.cached.block_table
        if blocks is None or not len(blocks):
            return
        first = int(blocks[0])
        alike = self._alike.get(first)
        if alike is None:
            alike = self._alike[first] = _Alike(blocks.copy())
        before = alike.saved
        alike.tokens[sequence] = self._block_size * _num_alike(blocks, alike.blocks)
        self._first_block[sequence] = first
        self.tokens += alike.saved - before

    def discard(self, sequence: Sequence) -> None:
        """A sequence does not decode any more, if it did."""
        first = self._first_block.pop(sequence, None)
        if first is None:
            return
        alike = self._alike[first]
        before = alike.saved
        del alike.tokens[sequence]
        self.tokens += alike.saved - before
        if not alike.tokens:
            del self._alike[first]


def without_shared(context: int, rows: int, shared: int) -> int:
    """Tokens that ``rows`` decodes with ``context`` tokens read, where sequences, maybe more of
    them, have ``shared`` in common: one reads its own at least."""
    return context - min(shared, context - context // max(rows, 1))


def _num_alike(blocks: BlockArray, others: BlockArray) -> int:
    """Blocks that both begin with."""
    count = min(len(blocks), len(others))
    different = np.flatnonzero(blocks[:count] != others[:count])
    return int(different[0]) if len(different) else count
