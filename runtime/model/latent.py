"""The shape of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). No torch here.

Of a token and layer one row is kept: a latent that all heads' keys and values follow from, normed,
and behind it the part of the keys that is rotated, which all heads share. To the pool that is one
head of keys, whose first numbers are the values.
"""

from dataclasses import dataclass
from typing import ClassVar

from runtime.model.rope_config import PLAIN_ROPE, RopeConfig

NORM_EPS = 1e-6
"""Of the norms of latents, whatever the model has for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Causal attention over latents: a mixer that keeps one row of every token."""

    heads: int
    rank: int
    """Numbers of a latent, ``kv_lora_rank``."""
    plain_dim: int
    """Dimensions of a head of queries and keys that are not rotated, ``qk_nope_head_dim``."""
    rotary_dim: int
    """Those that are, ``qk_rope_head_dim``."""
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

    kv_heads: ClassVar[int] = 1
    kv_rows: ClassVar[int] = 1
    """Rows of a token in the pool: what is a key is a value, too."""
    window: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        for name in ("heads", "rank", "plain_dim", "rotary_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.query_rank is not None and self.query_rank < 1:
            raise ValueError(f"query_rank is {self.query_rank}, at least 1 is needed")
        if self.rotary_dim % 2:
            raise ValueError(f"{self.rotary_dim} dimensions are rotated: rope turns pairs")
        rope = self.rope
        if rope is not None and (rope.rotated is not None or rope.query_beta):
            raise ValueError("latent attention with a part rotated otherwise than as a whole")

    @property
    def head_dim(self) -> int:
        """Numbers of a row in the pool."""
        return self.rank + self.rotary_dim

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
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.head_dim

    @property
    def first_outputs(self) -> int:
        """Outputs of the maps of a layer's input."""
        return (self.query_rank or self.heads * self.query_dim) + self.head_dim

    def map_shapes(self, hidden: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of its linear maps; those within a head aside."""
        shapes = [(self.first_outputs, hidden), (hidden, self.heads * self.value_dim)]
        if self.query_rank is not None:
            shapes.append((self.heads * self.query_dim, self.query_rank))
        return shapes

    def num_parameters(self, hidden: int) -> int:
        maps = sum(outputs * inputs for outputs, inputs in self.map_shapes(hidden))
        maps += self.heads * (self.plain_dim + self.value_dim) * self.rank
        biases = ((self.query_rank or 0) + self.head_dim + hidden) * self.bias
        return maps + biases + self.rank + (self.query_rank or 0)
