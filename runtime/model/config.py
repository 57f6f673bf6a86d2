"""The shape of a decoder: a tuple of layers, each a mixer, a feed-forward and their norms.

Families differ only in these values; ``runtime.model.decoder`` knows none of them. From a
checkpoint's ``config.json`` to a ``ModelConfig`` leads ``runtime.model.hf_config``. No torch here.

Always true: a ``ModelConfig`` that exists describes a decoder that can be built.
"""

from dataclasses import dataclass
from typing import Literal

from runtime.model.attention_shape import Attention as Attention  # noqa: PLC0414, asked for here
from runtime.model.compressed import Compressed
from runtime.model.kv_layout import KVGroup, KVLayout, kv_layout
from runtime.model.latent import Latent
from runtime.model.recurrent import Recurrent
from runtime.model.schemes import Quantisation
from runtime.model.streams import Streams


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


KeepsKV = Attention | Latent | Compressed
"""Mixers that keep something of every token, in the pool's blocks."""
Mixer = KeepsKV | Recurrent

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "clamped_silu", "clamped_after_silu"]
"""The function of the gate (``kernels.activation``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An MLP whose inner values are gated."""

    size: int
    activation: Activation = "silu"
    limit: float = 0.0
    """Of the clamped ones: gates and values are held within this."""
    bias: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"intermediate_size is {self.size}, at least 1 is needed")
        if self.activation.startswith("clamped") != (self.limit > 0):
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
    scores: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    wide: bool = False
    """Logits are computed in float32 at least; but for those of softmax they always are."""
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
    logit_cap: float | None = None
    """Logits x become cap * tanh(x / cap) (Laguna)."""
    table_rows: int | None = None
    """A table of so many rows says of each token id which experts it takes; logits weigh them
    (DeepSeek-V4). None: logits choose them."""
    scaled: bool = False
    """What the router sees is normed, times a learnt number for each dimension and
    hidden ** -0.5; and a learnt number for each expert multiplies its weight (Gemma 4)."""

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
        if self.logit_cap is not None and self.logit_cap <= 0:
            raise ValueError(f"experts' logits capped at {self.logit_cap}")
        if self.per_token > self.chosen_groups * each:
            raise ValueError(f"{self.per_token} experts per token of {self.chosen_groups * each}")
        if self.table_rows is not None and (self.correction or self.groups > 1 or self.scaled):
            raise ValueError("experts that a table chooses, and a router that chooses otherwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """MLPs of which each token takes a few (mixture of experts)."""

    router: Router
    each: Gated | Plain
    shared: Gated | Plain | None = None
    """One more that every token takes."""
    shared_gate: bool = False
    """The expert that every token takes is weighed by a sigmoid of its own (Qwen2-MoE)."""
    apart: bool = False
    """The experts, and the one that every token takes, are each between two norms of their own, and
    the router sees what is not normed (Gemma 4)."""
    own: tuple[int, int] | None = None
    """The first of those that this process has, and the one behind the last; None: it has all."""

    def __post_init__(self) -> None:
        if self.apart and (self.shared is None or self.shared_gate):
            raise ValueError("experts that are normed apart from an MLP, and there is none")
        if self.apart and self.router.table_rows is not None:
            raise ValueError("experts that are normed apart, and a table chooses them")

    @property
    def held(self) -> range:
        """The experts that this process has."""
        return range(self.router.num_experts) if self.own is None else range(*self.own)

    def num_parameters(self, hidden: int) -> int:
        router = self.router
        total = len(self.held) * self.each.num_parameters(hidden) + router.num_experts * hidden
        total += router.num_experts * (router.bias + router.correction + router.scaled)
        total += hidden * router.scaled + 3 * hidden * self.apart
        total += (router.table_rows or 0) * router.per_token
        if self.shared is not None:
            total += self.shared.num_parameters(hidden) + hidden * self.shared_gate
        return total


Norms = Literal["before", "after", "both", "around_mlp"]
"""Where a layer's RMSNorms are: on what goes into mixer and feed-forward, on what comes out, or
both; or on what goes into both and what comes out of the feed-forward (A.X-K1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A mixer, then a feed-forward, each added to the sum of all before; or one of them."""

    mixer: Mixer | None
    feed_forward: Gated | Plain | Experts | None
    norms: Norms = "before"
    residual_scale: float = 1.0
    """Multiplies what is added."""
    learnt_scale: bool = False
    """A learnt number multiplies the sum behind the layer (Gemma 4)."""

    def __post_init__(self) -> None:
        if self.mixer is None and self.feed_forward is None:
            raise ValueError("a layer of nothing")
        experts = self.feed_forward
        if isinstance(experts, Experts) and experts.apart and self.norms != "both":
            raise ValueError(f"experts that are normed apart in a layer with norms {self.norms}")

    def num_parameters(self, hidden: int) -> int:
        norms = {"both": (2, 2), "around_mlp": (1, 2)}.get(self.norms, (1, 1))
        halves = zip((self.mixer, self.feed_forward), norms, strict=True)
        return self.learnt_scale + sum(
            count * hidden + half.num_parameters(hidden)
            for half, count in halves
            if half is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs:
    """Each layer gets numbers of its own of a token: a row of a table and a projection of the
    embedding, added; a gated product of them is added behind the layer (Gemma 4)."""

    vocabulary: int
    """Rows of the table."""
    size: int
    """Numbers for each layer."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"{self.size} numbers of a token for each layer, at least 1 is needed")

    def num_parameters(self, hidden: int, layers: int) -> int:
        """Weights beside the table."""
        return layers * (3 * hidden * self.size + hidden) + self.size


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
    logit_cap: float | None = None
    """Logits x become cap * tanh(x / cap)."""
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None
    """None: there is one sum."""
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
        if len({type(mixer) for mixer in self.attention}) > 1:
            raise ValueError("layers whose keys differ in what they are")
        self._check_sharing()
        self._check_choices()
        self._check_streams()
        if len(set(self.recurrent)) > 1:
            raise ValueError(f"layers whose states differ: {sorted(map(str, set(self.recurrent)))}")
        if self.logit_divisor <= 0:
            raise ValueError(f"logits divided by {self.logit_divisor}")
        if self.logit_cap is not None and self.logit_cap <= 0:
            raise ValueError(f"logits capped at {self.logit_cap}")
        if self.layer_inputs is not None and self.layer_inputs.vocabulary < self.vocab_size:
            raise ValueError(
                f"a table for layers' inputs of {self.layer_inputs.vocabulary} rows, and "
                f"vocab_size is {self.vocab_size}"
            )

    def _check_sharing(self) -> None:
        """Layers without keys and values of their own read those of one before them that fit."""
        mixers = self.attention
        for index, mixer in enumerate(mixers):
            if mixer.shares is None:
                continue
            other = mixers[mixer.shares] if 0 <= mixer.shares < index else None
            if other is None or other.shares is not None:
                raise ValueError(
                    f"layer {index} of attention shares the keys of {mixer.shares}, which is none "
                    "before it with keys of its own"
                )
            kinds = [(each.kv_shape, each.rope, each.window is None) for each in (other, mixer)]
            if kinds[0] != kinds[1]:
                raise ValueError(f"layer {index} of attention cannot read the keys of another kind")

    def _check_streams(self) -> None:
        """Raises ValueError: layers have more around their halves than streams go through."""
        if self.streams is None:
            return
        if self.layer_inputs is not None:
            raise ValueError("several streams, and layers with inputs of their own")
        for layer in self.layers:
            if layer.norms != "before" or layer.residual_scale != 1 or layer.learnt_scale:
                raise ValueError("several streams, and layers whose sums are normed or scaled")

    def _check_choices(self) -> None:
        """Raises ValueError: layers choose tokens unlike each other, or share what nobody chose."""
        chosen = {mixer.choice for mixer in self.attention if isinstance(mixer, Attention)}
        if len(chosen - {None}) > 1:
            raise ValueError("layers that choose different blocks")
        indexers = [mixer.indexer for mixer in self.attention if isinstance(mixer, Latent)]
        if len({None if each is None else (each.top_k, each.pool) for each in indexers}) > 1:
            raise ValueError("layers that choose different numbers of tokens")
        ratios = {each.ratio: each.rope for each in self._compressed}
        if any(ratios[each.ratio] != each.rope for each in self._compressed):
            raise ValueError("layers with entries of as many tokens, rotated otherwise")
        if indexers and indexers[0] is not None and indexers[0].shared:
            raise ValueError("the first layer shares a choice of tokens, and none is before it")

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

    def kv_layout(self, *, apart: bool = False) -> KVLayout:
        """Where the pool has what layers of attention keep; ``apart``: those with a window in
        groups of their own."""
        return kv_layout(self.attention, apart=apart)

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """What the layers of attention keep, by its shape: one group where all are alike."""
        return self.kv_layout().groups

    @property
    def window(self) -> int | None:
        """Tokens that layers with a window see, or read beside, the most of any; None: no layer has
        one, or rows behind windows are not given back, since nothing is kept of what is further
        away or some layers keep a state."""
        windows = [mixer.window for mixer in self.attention]
        given = [each for each in windows if each is not None]
        far = [mixer for mixer in self.attention if mixer.window is None or mixer.beside]
        return max(given) if given and far and not self.recurrent else None

    @property
    def head_dim(self) -> int:
        """The dimension of keys in the first layer of attention, in most models in all of them."""
        return self.attention[0].head_dim

    @property
    def top_k(self) -> int | None:
        """Tokens that a query attends to at most; None: all."""
        found = (each for mixer in self.attention if (each := mixer.most_seen) is not None)
        return next(found, None)

    @property
    def _compressed(self) -> list[Compressed]:
        return [mixer for mixer in self.attention if isinstance(mixer, Compressed)]

    @property
    def ratios(self) -> tuple[int, ...]:
        """How many tokens compressed entries stand for, in layers that have such."""
        found = dict.fromkeys(each.ratio for each in self._compressed)
        return tuple(ratio for ratio in found if ratio is not None)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.feed_forward, Experts) for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights held, a tied embedding counted once."""
        layers = sum(layer.num_parameters(self.hidden_size) for layer in self.layers)
        return self.uncut_parameters + self.hidden_size + layers

    @property
    def table_parameters(self) -> int:
        """Weights that are looked up alone and never quantised: the table of layers' inputs."""
        own = self.layer_inputs
        return 0 if own is None else own.vocabulary * self.num_layers * own.size

    @property
    def uncut_parameters(self) -> int:
        """Weights outside of mixers and feed-forwards, which several ranks have each: embeddings,
        and what makes layers' inputs. Norms are not counted."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        own = self.layer_inputs
        beside = 0 if own is None else own.num_parameters(self.hidden_size, self.num_layers)
        if self.streams is not None:
            halves = [(layer.mixer, layer.feed_forward) for layer in self.layers]
            count = sum(half is not None for both in halves for half in both)
            beside += self.streams.num_parameters(self.hidden_size, count)
        return embeddings + self.table_parameters + beside
