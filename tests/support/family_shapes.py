"""Random small models of every family in ``transformers``, three shapes each.

Between them the shapes have odd numbers of heads, tied and untied embeddings, and windows and
original rope lengths below and above the longest prompt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from transformers.modeling_outputs import CausalLMOutput

from tests.support.byte_tokenizer import files

VOCABULARY = 320
SPREAD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    tied: bool
    window: int
    original: int
    """Positions of the model's first training, of which rope has ``factor`` times as many."""
    factor: float

    @property
    def rope(self) -> dict[str, Any]:
        return {
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": self.factor,
            "original_max_position_embeddings": self.original,
        }

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": self.heads * self.head_dim,
            "intermediate_size": 56,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": int(self.original * self.factor),
            "tie_word_embeddings": self.tied,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }


SHAPES = {
    "below": Shape(
        heads=3, kv_heads=1, head_dim=16, layers=4, tied=True, window=40, original=128, factor=8.0
    ),
    "above": Shape(
        heads=5, kv_heads=5, head_dim=8, layers=3, tied=False, window=900, original=2048, factor=2.5
    ),
    "uneven": Shape(
        heads=9, kv_heads=3, head_dim=12, layers=5, tied=False, window=17, original=64, factor=32.0
    ),
}

Own = Callable[[Shape], dict[str, Any]]


def _experts(shape: Shape) -> dict[str, Any]:
    return {"num_experts_per_tok": 2 + shape.layers % 2, "norm_topk_prob": shape.tied}


def _longrope(shape: Shape) -> dict[str, Any]:
    share = {16: 0.75, 8: 1.0, 12: 0.5}[shape.head_dim]
    pairs = int(shape.head_dim * share) // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "short_factor": [1 + 0.1 * each for each in range(pairs)],
        "long_factor": [1.5 + each for each in range(pairs)],
        "partial_rotary_factor": share,
    }
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": shape.original,
        "sliding_window": None if shape.tied else shape.window,
    }


def _two_ropes(shape: Shape) -> dict[str, Any]:
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        "full_attention": shape.rope,
    }
    return {"rope_parameters": kinds, "sliding_window": shape.window}


def _gemma4(shape: Shape) -> dict[str, Any]:
    """Layers of both kinds from the first two on, heads of another size in those without a window;
    a part of these turned that is not a whole number of pairs."""
    kinds = ["sliding_attention", "full_attention"] * shape.layers
    kinds = [*kinds[: shape.layers - 1], "full_attention"]
    return {
        "layer_types": kinds,
        "head_dim": 14,
        "global_head_dim": 26,
        "sliding_window": shape.window,
        "hidden_size_per_layer_input": 0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 9000.0,
                "partial_rotary_factor": 0.25 if shape.tied else 0.6,
            },
        },
    }


def _rope_by_kind(shape: Shape, share: float = 1.0) -> dict[str, Any]:
    """Layers that see all are stretched, those with a window are not."""
    return {
        "full_attention": {**shape.rope, "partial_rotary_factor": share},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    }


def _every_second(shape: Shape, first: str, second: str) -> list[str]:
    return [(first, second)[each % 2] for each in range(shape.layers)]


def _laguna(shape: Shape) -> dict[str, Any]:
    """Gates of heads and of numbers, layers of more heads than others."""
    heads = [shape.heads + (each % 2) * shape.kv_heads for each in range(shape.layers)]
    return {
        "rope_parameters": _rope_by_kind(shape, 1.0 if shape.heads == 5 else 0.5),
        "head_dim": 12,
        "num_attention_heads_per_layer": None if shape.heads == 5 else heads,
        "attention_bias": shape.tied,
        "gating": {16: True, 8: "per-head", 12: "per-element"}[shape.head_dim],
        "sliding_window": shape.window,
        "layer_types": _every_second(shape, "full_attention", "sliding_attention"),
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
        "moe_routed_scaling_factor": 1.7,
        "moe_router_logit_softcapping": 1.3 if shape.tied else 0.0,
        "mlp_layer_types": None
        if shape.tied
        else ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
    }


