"""What folders of Laguna and Mellum 2 say; the arithmetic is ``test_family_parity``'s."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder, seen

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 64.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}
ROPES = {
    "full_attention": {**YARN, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
KINDS = ["full_attention", "sliding_attention", "sliding_attention"] * 2
PUBLISHED = {
    "head_dim": 16,
    "num_attention_heads_per_layer": [8, 12, 12] * 2,
    "qkv_bias": False,
    "attention_bias": False,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "norm_topk_prob": True,
    "moe_routed_scaling_factor": 2.5,
    "moe_apply_router_weight_on_input": False,
    "moe_router_logit_softcapping": 0.0,
    "moe_router_score_func": "sigmoid",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "mlp_layer_types": ["dense", *["sparse"] * 5],
    "sliding_window": 512,
    "swa_attention_sink_enabled": False,
    "layer_types": KINDS,
    "gating": "per-head",
    "gating_types": ["per_head"] * 6,
    "rope_parameters": ROPES,
}
STRETCHED = RopeConfig(
    kind="yarn",
    theta=500000.0,
    rotated=8,
    factor=32.0,
    original_max_position=4096,
    beta_fast=64.0,
)


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "laguna", **{**PUBLISHED, **changes})


def test_the_published_fields_are_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert seen(config) == [None, 512, 512] * 2
    assert config.max_context_tokens == 32 * 4096
    full = Attention(
        heads=8,
        kv_heads=4,
        head_dim=16,
        rope=STRETCHED,
        norm="each",
        gated_heads=True,
        gate_function="softplus",
    )
    assert config.layers[0].mixer == full
    assert config.layers[1].mixer == replace(full, heads=12, window=512, rope=RopeConfig())
    assert config.layers[0].feed_forward == Gated(size=32)
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=20)
    router = experts.router
    assert (router.scale, router.scores, router.correction) == (2.5, "sigmoid", True)
    assert router.logit_cap is None
    assert len(config.kv_groups) == 1


def test_what_is_left_out_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "laguna")
    assert seen(config) == [None] * 6
    mixer = config.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.head_dim, mixer.gated_heads) == (8, 128, True)
    assert mixer.rope == RopeConfig(theta=500000.0, rotated=64)
    assert [isinstance(each.feed_forward, Experts) for each in config.layers] == [
        False,
        *[True] * 5,
    ]
    sliding = read_folder(tmp_path, "laguna", layer_types=KINDS).layers[1].mixer
    assert isinstance(sliding, Attention)
    assert (sliding.window, sliding.rope) == (512, RopeConfig())


def test_gates_of_numbers_have_a_matrix_of_their_own(tmp_path: Path) -> None:
    config = read(tmp_path, gating="per-element", gating_types=None)
    mixer = config.layers[1].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.gated, mixer.gate_apart, mixer.gated_heads) == (True, True, False)
    assert mixer.gate_function == "softplus"


def test_earlier_folders_have_two_objects_for_positions(tmp_path: Path) -> None:
    swa = {"rope_theta": 7.0, "partial_rotary_factor": 0.25}
    config = read(
        tmp_path, rope_parameters=YARN, swa_rope_parameters=swa, partial_rotary_factor=0.5
    )
    ropes = [mixer.rope for mixer in config.attention]
    assert ropes[:2] == [STRETCHED, RopeConfig(theta=7.0, rotated=4)]


def test_layers_with_one_mlp_are_listed_in_either_way(tmp_path: Path) -> None:
    for changes in (
        {"mlp_layer_types": None, "mlp_only_layers": [1, 4], "decoder_sparse_step": 1},
        {"mlp_layer_types": ["sparse", "dense", "sparse"] * 2, "mlp_only_layers": None},
        {"mlp_layer_types": ["sparse", "dense", "sparse"] * 2, "mlp_only_layers": [1, 4]},
    ):
        layers = read(tmp_path, **changes).layers
        kinds = [isinstance(layer.feed_forward, Experts) for layer in layers]
        assert kinds == [True, False, True] * 2


def test_every_so_many_layers_may_have_experts(tmp_path: Path) -> None:
    changes = {"mlp_layer_types": None, "mlp_only_layers": None, "decoder_sparse_step": 2}
    layers = read(tmp_path, **changes).layers
    assert [isinstance(layer.feed_forward, Experts) for layer in layers] == [False, True] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gating": False}, "gating is False, not true, per-head or per-element"),
        ({"gating_types": ["per_element"] * 6}, "gating_types is .* not 6 of per_head"),
        ({"gating": "per-element"}, "gating_types is .* not 6 of per_element"),
        ({"qkv_bias": True}, "qkv_bias is True, not what attention_bias says"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False, not true"),
        ({"moe_router_score_func": "sqrtsoftplus"}, "'sqrtsoftplus', not sigmoid"),
        ({"moe_apply_router_weight_on_input": True}, "on_input is True, not false"),
        ({"swa_attention_sink_enabled": True}, "sink_enabled is True, not false"),
        ({"swa_num_attention_heads": 12}, "swa_num_attention_heads is 12, not absent"),
        ({"num_attention_heads_per_layer": [8, 12]}, r"is \[8, 12\], not 6 numbers"),
        ({"num_attention_heads_per_layer": [8, 6] * 3}, "num_heads 6 is not a multiple"),
        ({"mlp_only_layers": [0, 1]}, r"mlp_only_layers is \[0, 1\], not the layers that"),
        ({"rope_parameters": YARN}, "rope_parameters is .* not one with an object sliding"),
        ({"rope_parameters": None, "rope_scaling": YARN}, "rope_scaling is .* not absent"),
        ({"rope_parameters": None, "rope_theta": 7.0}, "rope_theta is 7.0, not absent"),
        (
            {"rope_parameters": {**ROPES, "sliding_attention": {}}},
            "sliding_attention.rope_theta is None, not a number",
        ),
        ({"partial_rotary_factor": 0.5}, r"is 0.5, not within rope_parameters.sliding_attention"),
        ({"rope_parameters": {"full_attention": YARN}}, "one with an object sliding_attention"),
    ],
)
def test_what_is_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)


def test_a_cap_of_experts_logits_is_read(tmp_path: Path) -> None:
    experts = read(tmp_path, moe_router_logit_softcapping=30).layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.router.logit_cap == 30.0


MELLUM = {
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "max_window_layers": 0,
    "use_sliding_window": True,
    "sliding_window": 1024,
    "layer_types": KINDS,
    "mlp_layer_types": ["sparse"] * 6,
    "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 500000.0}},
}


def test_mellum_has_experts_in_every_layer_and_windows_in_some(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "mellum", **MELLUM)
    assert seen(config) == [None, 1024, 1024] * 2
    full = Attention(
        heads=8, kv_heads=4, head_dim=16, norm="each", rope=replace(STRETCHED, rotated=None)
    )
    sliding = replace(full, window=1024, rope=RopeConfig(theta=500000.0))
    assert [layer.mixer for layer in config.layers[:2]] == [full, sliding]
    experts = config.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.scores, experts.router.normalise) == ("softmax", True)
    assert experts.shared is None
    assert all(isinstance(layer.feed_forward, Experts) for layer in config.layers)


def test_mellum_without_a_word_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "mellum", layer_types=KINDS, num_local_experts=8)
    assert seen(config) == [None, 1024, 1024] * 2
    ropes = [mixer.rope for mixer in config.attention]
    assert ropes[:2] == [RopeConfig(theta=500000.0), RopeConfig()]
    experts = config.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert experts.router.num_experts == 8


def test_mellums_windows_that_are_not_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="use_sliding_window is False, not true"):
        read_folder(tmp_path, "mellum", **{**MELLUM, "use_sliding_window": False})
    all_seen = {"use_sliding_window": False, "layer_types": None}
    assert seen(read_folder(tmp_path, "mellum", **{**MELLUM, **all_seen})) == [None] * 6
