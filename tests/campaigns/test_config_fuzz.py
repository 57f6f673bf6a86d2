"""Folders whose ``config.json`` is spoiled: read, or refused in one line that names file and field.

Every family's own fields, one to three of them replaced by what people and programs write wrongly,
left out, or nested. Nothing is built: a description either exists or is refused, soon and in little
memory. ``KEEPWARM_CONFIG_CASES`` says how many, ``KEEPWARM_CONFIG_SEED`` which.
"""

import copy
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError, ModelConfig
from runtime.model.hf_config import FAMILIES, read_model_config
from tests.support.config_folders import BASE

MOST_LETTERS = max(600, 200 + len(", ".join(FAMILIES)))
"""Of a refusal; the longest one names all families."""
CASES = int(os.environ.get("KEEPWARM_CONFIG_CASES", "10000"))
SEED = int(os.environ.get("KEEPWARM_CONFIG_SEED", "0"))

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*[.]gate$"], "sparsity_config": {}, "kv_cache_scheme": None,
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
        "num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32,
        "actorder": None}}},
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
        "checkpoint_format": "gptq", "dynamic": {"-:lm_head": {}}}  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
       "activation_scheme": "dynamic", "modules_to_not_convert": ["gate", "lm_head"]}  # fmt: skip
KINDS = ["sliding_attention", "full_attention"] * 3
LATENT = {"num_key_value_heads": 8, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 8,
          "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 16, "n_shared_experts": 1,
          "num_experts_per_tok": 4, "moe_intermediate_size": 16,
          "first_k_dense_replace": 1}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0,
                               "high_freq_factor": 4.0}, "mlp_bias": True,
              "quantization_config": COMPRESSED},
    "mistral": {"sliding_window": 64, "layer_types": KINDS},
    "ministral3": {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                                       "mscale_all_dim": 1.0, "rope_theta": 1e6}},
    "qwen2": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3},
    "qwen3": {"head_dim": 16, "attention_bias": True, "rope_scaling": YARN},
    "smollm3": {"no_rope_layers": [1, 1, 0] * 2, "no_rope_layer_interval": 3},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.2, "logits_scaling": 8.0,
                "attention_multiplier": 0.1},
    "olmo2": {"rope_theta": 5e5, "quantization_config": GPTQ},
    "olmo3": {"layer_types": KINDS, "sliding_window": 64, "rope_scaling": YARN},
    "phi3": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1024,
             "partial_rotary_factor": 1.0},
    "gemma3_text": {"layer_types": KINDS, "query_pre_attn_scalar": 16, "sliding_window": 64,
                    "rope_parameters": {"full_attention": YARN,
                                        "sliding_attention": {"rope_type": "default"}},
                    "attn_logit_softcapping": None},
    "gemma4_text": {"layer_types": KINDS, "head_dim": 8, "global_head_dim": 16,
                    "sliding_window": 64, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
                    "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100,
                    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
                    "moe_intermediate_size": 16, "final_logit_softcapping": 30.0,
                    "use_bidirectional_attention": "vision",
                    "rope_parameters": {"full_attention": {
                        "rope_type": "proportional", "partial_rotary_factor": 0.25},
                        "sliding_attention": {"rope_type": "default"}}},
    "gemma4_unified_text": {"layer_types": KINDS, "head_dim": 8, "attention_k_eq_v": False,
                            "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 2},
                                                 "5": {"head_dim": 16}}},
    "qwen2_moe": {"quantization_config": FP8, "num_experts": 8, "mlp_only_layers": [1],
                  "decoder_sparse_step": 2},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": {"num_local_experts": 16, "rotary_dim": 4, "head_dim": 8,
                   "scoring_func": "sigmoid"},
    "glm4_moe": {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
                 "first_k_dense_replace": 1, "partial_rotary_factor": 0.5},
    "deepseek_v3": {**LATENT, "n_group": 4, "topk_group": 2, "rope_scaling": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "quantization_config": FP8},
    "deepseek_v32": {**LATENT, "n_group": 4, "topk_group": 2, "index_topk": 64,
                     "index_head_dim": 16, "index_n_heads": 4, "rope_scaling": YARN},
    "deepseek_v4": {"num_key_value_heads": 1, "head_dim": 16, "qk_rope_head_dim": 4,
                    "q_lora_rank": 24, "o_groups": 4, "o_lora_rank": 8, "sliding_window": 64,
                    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0], "compress_rope_theta": 1e5,
                    "compress_rates": {"compressed_sparse_attention": 4}, "num_hash_layers": 2,
                    "mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 4, "rope_scaling": YARN,
                    "index_topk": 64, "index_head_dim": 16, "index_n_heads": 4, "hc_mult": 4,
                    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "n_routed_experts": 16,
                    "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 16,
                    "scoring_func": "sqrtsoftplus", "swiglu_limit": 10.0, "norm_topk_prob": True,
                    "expert_dtype": "fp4", "quantization_config": FP8},
    "glm_moe_dsa": {**LATENT, "n_group": 1, "topk_group": 1, "index_topk": 64,
                    "index_head_dim": 16, "index_n_heads": 4, "index_topk_freq": 2,
                    "index_skip_topk_offset": 3, "indexer_rope_interleave": True,
                    "indexer_types": ["full", "shared"] * 3,
                    "index_topk_pattern": "FSFSFS"},
    "hy_v4": {**{name: value for name, value in LATENT.items() if "first_k" not in name},
              "index_topk": 64, "index_head_dim": 16, "index_n_heads": 4, "hc_mult": 4,
              "hc_magnitude": 2.0, "hc_eps": 1e-6, "swiglu_limit": 10.0, "n_group": 1,
              "topk_group": 1, "layer_types": ["indexed_attention"] * 6,
              "indexer_types": ["full", "shared"] * 3, "learnable_sink_init": 0.0,
              "mlp_layer_types": ["dense", *["sparse"] * 5]},
    "axk1": {**LATENT, "n_group": 4, "topk_group": 2, "moe_layer_freq": 1, "rope_scaling": YARN,
             "mlp_layer_types": ["dense", *["sparse"] * 5]},
    "kimi_k2": {**LATENT, "n_group": 1, "topk_group": 1},
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": ["dense", *["sparse"] * 5]},
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy",
                    "n_group": 4, "topk_group": 2},
    "mistral4": {**LATENT, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                 "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                                     "mscale_all_dim": 1.0, "partial_rotary_factor": 1 / 3}},
    **{name: {"num_local_experts": 16, "num_experts_per_tok": 4, "rotary_dim": 4, "head_dim": 8,
              "dense_intermediate_size": 48, "shared_intermediate_size": 32, "n_shared_experts": 1,
              "moe_layer_freq": [0, *[1] * 5], "hidden_act": "swigluoai", "swiglu_limit": 7.0,
              "swiglu_alpha": 1.702, "qk_norm_type": "per_head", "use_gemma_norm": True, **choice}
       for name, choice in (
           ("minimax_m3_vl_text", {"layer_types": ["full_attention", *["minimax_m3_sparse"] * 5],
                                   "mlp_layer_types": ["dense", *["sparse"] * 5],
                                   "index_n_heads": 4, "index_head_dim": 8, "index_block_size": 32,
                                   "index_topk_blocks": 2, "index_local_blocks": 1}),
           ("minimax_m3_text", {"partial_rotary_factor": 0.5}),
           ("minimax_m3", {"sparse_attention_config": {
               "use_sparse_attention": True, "sparse_index_dim": 8, "sparse_num_index_heads": 4,
               "sparse_topk_blocks": 2, "sparse_block_size": 32, "sparse_score_type": "max",
               "sparse_init_block": 0, "sparse_local_block": 1,
               "sparse_attention_freq": [0, *[1] * 5],
               "sparse_disable_index_value": [0, *[1] * 5]}}))},
    "mimo_v2_flash": {"hybrid_layer_pattern": [0, *[1] * 4, 0], "moe_layer_freq": [0, *[1] * 5],
                      "head_dim": 24, "v_head_dim": 16, "swa_head_dim": 24, "swa_v_head_dim": 16,
                      "swa_num_attention_heads": 8, "swa_num_key_value_heads": 8,
                      "sliding_window_size": 64, "sliding_window": 64, "attention_chunk_size": 64,
                      "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
                      "attention_value_scale": 0.707, "partial_rotary_factor": 0.334,
                      "rope_theta": 5e6, "swa_rope_theta": 1e4, "layernorm_epsilon": 1e-5,
                      "n_routed_experts": 16, "n_shared_experts": None, "num_experts_per_tok": 4,
                      "n_group": 1, "topk_group": 1, "routed_scaling_factor": None,
                      "scoring_func": "sigmoid", "topk_method": "noaux_tc",
                      "moe_intermediate_size": 16, "norm_topk_prob": True,
                      "attention_projection_layout": "split",
                      "quantization_config": {**{name: value for name, value in FP8.items()
                                                 if name != "modules_to_not_convert"},
                                              "ignored_layers": ["lm_head"]}},
    "laguna": {"head_dim": 16, "num_attention_heads_per_layer": [8, 12] * 3, "gating": "per-head",
               "gating_types": ["per_head"] * 6, "qkv_bias": False, "num_experts": 16,
               "num_experts_per_tok": 4, "moe_intermediate_size": 16, "norm_topk_prob": True,
               "shared_expert_intermediate_size": 16, "moe_routed_scaling_factor": 2.5,
               "moe_apply_router_weight_on_input": False, "moe_router_logit_softcapping": 30.0,
               "moe_router_score_func": "sigmoid", "decoder_sparse_step": 1,
               "mlp_only_layers": [0], "mlp_layer_types": ["dense", *["sparse"] * 5],
               "layer_types": KINDS, "sliding_window": 64, "swa_attention_sink_enabled": False,
               "rope_parameters": {"full_attention": {**YARN, "rope_theta": 5e5,
                                                      "partial_rotary_factor": 0.5},
                                   "sliding_attention": {"rope_theta": 1e4}}},
    "mellum": {"head_dim": 16, "num_experts": 16, "num_experts_per_tok": 4,
               "moe_intermediate_size": 16, "norm_topk_prob": True, "use_sliding_window": True,
               "layer_types": KINDS, "sliding_window": 64, "mlp_layer_types": ["sparse"] * 6,
               "rope_parameters": {"full_attention": {**YARN, "rope_theta": 5e5},
                                   "sliding_attention": {"rope_theta": 5e5}}},
    "step3p5": {"num_attention_groups": 4, "head_dim": 16, "layer_types": [*KINDS, KINDS[0]],
                "num_nextn_predict_layers": 1, "sliding_window": 64,
                "attention_other_setting": {
                    "attention_type": "sliding_attention", "num_attention_heads": 12,
                    "num_attention_groups": 4, "head_dim": 16, "true_head_dim": 16},
                "use_head_wise_attn_gate": True, "zero_centered": True, "sink": False,
                "rope_theta": [1e4, 5e6] * 3, "partial_rotary_factors": [1.0, 0.5] * 3,
                "rope_scaling": {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0,
                                 "high_freq_factor": 32.0},
                "yarn_only_types": ["full_attention"], "moe_layers_enum": "3,4,5",
                "moe_num_experts": 16, "moe_top_k": 4, "moe_intermediate_size": 16,
                "share_expert_dim": 16, "moe_router_scaling_factor": 3.0,
                "moe_router_activation": "sigmoid", "use_moe_router_bias": True,
                "norm_expert_weight": True, "swiglu_limits": [0.0, None, 7.0] * 2,
                "swiglu_limits_shared": [0.0, None, 16] * 2, "use_rope_layers": [],
                "query_pre_attn_scalar": 16},
    "solar_open": {"head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 4,
                   "n_shared_experts": 1, "moe_intermediate_size": 16, "n_group": 4,
                   "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
                   "first_k_dense_replace": 0, "partial_rotary_factor": 1.0,
                   "rope_scaling": YARN},
    "iquestcoder": {"head_dim": 16, "attention_bias": False, "mlp_bias": False, "clip_qkv": None,
                    "use_sliding_window": False, "rope_scaling": YARN},
    "seed_oss": {"head_dim": 16, "attention_bias": True, "attention_out_bias": False,
                 "mlp_bias": False, "rope_scaling": YARN},
    "glm4": {"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5},
    "exaone4": {"sliding_window": 64, "sliding_window_pattern": 4, "layer_types": KINDS,
                "rope_scaling": YARN},
    "arcee": {"hidden_act": "relu2", "mlp_bias": False, "rope_scaling": YARN},
    "afmoe": {"head_dim": 16, "num_experts": 16, "num_experts_per_tok": 4, "route_scale": 2.8,
              "num_shared_experts": 1, "moe_intermediate_size": 16, "num_dense_layers": 2,
              "layer_types": KINDS, "sliding_window": 64, "global_attn_every_n_layers": 4,
              "mup_enabled": True, "score_func": "sigmoid", "route_norm": True},
    "exaone_moe": {"sliding_window": 64, "sliding_window_pattern": 4, "layer_types": KINDS,
                   "num_experts": 16, "num_experts_per_tok": 4, "num_shared_experts": 1,
                   "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1,
                   "first_k_dense_replace": 1, "norm_topk_prob": True},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 2,
              "moe_intermediate_size": 16, "n_group": 4, "topk_group": 2, "layer_types": KINDS,
              "first_k_dense_replace": 1, "sliding_window": 64, "max_window_layers": 3,
              "scoring_func": "noaux_tc", "rope_scaling": YARN, "use_sliding_window": True},
    "ernie4_5": {"head_dim": 16, "use_bias": False, "rope_scaling": YARN},
    "ernie4_5_moe": {"moe_num_experts": 16, "moe_k": 4, "moe_intermediate_size": 16,
                     "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                     "moe_layer_end_index": 5, "moe_layer_interval": 1, "moe_norm_min": 1e-12,
                     "use_bias": False},
    "hy_v3": {"head_dim": 16, "num_experts": 16, "num_experts_per_tok": 4,
              "num_shared_experts": 1, "moe_intermediate_size": 16, "router_scaling_factor": 2.8,
              "mlp_layer_types": ["dense", *["sparse"] * 5], "first_k_dense_replace": 1,
              "mlp_bias": False, "qk_norm": True, "route_norm": True},
    "gpt_oss": {"num_local_experts": 8, "swiglu_limit": 7.0, "rope_scaling": YARN,
                "layer_types": KINDS},
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [3, 6], "kda_layers": [1, 2, 4, 5],
                                           "head_dim": 8, "num_heads": 4,
                                           "short_conv_kernel_size": 4},
                    "mla_use_nope": True, "q_lora_rank": None, "kv_lora_rank": 32,
                    "num_key_value_heads": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
                    "v_head_dim": 8, "num_experts": 16, "num_experts_per_token": 4,
                    "num_shared_experts": 1, "moe_intermediate_size": 16, "moe_layer_freq": 1,
                    "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
                    "use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2,
                    "first_k_dense_replace": 1, "routed_scaling_factor": 2.4},
    "bailing_hybrid": {"layer_group_size": 3, "head_dim": 8, "linear_head_dim": 8,
                       "short_conv_kernel_size": 4, "linear_conv_kernel_dim": 4,
                       "kda_safe_gate": True, "kda_lower_bound": -5.0, "no_kda_lora": True,
                       "num_key_value_heads": 8, "kv_lora_rank": 32, "q_lora_rank": 24,
                       "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
                       "num_experts": 16, "num_experts_per_tok": 4, "num_shared_experts": 1,
                       "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
                       "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
                       "norm_topk_prob": True, "score_function": "sigmoid", "rope_theta": 6e6,
                       "gated_attention_proj_granularity_type": "head_wise"},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 3,
                    "linear_num_key_heads": 4, "linear_num_value_heads": 4,
                    "linear_key_head_dim": 8, "linear_value_head_dim": 16,
                    "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True,
                    "linear_use_gate": True, "rope_parameters": {"rope_type": "default",
                                                                 "rope_theta": 5e5}},
    **{name: {"linear_attn_config": {"head_dim": 8, "num_heads": 4, "safe_gate": True,
                                     "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
              "layer_types": ["linear_attention", "full_attention"] * 3, "q_lora_rank": 24,
              "num_key_value_heads": 8, "kv_lora_rank": 32, "qk_nope_head_dim": 8,
              "qk_rope_head_dim": 0, "v_head_dim": 8, "n_routed_experts": 16, "head_dim": 0,
              "num_experts_per_tok": 4, "moe_intermediate_size": 16, "n_shared_experts": 1,
              "mlp_layer_types": ["dense", *["sparse"] * 5], "index_topk": 64, "index_kpool": 4,
              "index_head_dim": 16, "index_n_heads": 4, "indexer_types": ["full"] * 6,
              "index_kpool_always_select_tail": True, "swiglu_limit": 10.0, "hc_mult": 4,
              "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "n_group": 1, "topk_group": 1}
       for name in ("glm5_next", "glm5_next_text")},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 3, "conv_L_cache": 3, "conv_bias": False,
             "block_ff_dim": 96, "block_auto_adjust_ff_dim": True, "block_multiple_of": 16,
             "block_ffn_dim_multiplier": 1.0, "norm_eps": 1e-5},
    "lfm3": {"layer_types": ["conv", "sliding_attention", "full_attention"] * 2, "head_dim": 16,
             "conv_L_cache": 7, "conv_bias": False, "norm_eps": 1e-5, "sliding_window": 64,
             "use_sandwich_norm": True, "use_attention_gate": True, "attention_bias": False,
             "rope_parameters": {
                 "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                    "rope_theta": 1e6},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "lfm2_moe": {"full_attn_idxs": [1, 3, 5], "num_experts": 8, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 16, "num_dense_layers": 2, "use_expert_bias": True,
                 "routed_scaling_factor": 1.0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 3, "mamba_n_heads": 8,
                         "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
                         "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
                         "num_local_experts": 4, "num_experts_per_tok": 2,
                         "shared_intermediate_size": 32, "position_embedding_type": "nope",
                         "time_step_limit": [0.0, 1.0], "residual_multiplier": 0.2},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mlp"], "head_dim": 16,
                   "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
                   "ssm_state_size": 16, "conv_kernel": 4, "use_conv_bias": True,
                   "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
                   "moe_intermediate_size": 16, "mlp_hidden_act": "relu2",
                   "moe_shared_expert_intermediate_size": 16, "time_step_min": 0.001},
    **{name: {"layer_types": ["linear_attention", "full_attention"] * 3, "head_dim": 16,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
              "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
              "partial_rotary_factor": 0.25, **experts}
       for name, experts in (
           ("qwen3_5", {}), ("qwen3_5_text", {"full_attention_interval": 4}),
           ("qwen3_next", {"num_experts": 16, "norm_topk_prob": True, "mlp_only_layers": [1]}),
           ("qwen3_5_moe", {"num_experts": 8, "moe_intermediate_size": 16}),
           ("qwen3_5_moe_text", {"num_experts": 8, "shared_expert_intermediate_size": 16}))},
}  # fmt: skip
STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 7, 10**6, 2**31, 2**63, 10**400, 0.0, -0.5, 0.3, 1.5, 1e-320,
    1e300, 1e308, float("inf"), float("nan"), "", "yarn", "silu", "9" * 10_000, "\n", "\u0000",
    [], [1], [0] * 6, [True] * 6, [1.0] * 100_000, [[]], {}, {"a": {}}, {"rope_type": "yarn"},
    {"rope_type": ["yarn"]}, {"rope_type": "dynamic", "factor": 2}, {"factor": 1e-9},
]  # fmt: skip


