"""What MiMo V2 Flash's folders say; the arithmetic is ``test_family_parity``'s."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder, seen

PUBLISHED = {
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1, 1, 1],
    "head_dim": 48,
    "v_head_dim": 32,
    "swa_head_dim": 48,
    "swa_v_head_dim": 32,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 8,
    "sliding_window_size": 128,
    "sliding_window": 128,
    "attention_chunk_size": 128,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_value_scale": 0.707,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5e6,
    "swa_rope_theta": 1e4,
    "layernorm_epsilon": 3e-5,
    "routed_scaling_factor": None,
    "n_shared_experts": None,
    "hybrid_block_size": None,
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "mimo_v2_flash", **{**PUBLISHED, **changes})


def mixers(config: ModelConfig) -> tuple[Attention, Attention]:
    full, sliding = config.layers[0].mixer, config.layers[1].mixer
    assert isinstance(full, Attention)
    assert isinstance(sliding, Attention)
    return full, sliding


def test_the_published_spelling_is_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert seen(config) == [None, 129, 129, 129, 129, None]
    full, sliding = mixers(config)
    assert full == Attention(
        heads=8,
        kv_heads=4,
        head_dim=48,
        rope=RopeConfig(theta=5e6, rotated=16),
        value_dim=32,
        value_scale=0.707,
    )
    rope = RopeConfig(theta=1e4, rotated=16)
    assert sliding == replace(full, kv_heads=8, window=129, sinks=True, rope=rope)
    assert config.norm_eps == 3e-5
    assert isinstance(config.layers[0].feed_forward, Gated)
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.scale, experts.shared) == (1.0, None)
    assert [(group.shape, group.layers) for group in config.kv_groups] == [
        (KVShape(rows=2, heads=4, size=48), 2),
        (KVShape(rows=2, heads=8, size=48), 4),
    ]


def test_what_is_left_out_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "mimo_v2_flash")
    assert seen(config) == [None, 129, 129, 129, 129, None]
    full, sliding = mixers(config)
    assert (full.head_dim, full.value_dim, full.value_scale) == (192, 128, 0.707)
    assert (full.kv_heads, sliding.kv_heads) == (4, 8)
    assert (full.sinks, sliding.sinks) == (False, True)
    assert full.rope == RopeConfig(theta=5e6, rotated=64)
    assert sliding.rope == RopeConfig(theta=1e4, rotated=64)


def test_the_spelling_of_transformers_is_read(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    config = read_folder(
        tmp_path,
        "mimo_v2_flash",
        layer_types=kinds,
        mlp_layer_types=["sparse", "dense"] * 3,
        sliding_window=65,
        attention_value_scale=None,
        v_head_dim=192,
        rope_parameters={
            "full_attention": {"rope_theta": 9.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 7.0, "partial_rotary_factor": 0.25},
        },
    )
    assert seen(config) == [65, None] * 3
    sliding, full = mixers(config)
    assert (full.rope, sliding.rope) == (
        RopeConfig(theta=9.0, rotated=96),
        RopeConfig(theta=7.0, rotated=48),
    )
    assert (full.value_dim, full.value_scale) == (None, 1.0)
    assert [isinstance(layer.feed_forward, Experts) for layer in config.layers] == [True, False] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_projection_layout": "fused_qkv"}, "layout is 'fused_qkv', not split"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', not noaux_tc"),
        ({"hybrid_block_size": 6}, "hybrid_block_size is 6, not absent"),
        ({"attention_chunk_size": 64}, "attention_chunk_size is 64, not sliding_window_size"),
        ({"hybrid_layer_pattern": [0, 1]}, r"hybrid_layer_pattern is \[0, 1\], not 6 of 0, 1"),
        ({"moe_layer_freq": 1}, "moe_layer_freq is 1, not 6 of 0, 1"),
        ({"n_shared_experts": 1}, "n_shared_experts is 1, not 0 or null"),
        ({"v_head_dim": 64}, "values of 64 numbers beside keys of 48"),
        ({"swa_num_key_value_heads": 3}, "num_heads 8 is not a multiple of num_kv_heads 3"),
    ],
)
def test_what_is_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)


def test_modules_that_are_left_out_are_listed_in_one_of_two_fields(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]}
    quantisation = read(tmp_path, quantization_config=fp8).quantisation
    assert quantisation is not None
    assert quantisation.excluded_field == "ignored_layers"
    assert [names.names for names, _ in quantisation.own] == [("lm_head",)]
    with pytest.raises(LoadError, match="store_dtype is 'mxfp4', not absent"):
        read(tmp_path, quantization_config={**fp8, "store_dtype": "mxfp4"})
