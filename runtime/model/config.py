"""The shape of a decoder: a tuple of layers, each a mixer, a feed-forward and their norms.

Families differ only in these values; ``runtime.model.decoder`` knows none of them. From a
checkpoint's ``config.json`` to a ``ModelConfig`` leads ``runtime.model.hf_config``. No torch here.

Always true: a ``ModelConfig`` that exists describes a decoder that can be built.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from runtime.model.latent import Latent
from runtime.model.recurrent import Recurrent
from runtime.model.rope_config import PLAIN_ROPE, RopeConfig
from runtime.model.schemes import Quantisation


class LoadError(Exception):
    """A model cannot be served. The message names the file, the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitShaping:
    """Changes to logits that make a model of random weights end its sequences; trained models have
    none.

    Ids outside ``[0, num_plain)`` other than ``end_of_turn`` lose ``ban``; every
    ``period``-th position of the transcript the end-of-turn logit gains ``boost``. A
    function of the position alone, so that exactness holds for these models as well.
    """

    num_plain: int
    """Ids below this are plain bytes."""
    end_of_turn: int
    period: int = 48
    boost: float = 64.0
    ban: float = 1024.0


NormOfHeads = Literal["each", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention of grouped heads: a mixer that keeps keys and values of every token."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig | None = PLAIN_ROPE
    """Rotary positions; None: the layer knows no positions."""
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
        if rope is not None and rope.kind == "longrope":
            pairs = (rope.rotated or self.head_dim) // 2
            if len(rope.factors) != pairs:
                raise ValueError(f"{len(rope.factors)} factors of longrope for {pairs} pairs")

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

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
        return [(self.query_size + 2 * self.kv_size, hidden), (hidden, self.query_size)]

    def num_parameters(self, hidden: int) -> int:
        query, kv = self.query_size, self.kv_size
        norms = {None: 0, "each": 2 * self.head_dim, "all": query + kv}[self.norm]
        queries = query * (2 if self.gated else 1)
        biases = (queries + 2 * kv) * self.bias + hidden * self.output_bias
        maps = hidden * (queries + 2 * kv) + query * hidden
        return maps + biases + norms + self.heads * self.sinks


KeepsKV = Attention | Latent
"""Mixers that keep something of every token, in the pool's blocks."""
Mixer = KeepsKV | Recurrent

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
"""The function of the gate (``kernels.activation``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An MLP whose inner values are gated."""

    size: int
    activation: Activation = "silu"
    limit: float = 0.0
    """clamped_swiglu: gates and values are held within this."""
    bias: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"intermediate_size is {self.size}, at least 1 is needed")
        if (self.activation == "clamped_swiglu") != (self.limit > 0):
            raise ValueError(f"{self.activation} within {self.limit}")

    def num_parameters(self, hidden: int) -> int:
        return 3 * hidden * self.size + (2 * self.size + hidden) * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """An MLP without a gate: its inner values are squared where they are above 0, else nothing
    (So et al. 2021, arXiv:2109.08668)."""

    size: int
    bias: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"intermediate_size is {self.size}, at least 1 is needed")

    def num_parameters(self, hidden: int) -> int:
        return 2 * hidden * self.size + (self.size + hidden) * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Which experts a token takes, and how much of each."""

    num_experts: int
    per_token: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    wide: bool = False
    """Logits are computed in float32 at least; those of sigmoids always are."""
    normalise: bool
    """The weights of a token's experts add up to 1, before ``scale``."""
    bias: bool = False
    """Whether a bias is added to the router's logits."""
    correction: bool = False
    """A learnt number for each expert that counts in the choice and not in the weight."""
    groups: int = 1
    """Experts are in so many groups of neighbours, of which ``chosen_groups`` are taken: those
    whose ``best_of_group`` best experts have the largest sum."""
    chosen_groups: int = 1
    best_of_group: int = 2
    scale: float = 1.0
    """Factor of the experts' weights."""
    least_sum: float = 0.0
    """Added to the sum that normalised weights are divided by."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.num_experts:
            raise ValueError(f"{self.per_token} of {self.num_experts} experts per token")
        if self.groups < 1 or self.num_experts % self.groups:
            raise ValueError(f"{self.num_experts} experts are not in {self.groups} equal groups")
        if not 1 <= self.chosen_groups <= self.groups:
            raise ValueError(f"{self.chosen_groups} of {self.groups} groups of experts")
        each = self.num_experts // self.groups
        if self.groups > 1 and each < self.best_of_group:
            raise ValueError(f"groups of {each} experts, at least {self.best_of_group} are needed")
        if self.per_token > self.chosen_groups * each:
            raise ValueError(f"{self.per_token} experts per token of {self.chosen_groups * each}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """MLPs of which each token takes a few (mixture of experts)."""

    router: Router
    each: Gated | Plain
    shared: Gated | Plain | None = None
    """One more that every token takes."""
    shared_gate: bool = False
    """The expert that every token takes is weighed by a sigmoid of its own (Qwen2-MoE)."""
    own: tuple[int, int] | None = None
    """The first of those that this process has, and the one behind the last; None: it has all."""

    @property
    def held(self) -> range:
        """The experts that this process has."""
        return range(self.router.num_experts) if self.own is None else range(*self.own)

    def num_parameters(self, hidden: int) -> int:
        router = self.router
        total = len(self.held) * self.each.num_parameters(hidden) + router.num_experts * hidden
        total += router.num_experts * (router.bias + router.correction)
        if self.shared is not None:
            total += self.shared.num_parameters(hidden) + hidden * self.shared_gate
        return total


Norms = Literal["before", "after", "both"]
"""Where a layer's RMSNorms are: on what goes into mixer and feed-forward, on what comes out, or
both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A mixer, then a feed-forward, each added to the sum of all before; or one of them."""

    mixer: Mixer | None
    feed_forward: Gated | Plain | Experts | None
    norms: Norms = "before"
    residual_scale: float = 1.0
    """Multiplies what is added."""

    def __post_init__(self) -> None:
        if self.mixer is None and self.feed_forward is None:
            raise ValueError("a layer of nothing")

    def num_parameters(self, hidden: int) -> int:
        halves = [half for half in (self.mixer, self.feed_forward) if half is not None]
        norms = (2 if self.norms == "both" else 1) * hidden
        return sum(norms + half.num_parameters(hidden) for half in halves)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with RMSNorms."""

    model_type: str
    """Family as in ``config.json``."""
    vocab_size: int
    """Rows of the embedding. May exceed what the tokenizer knows (padding)."""
    hidden_size: int
    layers: tuple[Layer, ...]
    max_context_tokens: int
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    """The output projection is the embedding."""
    embedding_scale: float = 1.0
    """Multiplies the embeddings of a step's tokens."""
    logit_divisor: float = 1.0
    shaping: LogitShaping | None = None
    quantisation: Quantisation | None = None
    """How a checkpoint keeps its matrices; None: in 16 bits or more."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_context_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if not self.layers:
            raise ValueError("a model without layers")
        if not self.attention:
            raise ValueError("a model without a layer of attention")
        rows = {(mixer.kv_heads, mixer.head_dim) for mixer in self.attention}
        kinds = {(type(mixer), mixer.rotary_dim) for mixer in self.attention}
        if len(rows) > 1:
            raise ValueError(f"layers whose keys differ in heads and size: {sorted(rows)}")
        if len(kinds) > 1:
            raise ValueError("layers whose keys differ in what they are")
        if len(set(self.recurrent)) > 1:
            raise ValueError(f"layers whose states differ: {sorted(map(str, set(self.recurrent)))}")
        if self.logit_divisor <= 0:
            raise ValueError(f"logits divided by {self.logit_divisor}")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> tuple[KeepsKV, ...]:
        """The mixers that keep keys and values, in the order of their layers."""
        mixers = [layer.mixer for layer in self.layers]
        return tuple([mixer for mixer in mixers if isinstance(mixer, KeepsKV)])

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        """The mixers that keep a state, whatever the number of tokens; in the same order."""
        mixers = [layer.mixer for layer in self.layers]
        return tuple([mixer for mixer in mixers if isinstance(mixer, Recurrent)])

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values in every layer of attention."""
        return self.attention[0].kv_heads

    @property
    def head_dim(self) -> int:
        """The dimension of their keys and values."""
        return self.attention[0].head_dim

    @property
    def kv_rows(self) -> int:
        """Rows that a head has of each token: a key and a value, or one that is both."""
        return self.attention[0].kv_rows

    @property
    def rotary_dim(self) -> int:
        """The dimensions that tables of angles are made for."""
        return self.attention[0].rotary_dim

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.feed_forward, Experts) for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights held, a tied embedding counted once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        layers = sum(layer.num_parameters(self.hidden_size) for layer in self.layers)
        return embeddings + self.hidden_size + layers
