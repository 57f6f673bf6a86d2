"""The shape of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). No torch here.

Of a token and layer one row is kept: a latent that all heads' keys and values follow from, normed,
and behind it the part of the keys that is rotated, which all heads share. To the pool that is one
head of keys, whose first numbers are the values.

With sparse attention (DeepSeek-V3.2, arXiv:2512.02556) a query attends to a few tokens of its
context, those whose index keys fit its index queries best. A token's index key lies behind the rest
of its row.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import PLAIN_ROPE, RopeConfig

NORM_EPS = 1e-6
"""Of the norms of latents in most models, whatever they have for others."""
INDEX_NORM_EPS = 1e-6
"""Of the norms of index keys, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Which tokens of its context a query attends to: the ``top_k`` of the best scores, of equal
    ones the earliest. A score is a sum over heads: what is above 0 of the product of the head's
    index query with the token's index key, weighed by a number that the query's token has for the
    head."""

    heads: int
    dim: int
    """Numbers of a head's index query, and of an index key."""
    top_k: int
    interleaved: bool = False
    """As ``Latent.interleaved``, of the numbers that are rotated: the first ``rotary_dim``, or the
    last."""
    turns_last: bool = False
    """The last ``rotary_dim`` numbers are rotated (Hy4)."""
    eps: float = INDEX_NORM_EPS
    """Of the norm of index keys."""
    pool: int = 1
    """So many neighbouring tokens are chosen together, by one index key that is a mixture of
    theirs, and those behind the last full pool always (GLM-5.3-Flash). Of more than 1, gates for
    the mixture lie in a row behind its index key."""
    shared: bool = False
    """The layer has no scores of its own and takes the choice of the last one before it that has
    (arXiv:2603.12201). Its rows are as long as the others'."""

    def __post_init__(self) -> None:
        for name in ("heads", "dim", "top_k", "pool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of the indexer is {getattr(self, name)}, not at least 1")
        if self.top_k % self.pool:
            raise ValueError(f"{self.top_k} tokens are chosen, no whole number of {self.pool}")
        if self.pool > 1 and self.shared:
            raise ValueError("a choice of pools that is shared")

    @property
    def row_dim(self) -> int:
        """Numbers that a row has for it."""
        return self.dim if self.pool == 1 else 2 * self.dim

    @property
    def most_chosen(self) -> int:
        """Tokens that a query sees at most."""
        return self.top_k + self.pool - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Causal attention over latents: a mixer that keeps one row of every token."""

    heads: int
    rank: int
    """Numbers of a latent, ``kv_lora_rank``."""
    plain_dim: int
    """Dimensions of a head of queries and keys that are not rotated, ``qk_nope_head_dim``."""
    rotary_dim: int
    """Those that are, ``qk_rope_head_dim``; 0: none, and no positions are known."""
    value_dim: int
    query_rank: int | None = None
    """Queries come from a latent of so many numbers, normed; None: they come as ever."""
    rope: RopeConfig | None = PLAIN_ROPE
    """None: nothing is rotated, ``rotary_dim`` is just the part that all heads share."""
    interleaved: bool = True
    """In the checkpoint the two of a rotated pair are neighbours; else half of ``rotary_dim``
    apart."""
    scale: float | None = None
    """Multiplies the scores; None: (plain_dim + rotary_dim) ** -0.5."""
    bias: bool = False
    """On the projections to latents and on the output's."""
    gated: Literal["heads", "numbers"] | None = None
    """Results are weighed by sigmoids: one for each head (Ling 3), or one for each number of its
    (Hy4)."""
    sinks: bool = False
    """Each head has a logit that counts in the softmax's sum and has no value."""
    eps: float = NORM_EPS
    """Of the norms of latents."""
    indexer: Indexer | None = None
    """Sparse attention; None: a query attends to all that is before it."""

    kv_heads: ClassVar[int] = 1
    kv_rows: ClassVar[int] = 1
    """Rows of a token in the pool: what is a key is a value, too."""
    window: ClassVar[int | None] = None
    shares: ClassVar[int | None] = None
    beside: ClassVar[KVShape | None] = None
    """Index keys lie in the same rows."""

    def __post_init__(self) -> None:
        if not self.rotary_dim and self.rope is not None:
            raise ValueError("latent attention with positions, and nothing is rotated")
        for name in ("heads", "rank", "plain_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.query_rank is not None and self.query_rank < 1:
            raise ValueError(f"query_rank is {self.query_rank}, at least 1 is needed")
        if self.rotary_dim % 2 or self.rotary_dim < 0:
            raise ValueError(f"{self.rotary_dim} dimensions are rotated: rope turns pairs")
        if self.rope is not None and self.rope.rotated is not None:
            raise ValueError("latent attention with a part rotated otherwise than as a whole")
        if self.indexer is None:
            return
        if self.query_rank is None:
            raise ValueError("sparse attention needs queries that come from a latent")
        if self.indexer.dim < self.rotary_dim:
            raise ValueError(
                f"index keys of {self.indexer.dim} numbers, of which {self.rotary_dim} are rotated"
            )

    @property
    def row_dim(self) -> int:
        """Numbers of a row that are attended to: a latent and the rotated part."""
        return self.rank + self.rotary_dim

    @property
    def head_dim(self) -> int:
        """Numbers of a row in the pool."""
        return self.row_dim + (0 if self.indexer is None else self.indexer.row_dim)

    @property
    def kv_shape(self) -> KVShape:
        """What the pool keeps of a token."""
        return KVShape(rows=self.kv_rows, heads=self.kv_heads, size=self.head_dim)

    @property
    def most_seen(self) -> int | None:
        """Tokens that a query attends to at most; None: all."""
        return None if self.indexer is None else self.indexer.top_k

    @property
    def num_gates(self) -> int:
        """Gates of a token's results."""
        each = {None: 0, "heads": 1, "numbers": self.value_dim}
        return self.heads * each[self.gated]

    @property
    def values_dim(self) -> int:
        """Numbers of a row that are values, its first ones."""
        return self.rank

    @property
    def query_dim(self) -> int:
        """Dimensions of a head's queries in the checkpoint."""
        return self.plain_dim + self.rotary_dim

    @property
    def query_size(self) -> int:
        """Numbers of a token's queries as the pool is asked with them."""
        return self.heads * self.row_dim

    @property
    def kv_size(self) -> int:
        return self.head_dim

    @property
    def first_outputs(self) -> int:
        """Outputs of the map from a layer's input to queries, or their latent, and the row."""
        return (self.query_rank or self.heads * self.query_dim) + self.row_dim

    def map_shapes(self, hidden: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of its linear maps; those within a head aside."""
        shapes = [(self.first_outputs, hidden), (hidden, self.heads * self.value_dim)]
        if self.query_rank is not None:
            shapes.append((self.heads * self.query_dim, self.query_rank))
        if self.indexer is not None and self.query_rank is not None and not self.indexer.shared:
            shapes.append((self.indexer.heads * self.indexer.dim, self.query_rank))
            shapes.append((self.indexer.row_dim, hidden))
        return shapes

    def num_parameters(self, hidden: int) -> int:
        maps = sum(outputs * inputs for outputs, inputs in self.map_shapes(hidden))
        maps += self.heads * (self.plain_dim + self.value_dim) * self.rank
        maps += self.num_gates * hidden
        biases = ((self.query_rank or 0) + self.row_dim + hidden) * self.bias
        beside = self.rank + (self.query_rank or 0) + self.heads * self.sinks
        if self.indexer is not None and not self.indexer.shared:
            beside += self.indexer.heads * hidden + 2 * self.indexer.dim
            if self.indexer.pool > 1:
                beside += self.indexer.pool * self.indexer.dim
        return maps + biases + beside
