"""The shape of attention over the keys and values of every token. No torch here."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from runtime.model.chosen_blocks import BlockChoice
from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import PLAIN_ROPE, RopeConfig

NormOfHeads = Literal["each", "all"]
GateFunction = Literal["sigmoid", "softplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention of grouped heads: a mixer that keeps keys and values of every token."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig | None = PLAIN_ROPE
    """Rotary positions; None: the layer knows no positions."""
    interleaved: bool = False
    """In the checkpoint the two of a rotated pair are neighbours; else half of what is rotated
    apart."""
    window: int | None = None
    """Tokens a query sees, itself included; None: all."""
    scale: float | None = None
    """Multiplies the scores; None: head_dim ** -0.5."""
    bias: bool = False
    """Bias on the projections to queries, keys and values."""
    output_bias: bool = False
    norm: NormOfHeads | None = None
    """RMSNorm of queries and of keys before the rotation: over each head (Qwen3), or over all
    heads together (OLMo 2)."""
    sinks: bool = False
    """A learnt logit for each head, in the softmax's sum and without a value (gpt-oss)."""
    gated: bool = False
    """The heads' results are weighed by a sigmoid, number by number (Qwen3-Next)."""
    gate_apart: bool = False
    """That gate has a matrix of its own, without a bias; else its rows lie behind those of each
    head's queries."""
    gated_heads: bool = False
    """Each head's result is weighed by one sigmoid (LFM3)."""
    gate_function: GateFunction = "sigmoid"
    """In the place of the sigmoid of either gate: softplus (Laguna)."""
    value_dim: int | None = None
    """Numbers of a head's values, where they are fewer than those of its keys (MiMo V2); the pool
    has room for as many as a key has."""
    value_scale: float = 1.0
    """Multiplies the values (MiMo V2)."""

    value_norm: bool = False
    """RMSNorm of values over each head, without weights (Gemma 4)."""
    keys_are_values: bool = False
    """There is no projection to values: a value is what the key is before its norm (Gemma 4)."""
    shares: int | None = None
    """The layer, counted among those of attention, whose keys and values it reads: it has no
    projections to such (Gemma 4). None: it has its own."""
    choice: BlockChoice | None = None
    """Queries read a few blocks of their context (MiniMax M3); None: all of it."""

    kv_rows: ClassVar[int] = 2
    """Rows of a token and head in the pool: a key and a value."""

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"num_heads {self.heads} is not a multiple of num_kv_heads {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary positions need pairs")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window}: at least 1 is needed")
        rope = self.rope
        if rope is not None and (rope.rotated or 0) > self.head_dim:
            raise ValueError(f"rope over {rope.rotated} of {self.head_dim} dimensions")
        if self.gate_apart and not self.gated:
            raise ValueError("a matrix for a gate, and nothing is gated")
        if self.gate_function != "sigmoid" and not (self.gated or self.gated_heads):
            raise ValueError(f"gates by {self.gate_function}, and nothing is gated")
        if self.value_dim is not None:
            self._check_values(self.value_dim)
        if self.norm == "all" and (self.keys_are_values or self.shares is not None):
            raise ValueError("keys that are normed over all heads and are values, or shared")
        if self.keys_are_values and (self.turned_part is not None or self.interleaved):
            raise ValueError("values that are keys of which a part is rotated, or neighbours are")
        if self.interleaved and rope is not None and rope.kind == "proportional":
            raise ValueError("neighbours that are rotated in proportion to a whole head")
        if rope is not None and rope.kind == "longrope":
            pairs = (rope.rotated or self.head_dim) // 2
            if len(rope.factors) != pairs:
                raise ValueError(f"{len(rope.factors)} factors of longrope for {pairs} pairs")
        if self.choice is not None:
            self._check_choice(self.choice)

    def _check_values(self, size: int) -> None:
        if not 1 <= size <= self.head_dim:
            raise ValueError(f"values of {size} numbers beside keys of {self.head_dim}")
        if self.norm == "all" or self.value_norm or self.keys_are_values or self.gated:
            raise ValueError("values of another size that are normed, keys or gated")

    def _check_choice(self, choice: BlockChoice) -> None:
        if self.window is not None or self.sinks or self.shares is not None:
            raise ValueError("chosen blocks beside a window, sinks or shared keys")
        if self.rotated > choice.dim:
            raise ValueError(
                f"index keys of {choice.dim} numbers, of which {self.rotated} are rotated"
            )

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def kv_shape(self) -> KVShape:
        """What the pool keeps of a token."""
        return KVShape(rows=self.kv_rows, heads=self.kv_heads, size=self.head_dim)

    @property
    def beside(self) -> KVShape | None:
        """The shape of index keys beside that; None: there are none."""
        return None if self.choice is None else self.choice.kv_shape

    @property
    def most_seen(self) -> int | None:
        """Tokens that a query attends to at most; None: all that it sees."""
        return None if self.choice is None else self.choice.most_tokens

    @property
    def rotated(self) -> int:
        """Numbers of a head that are rotated."""
        return 0 if self.rope is None else self.rope.rotated or self.head_dim

    @property
    def turned_part(self) -> int | None:
        """How many dimensions of a head are rotated among themselves; None: all, or such that a
        pair's two are half a head apart like those of a head that is rotated whole."""
        rope = self.rope
        if rope is None or rope.kind == "proportional" or rope.rotated == self.head_dim:
            return None
        return rope.rotated

    @property
    def made_sizes(self) -> tuple[int, ...]:
        """Numbers that the layer makes of a token for keys, and for values; as far as it does."""
        if self.shares is not None:
            return ()
        if self.keys_are_values:
            return (self.kv_size,)
        return self.kv_size, self.kv_heads * (self.value_dim or self.head_dim)

    @property
    def result_size(self) -> int:
        """Numbers that the heads make of a token, all together."""
        return self.heads * (self.value_dim or self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that kernels rotate, some of them by nothing."""
        return self.head_dim

    @property
    def values_dim(self) -> int:
        """Numbers of a row of the pool that are values, its first ones."""
        return self.head_dim

    def map_shapes(self, hidden: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of its linear maps, gates aside."""
        shapes = [(self.query_size + sum(self.made_sizes), hidden), (hidden, self.result_size)]
        if self.choice is not None:
            shapes += self.choice.map_shapes(self.kv_heads, hidden)
        return shapes

    def num_parameters(self, hidden: int) -> int:
        query, made = self.query_size, sum(self.made_sizes)
        normed = self.head_dim * (1 if self.shares is not None else 2)
        norms = {None: 0, "each": normed, "all": query + self.kv_size}[self.norm]
        queries = query * (2 if self.gated else 1)
        with_bias = (query if self.gate_apart else queries) + made
        biases = with_bias * self.bias + hidden * self.output_bias
        maps = hidden * (queries + made + self.heads * self.gated_heads)
        maps += self.result_size * hidden
        if self.choice is not None:
            shapes = self.choice.map_shapes(self.kv_heads, hidden)
            maps += sum(outputs * inputs for outputs, inputs in shapes) + 2 * self.choice.dim
        return maps + biases + norms + self.heads * self.sinks