def _step3p5(shape: Shape) -> dict[str, Any]:
    """Layers with a window have more heads; inner values are held in some layers, within as much as
    half of them reach."""
    held = [0.0, 0.4, None] if shape.tied else [0.05, None, 0.0]
    return {
        "pad_token_id": 0,
        "rope_parameters": _rope_by_kind(shape, 1.0 if shape.heads == 5 else 0.5),
        "head_dim": 12,
        "num_sliding_attention_heads": None if shape.heads == 5 else shape.heads + shape.kv_heads,
        "query_pre_attn_scalar": 20 if shape.tied else None,
        "sliding_window": shape.window,
        "layer_types": _every_second(shape, "full_attention", "sliding_attention"),
        "n_routed_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "share_expert_dim": 20,
        "moe_router_scaling_factor": 1.7,
        "swiglu_limits": None
        if shape.heads == 5
        else [held[each % 3] for each in range(shape.layers)],
        "swiglu_limits_shared": [held[(each + 1) % 3] for each in range(shape.layers)],
        "mlp_layer_types": ["dense", *["sparse"] * (shape.layers - 1)],
    }


def _part(shape: Shape, share: float) -> dict[str, Any]:
    return {"rope_parameters": {**shape.rope, "partial_rotary_factor": share}}


def _latent(shape: Shape) -> dict[str, Any]:
    """Latents of keys narrower and wider than a head, of queries or none, pairs that are neighbours
    or not, scores scaled with the context or not."""
    stretched = {"mscale": 1.0, "mscale_all_dim": 0.7 if shape.tied else 1.0}
    return {
        **_experts(shape),
        "rope_parameters": {**shape.rope, **({} if shape.heads == 9 else stretched)},
        "num_key_value_heads": shape.heads,
        "kv_lora_rank": 2 * shape.head_dim + 2,
        "q_lora_rank": None if shape.heads == 5 else 20,
        "qk_nope_head_dim": shape.head_dim,
        "qk_rope_head_dim": 6 if shape.tied else 8,
        "v_head_dim": shape.head_dim + 3,
        "n_routed_experts": 8,
        "n_shared_experts": 1 + shape.tied,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.7,
        "attention_bias": shape.tied,
    }


