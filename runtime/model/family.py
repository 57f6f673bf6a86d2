"""The parts of a family: how its ``config.json`` is read, and how its checkpoints name tensors.

Here is what the readers share. Which families there are is ``runtime.model.dense_families``',
``runtime.model.expert_families``', ``runtime.model.hybrid_families``',
``runtime.model.delta_families``' and ``runtime.model.kimi_families``' to say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.model.config import Activation, Attention, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.schemes import Quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """How a checkpoint names what the decoder asks for."""

    replaced: tuple[tuple[str, str], ...] = ()
    """Within a layer, one after the other: parts of the decoder's names, and the checkpoint's."""
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tensors whose rows are those of several, in their order; names as the decoder's."""
    by_head: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names for a tensor with the rows of all parts together for each head of keys."""
    patterns: tuple[tuple[str, str], ...] = ()
    """Likewise behind those: regular expressions, and what replaces all that they match."""
    or_else: tuple[tuple[str, str], ...] = ()
    """Parts of names, and others for which they stand where a checkpoint has these."""
    either: tuple[tuple[str, str], ...] = ()
    """Likewise, name by name: parts, and others for which they stand where they are not there."""
    piled: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tensors that a checkpoint has in several, one below the other, of whatever sizes."""
    stacked_experts: Literal["inputs first", "outputs first", "by map"] | None = None
    """Experts are in one tensor of each kind: inputs first, gates and ups taking turns (gpt-oss);
    or, unless a checkpoint keeps them one by one, outputs first, gates before ups (Qwen3.5), or
    gates and ups in tensors of their own, outputs first (Step 3.5)."""
    of_one_row: tuple[str, ...] = ()
    """Ends of the names of vectors that a checkpoint has as a matrix of one row."""
    norms_from_zero: bool = False
    """Norms are kept less 1 (Gemma)."""
    outside: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The decoder's names of tensors in no layer, and what else checkpoints call them."""
    bare: bool = False
    """Whether names in a checkpoint may begin without ``model.``."""
    embedding: str = "model.embed_tokens"
    last_norm: str = "model.norm"
    """The norm before the output projection."""
    may_lack: tuple[str, ...] = ()
    """Ends of names of tensors for which zeros stand where a checkpoint has none."""
    unused: tuple[str, ...] = ()
    """Ends of names of tensors that a checkpoint may have for layers that compute without."""
    predicts_more: bool = False
    """Layers behind the last one predict more tokens at once; they are knowingly not read."""
    others: tuple[tuple[str, "TensorNames"], ...] = ()
    """Names in checkpoints of other programs, each by a part of names that these alone have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One ``model_type``: how its configuration and weights are read."""

    read: Callable[[Fields, int | None], ModelConfig]
    """From its fields and the longest context that is served, None for the model's own, to the
    decoder. Raises LoadError."""
    names: TensorNames = TensorNames()
    quantised: Callable[[Fields, Quantisation], Quantisation] | None = None
    """Adds what its checkpoints in few bits leave unsaid. Raises LoadError."""


def read_activation(fields: Fields, name: str = "hidden_act") -> Activation:
    """Read the activation of the gate."""
    found: Activation = fields.one_of(name, {"silu": "silu"}, "silu")
    return found


def read_attention(fields: Fields, head_dim: int | None = None, **own: Any) -> Attention:
    """Heads as most families spell them; ``own``: what else there is to the mixer."""
    heads = fields.size("num_attention_heads")
    default = fields.size("hidden_size") // heads if head_dim is None else head_dim
    return Attention(
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", default),
        **own,
    )


def read_mlp(fields: Fields, **own: Any) -> Gated:
    """The configuration of the one MLP of a layer."""
    return Gated(size=fields.size("intermediate_size"), **own)


def read_corrected_router(
    fields: Fields,
    name: str = "n_routed_experts",
    *,
    experts: int,
    per_token: int = 8,
    scale: float = 1.0,
    least_sum: float = 0.0,
) -> Router:
    """Sigmoids with a correction, in groups; ``name`` says how many experts there are, and the
    numbers are defaults, but ``least_sum``, which is the family's.

    Raises:
        LoadError: a field has another type or size.
    """
    return Router(
        num_experts=fields.size(name, experts),
        per_token=fields.size("num_experts_per_tok", per_token),
        scores="sigmoid",
        normalise=fields.flag("norm_topk_prob", True),
        correction=True,
        groups=fields.size("n_group", 1),
        chosen_groups=fields.size("topk_group", 1),
        scale=fields.number("routed_scaling_factor", scale),
        least_sum=least_sum,
    )


def read_decoder(
    fields: Fields,
    layers: Sequence[Layer],
    context: int,
    *,
    norm_eps: float = 1e-6,
    eps_field: str = "rms_norm_eps",
    tied: bool = False,
    **own: Any,
) -> ModelConfig:
    """Read what is left once the layers are; ``norm_eps`` and ``tied`` are the defaults."""
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.size("vocab_size"),
        hidden_size=fields.size("hidden_size"),
        layers=tuple(layers),
        max_context_tokens=context,
        norm_eps=fields.number(eps_field, norm_eps),
        tie_embeddings=fields.flag("tie_word_embeddings", tied),
        **own,
    )


def read_layer_types(fields: Fields, default: Sequence[bool]) -> tuple[bool, ...]:
    """Which layers have a window; ``default`` where ``layer_types`` is absent."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return tuple(default)
    known = {"sliding_attention": True, "full_attention": False}
    right = isinstance(kinds, list) and len(kinds) == len(default)
    if not right or not all(isinstance(kind, str) and kind in known for kind in kinds):
        raise fields.error("layer_types", kinds, f"{len(default)} of {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)


def read_listed(fields: Fields, name: str, known: Mapping[Any, bool], count: int) -> list[bool]:
    """A list with a word, or 0 or 1, for each layer, each of which stands for true or false."""
    found = fields.get(name)
    right = isinstance(found, list) and len(found) == count
    plain = right and all(isinstance(each, str | int) for each in found)
    if not plain or not all(each in known for each in found):
        raise fields.error(name, found, f"{count} of {', '.join(map(str, known))}")
    return [known[each] for each in found]


def read_listed_if_there(
    fields: Fields, name: str, known: Mapping[Any, bool], count: int
) -> list[bool] | None:
    """See ``read_listed``; None where there is none."""
    return None if fields.get(name) is None else read_listed(fields, name, known, count)


SWITCHED = {0: False, 1: True}
"""The words of published lists of 0 and 1."""


def rotated_dimensions(fields: Fields, rope: Fields, head_dim: int, default: float) -> int:
    """How many dimensions of a head are rotated: a part that either object may state."""
    share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", default))
    rotated = int(head_dim * min(share, 1.0))
    if share > 1 or rotated < 2 or rotated % 2:
        raise rope.error(
            "partial_rotary_factor", share, f"one that rotates pairs of {head_dim} dimensions"
        )
    return rotated
