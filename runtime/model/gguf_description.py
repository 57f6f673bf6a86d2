"""A GGUF file's metadata -> ``ModelConfig``, and what its tensors are called.

What it says is put as ``config.json`` says it and read by the family's own reader, so that both
kinds of files are checked alike. Here is what is different: names of fields and of tensors, and the
order of queries' and keys' rows, which llama.cpp keeps by pairs. No torch here.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.model.config import Attention, LoadError, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.gguf_header import GgufHeader
from runtime.model.hf_config import FAMILIES
from runtime.model.rope_config import RopeConfig
from runtime.model.schemes import Quantisation, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """How llama.cpp keeps a family."""

    model_type: str
    pairs_rows: bool = False
    """Rows of queries and keys are by pairs of dimensions that are rotated together."""
    is_biased: bool = False
    """Queries, keys and values have biases, which the family takes for granted."""


_ARCHITECTURES = {
    "llama": _Architecture(model_type="llama", pairs_rows=True),
    "qwen2": _Architecture(model_type="qwen2", is_biased=True),
    "qwen3": _Architecture(model_type="qwen3"),
    "qwen3moe": _Architecture(model_type="qwen3_moe"),
}

_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_PASSED_OVER = (
    "vocab_size",
    "rope.dimension_count",
    "attention.value_length",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "expert_weights_norm",
)
"""Read otherwise, or following from the others."""

_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ROPE_FACTORS = "rope_freqs.weight"
"""Factors by which each pair of dimensions turns more slowly."""
_WIDE = ("F32", "F16", "BF16")


def read_gguf_config(header: GgufHeader, max_context_tokens: int | None = None) -> ModelConfig:
    """Describe the decoder of a file. Raises LoadError: see ``read_model_config``."""
    own = _architecture(header)
    fields = Fields(header.path, _values(header, own), prefix="metadata of ")
    try:
        config = FAMILIES[own.model_type].read(fields, max_context_tokens)
    except ValueError as error:
        raise LoadError(f"{header.path}: {error}") from error
    fields.check_rest()
    _check_heads(header, config)
    if ROPE_FACTORS in header.tensors:
        config = _with_rope_factors(header, config)
    kinds = {each.kind for each in header.tensors.values()}
    if kinds <= set(_WIDE):
        return config
    scheme = Scheme(layout="gguf")
    return replace(
        config, quantisation=Quantisation(method="gguf", excluded_field="", scheme=scheme)
    )


def name_in_gguf(name: str) -> tuple[str, int | None]:
    """The file's name for a tensor as the decoder calls it, and which expert of it that is."""
    module, _, kind = name.rpartition(".")
    if module in _WHOLE:
        return f"{_WHOLE[module]}.{kind}", None
    layer, _, rest = module.removeprefix("model.layers.").partition(".")
    if rest.startswith("mlp.experts."):
        expert, _, which = rest.removeprefix("mlp.experts.").partition(".")
        return f"blk.{layer}.{_IN_LAYER[f'mlp.{which}']}_exps.{kind}", int(expert)
    return f"blk.{layer}.{_IN_LAYER[rest]}.{kind}", None


def pairs_rows(header: GgufHeader, name: str) -> bool:
    """Whether the rows of a tensor, by the decoder's name, are kept by pairs."""
    return _architecture(header).pairs_rows and ("q_proj." in name or "k_proj." in name)


def _architecture(header: GgufHeader) -> _Architecture:
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise LoadError(
            f"{header.path}: metadata general.architecture is {str(name)[:80]!r}, not one of "
            f"{known}; other families are read from folders of safetensors"
        )
    return _ARCHITECTURES[name]


def _values(header: GgufHeader, own: _Architecture) -> dict[str, Any]:
    """As ``config.json`` says it."""
    prefix = f"{header.metadata['general.architecture']}."
    given = {
        name.removeprefix(prefix): value
        for name, value in header.metadata.items()
        if name.startswith(prefix)
    }
    for name in given:
        if name not in _FIELDS and name not in _PASSED_OVER:
            raise LoadError(
                f"{header.path}: metadata {prefix}{name[:80]} is not known, and could change what "
                "is computed"
            )
    values = {theirs: given[ours] for ours, theirs in _FIELDS.items() if ours in given}
    values |= {"model_type": own.model_type, "rope_scaling": _scaling(given)}
    if not values["rope_scaling"]:
        del values["rope_scaling"]
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise LoadError(f"{header.path}: tensor 'token_embd.weight' is missing")
    values["vocab_size"] = embedding.shape[0]
    values["tie_word_embeddings"] = "output.weight" not in header.tensors
    if "blk.0.attn_q.bias" in header.tensors and not own.is_biased:
        values["attention_bias"] = True
    if own.model_type == "qwen3_moe":
        values["norm_topk_prob"] = True
    return values


def _scaling(given: Mapping[str, Any]) -> dict[str, Any]:
    # As llama.cpp has it: a factor alone is that of linear scaling.
    kind = given.get("rope.scaling.type", "linear" if "rope.scaling.factor" in given else "none")
    if kind == "none":
        return {}
    scaling = {"rope_type": kind, "factor": given.get("rope.scaling.factor")}
    if "rope.scaling.original_context_length" in given:
        original = given["rope.scaling.original_context_length"]
        scaling["original_max_position_embeddings"] = original
    return scaling


def _check_heads(header: GgufHeader, config: ModelConfig) -> None:
    """Heads are rotated whole, and those of values have the size of those of keys."""
    for name in ("rope.dimension_count", "attention.value_length"):
        whole = f"{header.metadata['general.architecture']}.{name}"
        found = header.metadata.get(whole, config.head_dim)
        if found != config.head_dim:
            raise LoadError(
                f"{header.path}: metadata {whole} is {str(found)[:80]}, not {config.head_dim}, the "
                "size of a head"
            )


def _with_rope_factors(header: GgufHeader, config: ModelConfig) -> ModelConfig:
    factors = _small_floats(header, ROPE_FACTORS)
    layers = []
    for layer in config.layers:
        mixer = layer.mixer
        assert isinstance(mixer, Attention)  # as in all architectures that are read
        rope = mixer.rope
        if rope is None or rope.kind != "default" or len(factors) != config.head_dim // 2:
            raise LoadError(
                f"{header.path}: tensor {ROPE_FACTORS!r} has {len(factors)} numbers, "
                f"{config.head_dim // 2} are needed, and no other scaling of positions"
            )
        own = RopeConfig(theta=rope.theta, kind="longrope", factors=factors, attention_factor=1.0)
        layers.append(replace(layer, mixer=replace(mixer, rope=own)))
    return replace(config, layers=tuple(layers))


def _small_floats(header: GgufHeader, name: str) -> tuple[float, ...]:
    tensor = header.tensors[name]
    if tensor.kind != "F32" or tensor.num_bytes > 1 << 16:
        raise LoadError(f"{header.path}: tensor {name!r} is not a short list of F32")
    with open(header.path, "rb") as file:
        file.seek(tensor.begin)
        found = struct.unpack(f"<{tensor.num_bytes // 4}f", file.read(tensor.num_bytes))
    if not all(0 < each < 1e9 for each in found):
        raise LoadError(f"{header.path}: tensor {name!r} has numbers that are no factors")
    return found