def _mistral4(shape: Shape) -> dict[str, Any]:
    latent = _latent(shape)
    plain, rotary = latent["qk_nope_head_dim"], latent["qk_rope_head_dim"]
    part = {} if shape.tied else {"partial_rotary_factor": rotary / (plain + rotary)}
    growing = {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
    return {
        **latent,
        "rope_parameters": {**latent["rope_parameters"], **growing, **part},
        "n_group": 4 if shape.tied else 1,
        "topk_group": 2 if shape.tied else 1,
        "first_k_dense_replace": int(shape.tied),
        "rope_interleave": shape.heads != 9,
    }


def _sparse(shape: Shape) -> dict[str, Any]:
    """Choices below and above the longest prompt, of so many heads that hardly any score is 0: of
    equal ones ``transformers`` takes any."""
    return {
        **_latent(shape),
        "q_lora_rank": 20,
        "index_topk": {4: 40, 3: 250, 5: 601}[shape.layers],
        "index_head_dim": 10 + 2 * shape.tied,
        "index_n_heads": 16,
    }


def _compressed(shape: Shape) -> dict[str, Any]:
    """Every kind of layer, windows and entries below and above the longest prompt, choices of few
    entries and of more than there are, one stream and several."""
    kinds = ["compressed_sparse_attention", "sliding_attention", "heavily_compressed_attention"]
    rates = {3: (4, 128), 4: (3, 20), 5: (8, 64)}[shape.layers]
    return {
        **_experts(shape),
        "norm_topk_prob": True,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "partial_rotary_factor": 0.5 if shape.tied else 0.25,
        "q_lora_rank": 20,
        "o_groups": 3 if shape.heads != 5 else 5,
        "o_lora_rank": 6,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "scoring_func": "sqrtsoftplus" if shape.tied else "sigmoid",
        "swiglu_limit": 0.7,
        "routed_scaling_factor": 1.7,
        "sliding_window": shape.window,
        "layer_types": (kinds * 2)[: shape.layers],
        "compress_rates": dict(zip(kinds[::2], rates, strict=True)),
        "mlp_layer_types": ["moe", "hash_moe", *["moe"] * (shape.layers - 2)],
        "index_topk": {4: 40, 3: 31, 5: 601}[shape.layers],
        "index_head_dim": 10 + 2 * shape.tied,
        "index_n_heads": 16,
        "hc_mult": 1 if shape.heads == 5 else 4,
        "hc_sinkhorn_iters": 3 + shape.layers,
        "rope_theta": 5000.0,
        "rope_parameters": shape.rope,
        "max_position_embeddings": int(shape.original * shape.factor),
    }


def _windowed(shape: Shape) -> dict[str, Any]:
    return {
        "rope_parameters": shape.rope,
        "use_sliding_window": not shape.tied,
        "sliding_window": shape.window,
        "max_window_layers": 1,
    }


FAMILIES: Mapping[str, tuple[str, Own]] = {
    "llama": (
        "Llama",
        lambda shape: {
            "rope_parameters": {
                **shape.rope,
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            "attention_bias": shape.tied,
            "mlp_bias": not shape.tied,
        },
    ),
    "mistral": (
        "Mistral",
        lambda shape: (
            {"rope_parameters": shape.rope, "sliding_window": shape.window} | {"head_dim": 14}
        ),
    ),
    "qwen2": ("Qwen2", _windowed),
    "qwen3": ("Qwen3", lambda shape: {**_windowed(shape), "head_dim": 10}),
    "qwen3_moe": (
        "Qwen3Moe",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": shape.rope,
            "head_dim": 12,
            "num_experts": 7,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [1],
        },
    ),
    "smollm3": (
        "SmolLM3",
        lambda shape: {
            "rope_parameters": shape.rope,
            "no_rope_layer_interval": 3,
            "use_sliding_window": not shape.tied,
            "sliding_window": shape.window,
            "attention_bias": shape.tied,
            "mlp_bias": shape.tied,
        },
    ),
    "granite": (
        "Granite",
        lambda shape: {
            "rope_parameters": shape.rope,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 2.0,
            "attention_bias": shape.tied,
            "mlp_bias": not shape.tied,
        },
    ),
    "olmo2": (
        "Olmo2",
        lambda shape: {"rope_parameters": shape.rope, "attention_bias": shape.tied},
    ),
    "olmo3": ("Olmo3", _two_ropes),
    "phi3": ("Phi3", _longrope),
    "ministral3": (
        "Ministral3",
        lambda shape: {
            "rope_parameters": {
                **shape.rope,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
            "head_dim": 10,
            "sliding_window": None if shape.tied else shape.window,
        },
    ),
    "gemma3_text": (
        "Gemma3",
        lambda shape: {
            **_two_ropes(shape),
            "head_dim": 20,
            "query_pre_attn_scalar": 12,
            "attention_bias": shape.tied,
        },
    ),
    "gemma4_text": ("Gemma4", _gemma4),
    "gemma4_text with layers' inputs": (
        "Gemma4",
        lambda shape: {
            **_gemma4(shape),
            "hidden_size_per_layer_input": 6 + shape.layers,
            "vocab_size_per_layer_input": VOCABULARY + 3,
            "num_kv_shared_layers": shape.layers - 2,
            "use_double_wide_mlp": not shape.tied,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4_text with values that are keys": (
        "Gemma4",
        lambda shape: {
            **_gemma4(shape),
            "attention_k_eq_v": True,
            "num_global_key_value_heads": shape.heads if shape.kv_heads == 1 else 1,
            "num_kv_shared_layers": 1 if shape.tied else 0,
            "attention_bias": shape.tied,
            "use_bidirectional_attention": "vision",
        },
    ),
    "gemma4_text with experts": (
        "Gemma4",
        lambda shape: {
            **_gemma4(shape),
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 2 + shape.layers % 2,
            "moe_intermediate_size": 24,
            "attention_k_eq_v": not shape.tied,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4_unified_text": (
        "Gemma4Unified",
        lambda shape: {
            **{
                name: value
                for name, value in _gemma4(shape).items()
                if name != "hidden_size_per_layer_input"
            },
            "attention_k_eq_v": not shape.tied,
            "num_kv_shared_layers": 1 if shape.tied else 0,
        },
    ),
    "mixtral": (
        "Mixtral",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": 18,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None if shape.tied else shape.window,
        },
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": shape.rope,
            "num_experts": 7,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 36,
            "decoder_sparse_step": 1 + shape.tied,
            "mlp_only_layers": [2],
            "use_sliding_window": not shape.tied,
            "sliding_window": shape.window,
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        lambda shape: {
            **_experts(shape),
            **_part(shape, 0.5),
            "head_dim": 12,
            "n_routed_experts": 8,
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "n_shared_experts": 1 + shape.tied,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7,
            "first_k_dense_replace": 1 + shape.tied,
            "attention_bias": shape.tied,
            "use_qk_norm": not shape.tied,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        lambda shape: {
            **_latent(shape),
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "first_k_dense_replace": 1 + shape.tied,
            "rope_interleave": shape.heads != 9,
        },
    ),
    "axk1": (
        "AXK1",
        lambda shape: {
            **_latent(shape),
            "q_lora_rank": 20,
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "first_k_dense_replace": 1 + shape.tied,
            "rope_interleave": shape.heads != 9,
        },
    ),
    "deepseek_v32": (
        "DeepseekV32",
        lambda shape: {
            **_sparse(shape),
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "first_k_dense_replace": 1 + shape.tied,
        },
    ),
    "deepseek_v4": ("DeepseekV4", _compressed),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        lambda shape: {
            **_sparse(shape),
            "index_topk": 33 + shape.window // 3,
            "index_topk_freq": 2,
            "index_skip_topk_offset": 1 + shape.layers % 2,
            "index_topk_pattern": "FSSFS" if shape.layers == 5 else None,
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
            "rope_parameters": {"rope_type": "default", "rope_theta": 7000.0},
        },
    ),
    "hy_v4": (
        "HYV4",
        lambda shape: {
            **_sparse(shape),
            "indexer_types": None
            if shape.tied
            else ["full", "shared", "full", "shared", "full"][: shape.layers],
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
            "hc_mult": 1 if shape.heads == 5 else 3,
            "hc_magnitude": 1.6,
            "swiglu_limit": 0.7,
            "norm_topk_prob": shape.heads != 5,
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        lambda shape: {
            **_latent(shape),
            "rms_norm_eps": 1e-5,
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
            "rope_parameters": {"rope_type": "default", "rope_theta": 7000.0},
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        lambda shape: {
            **_latent(shape),
            "norm_topk_prob": False,
            "topk_method": "group_limited_greedy" if shape.tied else "greedy",
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
        },
    ),
    "mistral4": ("Mistral4", _mistral4),
    "minimax_m2": (
        "MiniMaxM2",
        lambda shape: {
            **_part(shape, 0.5),
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
        },
    ),
    "minimax_m3_vl_text": (
        "MiniMaxM3VL",
        lambda shape: {
            **_part(shape, 0.5),
            "rotary_dim": 8,
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 24,
            "mlp_layer_types": ["dense", *["sparse"] * (shape.layers - 1)],
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * (shape.layers - 1)],
            "index_n_heads": shape.kv_heads,
            "index_head_dim": 10 + 2 * shape.tied,
            "index_block_size": 16 * (1 + shape.tied),
            "index_topk_blocks": 2 + shape.layers,
            "index_local_blocks": 1 + shape.layers % 2,
        },
    ),
    "mimo_v2_flash": (
        "MiMoV2Flash",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": {
                "full_attention": {**shape.rope, "partial_rotary_factor": 0.334},
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 700.0,
                    "partial_rotary_factor": 0.334,
                },
            },
            "num_attention_heads": 2 * shape.heads,
            "head_dim": 24,
            "v_head_dim": 24 if shape.heads == 9 else 10,
            "sliding_window": shape.window,
            "layer_types": ["sliding_attention", "full_attention"] * 2
            + ["sliding_attention"] * (shape.layers - 4)
            if shape.layers > 3
            else None,
            "n_routed_experts": 8,
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7 if shape.tied else None,
            "attention_value_scale": None if shape.heads == 5 else 0.6,
            "attention_bias": shape.tied,
        },
    ),
    "seed_oss": (
        "SeedOss",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": 14,
            "attention_bias": not shape.tied,
            "attention_out_bias": shape.tied,
            "mlp_bias": shape.tied,
        },
    ),
    "glm4": (
        "Glm4",
        lambda shape: {
            **_part(shape, 1.0 if shape.heads == 5 else 0.5),
            "head_dim": 12,
            "attention_bias": shape.tied,
        },
    ),
    "exaone4": (
        "Exaone4",
        lambda shape: {
            "rope_parameters": shape.rope,
            "sliding_window": None if shape.heads == 5 else shape.window,
            "sliding_window_pattern": 2,
            "layer_types": ["full_attention"] * 3 if shape.heads == 5 else None,
        },
    ),
    "arcee": (
        "Arcee",
        lambda shape: {
            "rope_parameters": shape.rope,
            "attention_bias": shape.tied,
            "mlp_bias": not shape.tied,
        },
    ),
    "exaone_moe": (
        "ExaoneMoe",
        lambda shape: {
            "rope_parameters": shape.rope,
            "sliding_window": shape.window,
            "sliding_window_pattern": 2 + shape.tied,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1 + shape.tied,
            "moe_intermediate_size": 24,
            "n_group": 2 if shape.tied else 1,
            "first_k_dense_replace": 1 + shape.tied,
            "norm_topk_prob": shape.heads != 5,
        },
    ),
    "dots1": (
        "Dots1",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": shape.rope,
            "sliding_window": shape.window,
            "max_window_layers": 1 + shape.tied,
            "n_routed_experts": 8,
            "n_shared_experts": 1 + shape.tied,
            "n_group": 4 if shape.tied else 2,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7,
            "first_k_dense_replace": int(shape.tied),
            "attention_bias": shape.tied,
        },
    ),
    "ernie4_5": (
        "Ernie4_5",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": 14,
            "use_bias": not shape.tied,
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        lambda shape: {
            "rope_parameters": shape.rope,
            "moe_num_experts": 7,
            "moe_k": 3,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 0 if shape.heads == 5 else 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1 + shape.tied,
            "moe_layer_end_index": -1 if shape.tied else shape.layers - 1,
        },
    ),
    "afmoe": (
        "Afmoe",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": 14,
            "attention_bias": shape.tied,
            "sliding_window": shape.window,
            "global_attn_every_n_layers": 2 + shape.tied,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1 + shape.tied,
            "moe_intermediate_size": 24,
            "route_scale": 1.7,
            "num_dense_layers": 1 + shape.tied,
            "mup_enabled": not shape.tied,
        },
    ),
    "laguna": ("Laguna", _laguna),
    "mellum": (
        "Mellum",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": _rope_by_kind(shape),
            "head_dim": 14,
            "attention_bias": shape.tied,
            "sliding_window": shape.window,
            "layer_types": _every_second(shape, "sliding_attention", "full_attention"),
            "num_experts": 7,
            "moe_intermediate_size": 24,
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
        },
    ),
    "step3p5": ("Step3p7", _step3p5),
    "solar_open": (
        "SolarOpen",
        lambda shape: {
            **_experts(shape),
            "rope_parameters": shape.rope,
            "head_dim": 14,
            "attention_bias": shape.tied,
            "n_routed_experts": 8,
            "n_group": 4 if shape.tied else 1,
            "topk_group": 2 if shape.tied else 1,
            "n_shared_experts": 1 + shape.tied,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7,
        },
    ),
    "iquestcoder": (
        "IQuestCoder",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": None if shape.heads == 5 else 14,
            "attention_bias": shape.tied,
            "mlp_bias": not shape.tied,
        },
    ),
    "hy_v3": (
        "HYV3",
        lambda shape: {
            "rope_parameters": shape.rope,
            "head_dim": 14,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1 + shape.tied,
            "moe_intermediate_size": 24,
            "attention_bias": shape.tied,
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * (shape.layers - 2)],
        },
    ),
    "gpt_oss": (
        "GptOss",
        lambda shape: {
            "rope_parameters": {**shape.rope, "truncate": shape.tied},
            "head_dim": 14,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": shape.window,
            "attention_bias": not shape.tied,
        },
    ),
}
"""Of each ``model_type``, what its classes are called and what else it is given."""


