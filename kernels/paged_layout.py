"""Where each sequence of a step has its context: made once per step, used by every layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.upload import upload

MAX_DECODE_QUERIES = 32
"""Sequences of up to this many query tokens are decodes (or verifications of drafts), whose
cost is the reading of their context; those of more are prefill chunks."""
DECODE_WIDTHS = (1, 4, 8, MAX_DECODE_QUERIES)
PREFIX_UNIT = 64
"""Shared prefixes are multiples of this many tokens, so that they are whole tiles of keys."""
GRID_TOKENS = 1024
"""Kernels divide a context into stretches of so many tokens at most, and tiles of fewer, from its
beginning on: one that begins a multiple later gives the same bits."""
_WORTH_TOKENS = 512
"""Shorter prefixes are not worth a pass of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpan:
    """One sequence's part of a step, for the host."""

    first_row: int
    """The sequence's first query row."""
    num_queries: int
    context_length: int
    """Tokens in the cache, the queries' own included."""
    runs: tuple[tuple[int, int], ...]
    """(first block, blocks) in the order of the context; the last block may be part full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Groups of a step's sequences whose contexts begin with the same blocks."""

    members: Tensor
    """[groups, power of two] int32: indices of sequences, padded with -1; at least two each."""
    lengths: Tensor
    """[groups] int32: tokens of the shared prefix, all of them before any member's queries."""
    skips: Tensor
    """[sequences] int32: the sequence's group's length, 0 without a group."""

    def to(self, device: torch.device) -> "SharedPrefixes":
        """The prefixes on ``device``."""
        return SharedPrefixes(
            members=upload(self.members, device),
            lengths=upload(self.lengths, device),
            skips=upload(self.skips, device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayout:
    """The sequences of a step, in the order of their query rows."""

    query_starts: Tensor
    """[sequences + 1] int32: sequence i's queries are rows starts[i] .. starts[i + 1] - 1."""
    context_lengths: Tensor
    """[sequences] int32: tokens in the cache, the new ones included."""
    block_tables: Tensor
    """[sequences, max_blocks] int32; entries past the context are never read."""
    max_query_tokens: int
    """Most query rows of any one sequence."""
    max_decode_tokens: int
    """Most query rows of any sequence that is a decode; 0 where there is none."""
    spans: Callable[[], tuple[SequenceSpan, ...]] = tuple
    """The layout's sequences for the host, worked out where the attention is computed there in
    torch."""
    shared: SharedPrefixes | None = None
    """Prefixes worth reading once for several sequences; implementations may ignore it."""
    has_rows_of_nobody: bool = False
    """Whether there may be query rows behind the last sequence's, whose results nobody reads."""
    plans: dict[tuple[str | int, ...], Tensor] = field(init=False, default_factory=dict)
    """Plans that an implementation makes of all this in a step's first layer, for the others."""


def decode_width(max_decode_tokens: int) -> int:
    """Query tokens that kernels for decodes of up to ``max_decode_tokens`` make room for: one of
    few numbers, since each is compiled for."""
    return next(width for width in DECODE_WIDTHS if width >= max_decode_tokens)


def find_shared_prefixes(
    block_tables: npt.NDArray[np.int32],
    starts: Sequence[int],
    num_queries: Sequence[int],
    block_size: int,
) -> SharedPrefixes | None:
    """Group the sequences of a step by the blocks that their contexts begin with.

    Args:
        block_tables: [sequences, max_blocks], padded with -1.
        starts: per sequence the position of its first query token.
        num_queries: per sequence.
        block_size: tokens of a block.

    Returns:
        One group for each first block, if its members share enough; None without a group.
    """
    by_first: dict[int, list[int]] = {}
    for index, count in enumerate(num_queries):
        if 0 < count <= MAX_DECODE_QUERIES and starts[index] >= _WORTH_TOKENS:
            by_first.setdefault(int(block_tables[index, 0]), []).append(index)
    groups: list[tuple[list[int], int]] = []
    for members in by_first.values():
        if len(members) < 2:
            continue
        same = (block_tables[members] == block_tables[members[0]]).all(axis=0)
        equal = len(same) if same.all() else int(same.argmin())
        length = min(equal * block_size, *(starts[index] for index in members))
        if length >= _WORTH_TOKENS:
            groups.append((members, length // PREFIX_UNIT * PREFIX_UNIT))
    if not groups:
        return None
    width = 1 << (max(len(members) for members, _ in groups) - 1).bit_length()
    padded = np.full((len(groups), width), -1, dtype=np.int32)
    skips = np.zeros(len(num_queries), dtype=np.int32)
    for row, (members, length) in enumerate(groups):
        padded[row, : len(members)] = members
        skips[members] = length
    return SharedPrefixes(
        members=torch.from_numpy(padded),
        lengths=torch.tensor([length for _, length in groups], dtype=torch.int32),
        skips=torch.from_numpy(skips),
    )
