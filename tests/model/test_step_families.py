"""What folders of Step 3.5 and 3.7 say; the arithmetic is ``test_family_parity``'s."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from runtime.model.hf_config import read_model_config
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import BASE, read_folder, seen

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "original_max_position_embeddings": 2048,
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
}
KINDS = ["full_attention", "sliding_attention", "sliding_attention"] * 2
"""Of the layers; in published folders lists go on behind the last."""
PUBLISHED = {
    "num_key_value_heads": None,
    "num_attention_groups": 4,
    "head_dim": 16,
    "layer_types": [*KINDS, "sliding_attention"],
    "num_nextn_predict_layers": 1,
    "sliding_window": 512,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 12,
        "num_attention_groups": 4,
        "head_dim": 16,
        "true_head_dim": 16,
    },
    "att_impl_type": "GQA",
    "use_head_wise_attn_gate": True,
    "use_qk_norm": True,
    "zero_centered": True,
    "sink": False,
    "use_rope_layers": [],
    "rope_theta": [5e6, 1e4, 1e4, 5e6, 1e4, 1e4, 1e4],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0],
    "rope_scaling": LLAMA3,
    "yarn_only_types": ["full_attention"],
    "use_moe": True,
    "moe_layers_enum": "2,3,4,5",
    "moe_num_experts": 16,
    "moe_top_k": 4,
    "moe_intermediate_size": 24,
    "share_expert_dim": 20,
    "use_moe_router_bias": True,
    "need_fp32_gate": True,
    "norm_expert_weight": True,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "swiglu_limits": [0.0, 0.0, 0.0, 0.0, 7.0, 7.0, 0.0],
    "swiglu_limits_shared": [0.0, 9.0, None, 0.0, 0.0, 16, 0.0],
}
FULL = Attention(
    heads=8,
    kv_heads=4,
    head_dim=16,
    norm="each",
    gated_heads=True,
    rope=RopeConfig(
        kind="llama3",
        theta=5e6,
        rotated=8,
        factor=2.0,
        original_max_position=2048,
        low_freq_factor=1.0,
        high_freq_factor=32.0,
    ),
)
SLIDING = replace(FULL, heads=12, window=512, rope=RopeConfig())


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "step3p5", **{**PUBLISHED, **changes})


def test_the_published_fields_are_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert [layer.mixer for layer in config.layers] == [FULL, SLIDING, SLIDING] * 2
    assert config.max_context_tokens == 4096
    assert config.norm_eps == 1e-5
    assert [layer.feed_forward for layer in config.layers[:2]] == [
        Gated(size=32),
        Gated(size=32, activation="clamped_after_silu", limit=9.0),
    ]
    kinds = [layer.feed_forward for layer in config.layers[2:]]
    assert all(isinstance(each, Experts) for each in kinds)
    held = [(each.each.limit, each.shared.limit) for each in kinds]  # type: ignore[union-attr]
    assert held == [(0, 0), (0, 0), (7, 0), (7, 16)]
    experts = kinds[0]
    assert isinstance(experts, Experts)
    assert (experts.each, experts.shared) == (Gated(size=24), Gated(size=20))
    router = experts.router
    assert (router.num_experts, router.per_token, router.scale) == (16, 4, 3.0)
    assert (router.scores, router.correction, router.normalise) == ("sigmoid", True, True)
    assert len(config.kv_groups) == 1


def test_a_wrappers_text_part_is_read(tmp_path: Path) -> None:
    text = {**BASE, **PUBLISHED}
    whole = {"model_type": "step3p7", "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = read_model_config(tmp_path)
    assert config.model_type == "step3p5"
    assert config.layers == read(tmp_path).layers


def test_the_spelling_of_transformers_is_read(tmp_path: Path) -> None:
    heads = {str(at): {"num_attention_heads": 12} for at, kind in enumerate(KINDS) if "sl" in kind}
    config = read_folder(
        tmp_path,
        "step3p5",
        head_dim=16,
        layer_types=KINDS,
        sliding_window=9,
        num_sliding_attention_heads=12,
        per_layer_config=heads,
        query_pre_attn_scalar=25,
        mlp_layer_types=["dense", "sparse"] * 3,
        n_routed_experts=8,
        num_nextn_predict_layers=0,
        rope_parameters={
            "full_attention": {**LLAMA3, "rope_theta": 5e6, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 7.0, "partial_rotary_factor": 0.25},
        },
    )
    full = replace(FULL, scale=0.2)
    sliding = replace(full, heads=12, window=9, rope=RopeConfig(theta=7.0, rotated=4))
    assert [layer.mixer for layer in config.layers] == [full, sliding, sliding] * 2
    kinds = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert kinds == [False, True] * 3
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.num_experts, experts.router.scale) == (8, 1.0)


def test_the_stretching_may_be_in_either_object_or_in_both(tmp_path: Path) -> None:
    published = read(tmp_path).layers
    assert read(tmp_path, rope_parameters=LLAMA3).layers == published
    assert read(tmp_path, rope_parameters=LLAMA3, rope_scaling=None).layers == published


def test_layers_that_all_see_everything_need_no_window(tmp_path: Path) -> None:
    changes = {"layer_types": None, "sliding_window": None, "attention_other_setting": None}
    config = read(tmp_path, **changes, rope_theta=7.0, partial_rotary_factors=None)
    assert seen(config) == [None] * 6
    rope = config.attention[0].rope
    assert rope is not None
    assert (rope.kind, rope.theta, rope.rotated) == ("llama3", 7.0, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": None}, "sliding_window is 512, not null: no layer_types"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types is .* not a list for 6 layers"),
        ({"layer_types": ["linear_attention"] * 6}, "not a list of full_attention or sliding"),
        ({"sliding_window": None}, "sliding_window is None, not a whole number"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is False, not true"),
        ({"zero_centered": False}, "zero_centered is False, not true"),
        ({"attention_bias": True}, "attention_bias is True, not false"),
        ({"sink": True}, "sink is True, not false"),
        ({"att_impl_type": "MFA"}, "att_impl_type is 'MFA', not GQA"),
        ({"moe_router_activation": "softmax"}, "moe_router_activation is 'softmax', not sigmoid"),
        ({"norm_expert_weight": False}, "norm_expert_weight is False, not true"),
        ({"num_key_value_heads": 2}, "num_attention_groups is 4, not 2, as num_key_value_heads"),
        ({"attention_other_setting": {"num_attention_groups": 2}}, "attention_groups is 2, not 4"),
        ({"attention_other_setting": {"head_dim": 32}}, "other_setting.head_dim is 32, not 16"),
        ({"attention_other_setting": {"scale": 2}}, "other_setting.scale is 2, not absent"),
        ({"per_layer_config": {}}, "per_layer_config is {}, not 12 heads for each layer"),
        ({"use_rope_layers": [1, 1, 1, 1, 1, 0]}, "use_rope_layers is .* not a list of true"),
        ({"yarn_only_types": None}, r"yarn_only_types is None, not \['full_attention'\]"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.rope_type is None, not llama3"),
        ({"rope_parameters": {"rope_theta": 7.0}}, "rope_scaling is .* not absent, or what"),
        ({"rope_theta": [5e6, 1e4]}, "rope_theta is .* not a list for 6 layers"),
        ({"rope_theta": ["1e4"] * 6}, "rope_theta is .* not a list of numbers"),
        ({"partial_rotary_factors": [2.0] * 6}, r"\(layer 0\).partial_rotary_factor is 2.0"),
        ({"swiglu_limits": [-1.0] * 6}, "swiglu_limits is .* not a list of numbers"),
        ({"moe_layers_enum": None}, "moe_layers_enum is None, not the numbers of layers"),
        ({"moe_layers_enum": "2,x"}, "moe_layers_enum is '2,x', not the numbers of layers"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0, not a number above 0"),
    ],
)
def test_what_is_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)