def make(family: str, shape: Shape, *, seed: int) -> transformers.PreTrainedModel:
    """A random model in float32, of which nothing is as it was first set."""
    config = _config(family, shape)
    config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    if "gemma4" in family:
        config._attn_implementation = "sdpa"  # the other's softmax is in float32
        config.output_hidden_states = True  # else shared layers need layers' inputs there
    if family == "step3p5":
        return disturbed(_Step3p5(config).eval(), seed)
    name = FAMILIES[family][0].replace("IQuestCoder", "Llama")
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    return disturbed(model, seed)


def _config(family: str, shape: Shape) -> Any:
    name, own = FAMILIES[family]
    suffix = "TextConfig" if name.startswith(("Gemma", "MiniMaxM3", "Step3p7")) else "Config"
    return getattr(transformers, f"{name}{suffix}")(**{**shape.fields, **own(shape)})


WRAPPERS = {
    "gemma4": ("gemma4_text with layers' inputs", "Gemma4"),
    "gemma4_unified": ("gemma4_unified_text", "Gemma4Unified"),
    "mistral3 around mistral": ("mistral", "Mistral3"),
    "mistral3 around ministral3": ("ministral3", "Mistral3"),
    "mistral3 around mistral4": ("mistral4", "Mistral3"),
    "gemma3": ("gemma3_text", "Gemma3"),
    "minimax_m3_vl": ("minimax_m3_vl_text", "MiniMaxM3VL"),
    "step3p7": ("step3p5", "Step3p7"),
}
"""The text part of each, and what its classes are called."""


