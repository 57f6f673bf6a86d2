"""Where each sequence of a step has its context: made once per step, used by every layer."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpan:
    """One sequence's part of a step, for the host."""

    first_row: int
    """Its first query row."""
    num_queries: int
    context_length: int
    """Tokens in the cache, the queries' own included."""
    runs: tuple[tuple[int, int], ...]
    """(first block, blocks) in the order of the context; the last block may be part full."""


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
    spans: tuple[SequenceSpan, ...]
    """The same for the host."""
