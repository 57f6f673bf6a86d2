"""What a decoder looks like: sizes, and which of the family's options it uses.

Llama, Qwen and Mistral differ only in these values; ``runtime.model.decoder`` has one
implementation for all. Parsing a checkpoint's ``config.json`` is ``runtime.model.hf_config``.
No torch here.

Always true: a ``ModelConfig`` that exists describes a decoder that can be built.
"""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


class LoadError(Exception):
    """A model cannot be served. The message names the file, the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its stretching."""

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    """How many times the original context is stretched."""
    original_max_position: int = 0
    """Context the model was first trained at; llama3 and yarn need it."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original / low_freq_factor are fully stretched."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original / high_freq_factor are left alone."""
    beta_fast: float = 32.0
    """yarn (Peng et al. 2023, arXiv:2309.00071): rotations above which nothing is stretched."""
    beta_slow: float = 1.0
    """yarn: rotations below which everything is stretched."""
    attention_factor: float = 1.0
    """yarn: cosines and sines are multiplied by this."""
    truncate: bool = True
    """yarn: round the ramp's ends to whole dimensions."""

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor < 1:
            raise ValueError(f"rope theta {self.theta} or factor {self.factor} out of bounds")
        if self.kind in ("llama3", "yarn") and self.original_max_position < 1:
            raise ValueError(f"rope {self.kind} needs original_max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitShaping:
    """What makes a model of random weights end its sequences; trained models have none.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """MLPs of which each token takes a few (mixture of experts, Qwen3-MoE)."""

    num_experts: int
    per_token: int
    intermediate_size: int
    """Of each expert."""
    normalise: bool
    """The weights of a token's experts add up to 1."""
    layers: tuple[bool, ...]
    """Which layers have experts; the others have one MLP."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.num_experts:
            raise ValueError(f"{self.per_token} of {self.num_experts} experts per token")
        if self.intermediate_size < 1:
            raise ValueError(f"experts of size {self.intermediate_size}, at least 1 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm, rotary positions, grouped heads, gated MLP."""

    model_type: str
    """Family as in ``config.json``; the chat format is chosen by it."""
    vocab_size: int
    """Rows of the embedding. May exceed what the tokenizer knows (padding)."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_context_tokens: int
    norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    tie_embeddings: bool = False
    """The output projection is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias on the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each query and key head before the rotation (Qwen3)."""
    windows: tuple[int | None, ...] = ()
    """Per layer: tokens a query sees, itself included; None = all. Empty: None for every layer."""
    experts: ExpertsConfig | None = None
    shaping: LogitShaping | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "intermediate_size", "max_context_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary positions need pairs")
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.num_layers} layers")
        if self.experts and len(self.experts.layers) != self.num_layers:
            raise ValueError(f"{len(self.experts.layers)} experts.layers for {self.num_layers}")
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows {self.windows}: at least 1 is needed")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Weights held, a tied embedding counted once."""
        hidden, query, kv = self.hidden_size, self.query_size, self.kv_size
        attention = hidden * (query + 2 * kv) + query * hidden
        attention += (query + 2 * kv) * self.qkv_bias + hidden * self.output_bias
        attention += 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * hidden * (1 if self.tie_embeddings else 2)
        mlps = sum(self._mlp_parameters(layer) for layer in range(self.num_layers))
        return embeddings + hidden + self.num_layers * (attention + 2 * hidden) + mlps

    def _mlp_parameters(self, layer: int) -> int:
        experts = self.experts_of(layer)
        if experts is not None:
            return experts.num_experts * self.hidden_size * (3 * experts.intermediate_size + 1)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return mlp + (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """The experts of a layer; None where it has one MLP."""
        return self.experts if self.experts and self.experts.layers[layer] else None

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None