_SMALL_PART = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
_GEMMA4_BESIDE: dict[str, dict[str, Any]] = {
    "Gemma4": {
        "vision_config": {**_SMALL_PART, "intermediate_size": 8, "num_key_value_heads": 1},
        "audio_config": {**_SMALL_PART, "output_proj_dims": 8},
    },
    "Gemma4Unified": {
        "vision_config": {"mm_embed_dim": 8, "mm_posemb_size": 4, "patch_size": 4},
        "audio_config": {"audio_embed_dim": 8},
    },
}


def make_wrapper(wrapper: str, shape: Shape, *, seed: int) -> transformers.PreTrainedModel:
    """Likewise, of a text part and a small one for images."""
    text, name = WRAPPERS[wrapper]
    if name.startswith("Gemma4"):
        config = getattr(transformers, f"{name}Config")(
            text_config={**_config(text, shape).to_dict(), "pad_token_id": 0},
            tie_word_embeddings=shape.tied,
            **_GEMMA4_BESIDE[name],
        )
        for part in (config, config.vision_config, config.audio_config):
            part._attn_implementation = "eager"
        config.text_config._attn_implementation = "sdpa"
        config.text_config.output_hidden_states = True
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        return disturbed(model, seed)
    if name == "MiniMaxM3VL":
        return _minimax_m3(text, shape, seed)
    if name == "Step3p7":
        return _step3p7(text, shape, seed)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "image_size": 16}
    kind = "pixtral" if name == "Mistral3" else "siglip_vision_model"
    vision = {"model_type": kind, **sizes, "num_attention_heads": 1, "patch_size": 4}
    if kind == "pixtral":
        vision["head_dim"] = 8
    config = getattr(transformers, f"{name}Config")(
        text_config=_config(text, shape).to_dict(),
        vision_config=vision,
        tie_word_embeddings=shape.tied,
    )
    config.text_config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    return disturbed(model, seed)