def spoil(draw: random.Random, fields: dict[str, Any]) -> None:
    """One field, at whatever depth, is another or none."""
    name = draw.choice(list(fields))
    inner = fields[name]
    if isinstance(inner, dict) and inner and draw.random() < 0.6:
        return spoil(draw, inner)
    if draw.random() < 0.15:
        del fields[name]
    elif isinstance(inner, list) and inner and draw.random() < 0.4:
        inner[draw.randrange(len(inner))] = draw.choice(STRANGE)
    elif isinstance(inner, int | float) and inner < 1 << 62 and draw.random() < 0.4:
        fields[name] = draw.choice([inner + 1, inner - 1, inner * 2, inner * 3, inner / 2, -inner])
    else:
        fields[name] = copy.deepcopy(draw.choice(STRANGE))
    return None


def wrapped(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    for _ in range(draw.choice([1, 1, 2, 10])):
        fields = {
            "model_type": draw.choice(["mistral3", "gemma3", "gemma4", "x"]),
            "text_config": fields,
        }
    return fields


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_spoiled_config_is_read_or_refused_in_one_line(model_type: str, tmp_path: Path) -> None:
    draw = random.Random(f"{SEED}/{model_type}")
    path, whole = tmp_path / "config.json", {"model_type": model_type, **BASE, **OWN[model_type]}
    path.write_text(json.dumps(whole))
    read_model_config(tmp_path)
    refused = 0
    for case in range(-(-CASES // len(FAMILIES))):
        fields = copy.deepcopy(whole)
        for _ in range(draw.randint(1, 3)):
            spoil(draw, fields)
        if draw.random() < 0.1:
            fields = wrapped(draw, fields)
        path.write_text(json.dumps(fields))
        began = time.process_time()
        serves = draw.choice([None, None, 16, 2000])
        try:
            assert isinstance(read_model_config(tmp_path, max_context_tokens=serves), ModelConfig)
        except LoadError as error:
            refused += 1
            text = str(error)
            assert text.startswith(f"{path}: "), (case, text)
            assert len(text.splitlines()) == 1, (case, text)
            assert len(text) < len(str(path)) + MOST_LETTERS, (case, text)
            assert re.search(r"[a-z_]{3,}", text.removeprefix(f"{path}: ")), (case, text)
        assert time.process_time() - began < 2, (case, fields)
    assert refused > 0
