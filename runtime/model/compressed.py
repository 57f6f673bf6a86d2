"""The shape of attention over a window and over compressed entries (DeepSeek-V4). No torch here.

Of a token and layer one row is kept. Its first numbers are key and value of the token itself, which
queries see as long as it is in the window. A layer that compresses makes one entry of every
``ratio`` tokens, too, which later queries see in the place of these; what entries are made of, two
numbers for each of an entry's and of each series of windows, lies behind in the tokens' rows. So an
unfinished window is what rows say, wherever a sequence goes on; and once no unfinished one takes
from them, and no query sees them, the rows may go.

Layers with an ``Indexer`` have windows that overlap: an entry is made of its own tokens and of the
``ratio`` before them, in two series. They make index keys in the same way, and a query attends to
the entries of the best scores.

Always true: an entry, and its index key behind it, lie in the block in which their window ends,
so who shares that block has them.
"""

from dataclasses import dataclass
from typing import ClassVar

from runtime.model.kv_shape import KVShape
from runtime.model.latent import Indexer
from runtime.model.rope_config import PLAIN_ROPE, RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Causal attention over a window and compressed entries, with one head of keys that are values:
    a mixer that keeps one row of every token."""

    heads: int
    dim: int
    """Dimensions of a head, the last ``rotary_dim`` of them rotated in neighbouring pairs."""
    rotary_dim: int
    query_rank: int
    """Queries come from a latent of so many numbers, normed."""
    near: int
    """Tokens themselves that a query sees, its own included."""
    output_groups: int
    """Neighbouring heads go through the first of two output projections group by group."""
    output_rank: int
    """Numbers that it makes of each group."""
    rope: RopeConfig = PLAIN_ROPE
    ratio: int | None = None
    """Tokens of an entry; None: there are no entries."""
    indexer: Indexer | None = None
    """A query attends to the best of the entries before it; None: to all."""

    kv_heads: ClassVar[int] = 1
    kv_rows: ClassVar[int] = 1
    """Rows of a token in the pool: what is a key is a value, too."""
    shares: ClassVar[int | None] = None
    most_seen: ClassVar[int | None] = None
    """Tokens that a query attends to at most: all that it sees have a part."""

    def __post_init__(self) -> None:
        sizes = ("heads", "dim", "rotary_dim", "query_rank", "near", "output_groups")
        for name in (*sizes, "output_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.heads % self.output_groups:
            raise ValueError(f"{self.heads} heads are not in {self.output_groups} equal groups")
        if self.rotary_dim % 2 or self.rotary_dim > self.dim:
            raise ValueError(f"{self.rotary_dim} of {self.dim} dimensions are rotated in pairs")
        if self.rope.rotated is not None:
            raise ValueError("compressed attention with a part rotated otherwise than as a whole")
        if self.ratio is not None and self.ratio < 2:
            raise ValueError(f"entries of {self.ratio} tokens, at least 2 are needed")
        if self.indexer is None:
            return
        if self.ratio is None:
            raise ValueError("an indexer of entries, and there are none")
        if self.indexer.shared or self.indexer.interleaved:
            raise ValueError("an indexer of entries that is shared or rotated otherwise than heads")
        if self.indexer.dim < self.rotary_dim:
            raise ValueError(
                f"index keys of {self.indexer.dim} numbers, of which {self.rotary_dim} are rotated"
            )

    @property
    def window(self) -> int:
        """Tokens whose rows are read where one is computed, its own included: those that its query
        sees, and those of a window that ends with it, and of the one before where they overlap."""
        return max(self.near, self.series * (self.ratio or 0))

    @property
    def series(self) -> int:
        """How many entries a token gives numbers to."""
        return 1 if self.indexer is None else 2

    @property
    def raw_dims(self) -> tuple[int, ...]:
        """Numbers of a row that its entry is made of, and those that its index key is."""
        return tuple(2 * self.series * size for size in self.entry_dims)

    @property
    def entry_dims(self) -> tuple[int, ...]:
        """Numbers of an entry, and of its index key."""
        if self.ratio is None:
            return ()
        return (self.dim,) if self.indexer is None else (self.dim, self.indexer.dim)

    @property
    def head_dim(self) -> int:
        """Numbers of a row in the pool."""
        return self.dim + sum(self.raw_dims)

    @property
    def kv_shape(self) -> KVShape:
        """The room of a token in the pool."""
        return KVShape(rows=self.kv_rows, heads=self.kv_heads, size=self.head_dim)

    @property
    def beside(self) -> KVShape | None:
        """The room of an entry with its index key; None: there are no entries."""
        if self.ratio is None:
            return None
        return KVShape(rows=1, heads=1, size=sum(self.entry_dims), tokens=self.ratio)

    @property
    def values_dim(self) -> int:
        """Numbers of a row that are values, its first ones."""
        return self.dim

    @property
    def query_size(self) -> int:
        return self.heads * self.dim

    @property
    def kv_size(self) -> int:
        return self.head_dim

    @property
    def first_outputs(self) -> int:
        """Outputs of the map from a layer's input to the queries' latent and the row."""
        return self.query_rank + self.head_dim

    def map_shapes(self, hidden: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of its linear maps; those of groups of heads aside."""
        shapes = [
            (self.first_outputs, hidden),
            (self.query_size, self.query_rank),
            (hidden, self.output_groups * self.output_rank),
        ]
        if self.indexer is not None:
            shapes.append((self.indexer.heads * self.indexer.dim, self.query_rank))
        return shapes

    def num_parameters(self, hidden: int) -> int:
        maps = sum(outputs * inputs for outputs, inputs in self.map_shapes(hidden))
        maps += self.output_rank * self.query_size
        beside = self.query_rank + self.dim + self.heads
        if self.ratio is not None:
            beside += sum(size * (1 + self.ratio * self.series) for size in self.entry_dims)
        if self.indexer is not None:
            beside += self.indexer.heads * hidden
        return maps + beside