def _minimax_m3(text: str, shape: Shape, seed: int) -> transformers.PreTrainedModel:
    vision = {**_SMALL_PART, "hidden_size": 16, "intermediate_size": 8, "patch_size": 4}
    config = transformers.MiniMaxM3VLConfig(
        text_config=_config(text, shape).to_dict(),
        vision_config={**vision, "image_size": 16},
        projector_hidden_size=8,
        tie_word_embeddings=shape.tied,
    )
    config.text_config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    model = transformers.MiniMaxM3SparseForConditionalGeneration(config).eval()
    return disturbed(model, seed)


def _step3p7(text: str, shape: Shape, seed: int) -> transformers.PreTrainedModel:
    vision = {**_SMALL_PART, "hidden_size": 16, "image_size": 28, "patch_size": 14}
    config = transformers.Step3p7Config(
        text_config=_config(text, shape).to_dict(),
        vision_config=vision,
        tie_word_embeddings=shape.tied,
    )
    config.text_config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    return disturbed(transformers.Step3p7ForConditionalGeneration(config).eval(), seed)


class _Step3p5(transformers.Step3p7PreTrainedModel):  # type: ignore[misc]
    """The text part alone, which ``transformers`` has no head for."""

    config_class = transformers.Step3p7TextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = transformers.Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids: torch.Tensor) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(ids).last_hidden_state))


def disturbed(model: transformers.PreTrainedModel, seed: int) -> transformers.PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            fixed = "inv_freq", "embed_scale", "position_ids"
            if any(name in tensor_name for name in fixed):
                continue
            if tensor_name.endswith("tid2eid"):  # of a token id its experts, no two alike
                experts = model.config.n_routed_experts
                drawn = torch.rand(len(tensor), experts, generator=generator)
                tensor.copy_(drawn.argsort(1)[:, : tensor.shape[1]])
                continue
            noise = SPREAD * torch.randn(tensor.shape, generator=generator)
            tensor.copy_(tensor + noise if "norm" in tensor_name else noise)
    return model


def save(model: transformers.PreTrainedModel, folder: Path) -> Path:
    """The model as a Hugging Face folder with the byte tokenizer."""
    model.save_pretrained(folder)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
