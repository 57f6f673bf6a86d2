"""Ling 3: from its ``config.json`` to layers of Kimi Delta Attention and of gated latents.

Read as it is published and as ``transformers`` saves it, where the size of recurrent layers' heads
has a name of its own. What is left out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_decoder,
    read_listed_if_there,
)
from runtime.model.kimi_families import either_name, read_lowest
from runtime.model.latent_families import read_latent
from runtime.model.recurrent import KimiDelta

_MIXERS = {"full_attention": True, "linear_attention": False}
_MLPS = {"dense": True, "sparse": False}


def _read_bailing_hybrid(fields: Fields, _: int | None) -> ModelConfig:
    """The last layer of each group attends, the first two have one MLP."""
    count, activation = fields.size("num_hidden_layers", 42), read_activation(fields)
    _check_same(fields)
    longest = either_name(fields, "model_max_length", "max_position_embeddings")
    defaults = {
        "q_lora_rank": None,
        "rope_theta": 6e6,
        "max_position_embeddings": fields.size(longest, 262_144),
    }
    fuller = fields.without("max_position_embeddings").with_defaults(defaults)
    latent, context = read_latent(fuller, ranks=(512, 1536), dims=(128, 64, 128))
    latent = replace(latent, gated="heads")
    delta, experts = _recurrent(fields, latent.heads), _experts(fields)
    mlp = Gated(size=fields.size("intermediate_size", 6144), activation=activation)
    layers = [
        Layer(mixer=latent if attends else delta, feed_forward=mlp if dense else experts)
        for attends, dense in zip(_attending(fields, count), _dense(fields, count), strict=True)
    ]
    return read_decoder(fields, layers, context)


def _check_same(fields: Fields) -> None:
    """Fields that say what is always so. Norms of queries and keys are those of latents, and of
    keys of length one, whatever ``use_qk_norm`` says."""
    fields.whole("rope_interleave", True, "true: this model type rotates neighbours")
    fields.whole("no_kda_lora", True, "true: decays are made in one step")
    granularity = "gated_attention_proj_granularity_type"
    fields.whole(granularity, "head_wise", "head_wise: attention is gated head by head")
    fields.whole("score_function", "sigmoid", "sigmoid")
    fields.whole("moe_router_enable_expert_bias", True, "true: experts have a correction")
    for name in ("use_bias", "use_qkv_bias", "attention_bias"):
        fields.whole(name, False, "false")
    fields.get("use_qk_norm")


def _recurrent(fields: Fields, heads: int) -> KimiDelta:
    head_dim = "head_dim" if fields.get("linear_head_dim") is None else "linear_head_dim"
    fields.whole("linear_num_heads", heads, f"{heads}, like num_attention_heads")
    taps = fields.size("short_conv_kernel_size", 4)
    fields.whole("linear_conv_kernel_dim", taps, f"{taps}, like short_conv_kernel_size")
    lowest: float | None = None
    if fields.flag("kda_safe_gate", True):
        lowest = read_lowest(fields, "kda_lower_bound", fields.get("kda_lower_bound", -5.0))
    return KimiDelta(
        heads=heads,
        head_dim=fields.size(head_dim, 128),
        taps=taps,
        two_steps=False,
        lowest=lowest,
    )


def _experts(fields: Fields) -> Experts:
    each, activation = fields.size("moe_intermediate_size", 768), read_activation(fields)
    router = Router(
        num_experts=fields.size(either_name(fields, "num_experts", "num_local_experts"), 512),
        per_token=fields.size(
            either_name(fields, "num_experts_per_token", "num_experts_per_tok"), 8
        ),
        scores="sigmoid",
        normalise=fields.flag(either_name(fields, "moe_renormalize", "norm_topk_prob"), True),
        correction=True,
        groups=fields.size(either_name(fields, "num_expert_group", "n_group"), 8),
        chosen_groups=fields.size("topk_group", 4),
        scale=fields.number("routed_scaling_factor", 2.5),
        least_sum=1e-20,
    )
    shared = each * fields.size(either_name(fields, "num_shared_experts", "n_shared_experts"), 1)
    stated = "moe_shared_expert_intermediate_size"
    if fields.size(stated, each) not in (each, shared):
        raise fields.error(stated, fields.get(stated), f"{each}, like moe_intermediate_size")
    return Experts(
        router=router,
        each=Gated(size=each, activation=activation),
        shared=Gated(size=shared, activation=activation),
    )


def _attending(fields: Fields, count: int) -> list[bool]:
    """Which layers attend; those behind the last whole group have to be said."""
    kinds = read_listed_if_there(fields, "layer_types", _MIXERS, count)
    group = fields.size("layer_group_size", 6)
    if kinds is not None:
        return kinds
    if count % group:
        wanted = f"a divisor of the {count} layers, or layer_types beside it"
        raise fields.error("layer_group_size", group, wanted)
    return [(each + 1) % group == 0 for each in range(count)]


def _dense(fields: Fields, count: int) -> list[bool]:
    first = fields.number("first_k_dense_replace", 2)
    kinds = read_listed_if_there(fields, "mlp_layer_types", _MLPS, count)
    return [each < first for each in range(count)] if kinds is None else kinds


_NAMES = TensorNames(
    replaced=(
        ("linear_attn.o_proj", "attention.dense"),
        ("self_attn.o_proj", "attention.dense"),
        ("linear_attn.", "attention."),
        ("self_attn.", "attention."),
        ("mlp.shared_expert.", "mlp.shared_experts."),
        ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
    ),
    embedding="model.word_embeddings",
    predicts_more=True,
)

LING_FAMILIES = {"bailing_hybrid": Family(read=_read_bailing_hybrid, names=_NAMES)}
