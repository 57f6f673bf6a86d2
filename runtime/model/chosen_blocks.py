"""The shape of attention that reads chosen blocks of a context (MiniMax M3). No torch here."""

from dataclasses import dataclass

from runtime.model.kv_shape import KVShape


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """Which blocks of its context each head of keys reads for a query: ``count`` of them, the last
    ``local`` up to the query's own and the others by the scores of index keys
    (``kernels.block_choice``). There is an index query for each head of keys, and one index key of
    a token for all, which is kept beside its key and value."""

    dim: int
    """Numbers of an index query and of an index key."""
    size: int
    """Tokens of a block."""
    count: int
    local: int = 1

    def __post_init__(self) -> None:
        for name in ("dim", "size", "count", "local"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} of chosen blocks is {getattr(self, name)}, not at least 1"
                )
        if self.local > self.count:
            raise ValueError(f"{self.local} last blocks among {self.count} that are chosen")

    @property
    def most_tokens(self) -> int:
        """A query that has no more up to itself sees all of them."""
        return self.size * self.count

    @property
    def kv_shape(self) -> KVShape:
        """The shape of a token's index key in the pool, beside its key and value."""
        return KVShape(rows=1, heads=1, size=self.dim)

    def map_shapes(self, kv_heads: int, hidden: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of the maps to index queries and to index keys."""
        return [(kv_heads * self.dim, hidden), (self.dim, hidden)]
