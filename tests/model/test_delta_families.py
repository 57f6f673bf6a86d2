"""Folders with gated delta nets: what is read of them, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.model.config import Attention, Experts, Gated, LoadError
from runtime.model.delta_families import DELTA_FAMILIES
from runtime.model.hf_config import read_model_config
from runtime.model.presets import random_model_config
from runtime.model.recurrent import GatedDelta
from runtime.model.state_pool import ring_bytes, state_bytes

OWN: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "attn_output_gate": True,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}


def read(folder: Path, model_type: str = "qwen3_5_text", **changes: Any) -> Any:
    given = {"model_type": model_type, **OWN, **changes}
    (folder / "config.json").write_text(json.dumps(given))
    return read_model_config(folder)


def test_every_fourth_layer_attends_where_nothing_is_said(tmp_path: Path) -> None:
    config = read(tmp_path)
    kinds = [isinstance(layer.mixer, Attention) for layer in config.layers]
    assert kinds == [False, False, False, True] * 2
    delta = GatedDelta(key_heads=2, value_heads=6, key_dim=128, value_dim=128, taps=4)
    assert config.recurrent == (delta,) * 6
    (attention,) = set(config.attention)
    assert (attention.gated, attention.norm, attention.rope.rotated) == (True, "each", 8)
    assert attention.rope.theta == 1e7
    assert set(DELTA_FAMILIES) >= {"qwen3_next", "qwen3_5", "qwen3_5_moe"}


OLMO: dict[str, Any] = {
    "linear_num_key_heads": None,
    "linear_num_value_heads": None,
    "attn_output_gate": None,
    "head_dim": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}


def test_a_hybrid_of_olmo_has_norms_behind_attention_and_before_the_rest(tmp_path: Path) -> None:
    config = read(tmp_path, "olmo_hybrid", **OLMO)
    kinds = [layer.norms for layer in config.layers]
    assert kinds == ["before", "before", "before", "after"] * 2
    delta = GatedDelta(
        key_heads=4,
        value_heads=4,
        key_dim=12,
        value_dim=24,
        taps=4,
        most_beta=2.0,
        norm_eps=1e-5,
    )
    assert config.recurrent == (delta,) * 6
    (attention,) = set(config.attention)
    assert (attention.norm, attention.rope, attention.head_dim) == ("all", None, 16)
    few = read(tmp_path, "olmo_hybrid", **{**OLMO, "num_hidden_layers": 2})
    assert [layer.norms for layer in few.layers] == ["before", "after"]


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_parameters": None, "rope_theta": 7e4}, 7e4),
        ({"rope_parameters": None, "rope_theta": None}, None),
    ],
)
def test_a_hybrid_of_olmo_has_positions_or_says_that_it_has_none(
    changes: dict[str, Any], theta: float | None, tmp_path: Path
) -> None:
    config = read(tmp_path, "olmo_hybrid", **{**OLMO, **changes})
    rope = config.attention[0].rope
    assert (None if rope is None else rope.theta) == theta


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_parameters": None}, "rope_theta is None, not a number, or null in rope_parameters"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": None}},
            "rope_type is 'yarn', not default: there are no positions",
        ),
        ({"linear_use_gate": False}, "linear_use_gate is False, not true"),
        ({"linear_num_value_heads": 6}, "6 heads of values are not a multiple of 4 of keys"),
        ({"linear_allow_neg_eigval": 2}, "linear_allow_neg_eigval is 2, not true or false"),
    ],
)
def test_what_is_not_known_of_a_hybrid_of_olmo_is_named(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=said):
        read(tmp_path, "olmo_hybrid", **{**OLMO, **changes})


@pytest.mark.parametrize("wrapper", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("named", [True, False])
def test_the_text_part_of_a_multimodal_folder_is_read(
    tmp_path: Path, wrapper: str, named: bool
) -> None:
    text = {**OWN, "full_attention_interval": 2}
    if named:
        text["model_type"] = f"{wrapper}_text"
    whole = {"model_type": wrapper, "text_config": text, "vision_config": {"depth": 2}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = read_model_config(tmp_path)
    assert [isinstance(layer.mixer, Attention) for layer in config.layers] == [False, True] * 4
    assert isinstance(config.layers[0].feed_forward, Experts if "moe" in wrapper else Gated)


def test_experts_are_in_all_layers_but_those_that_are_named(tmp_path: Path) -> None:
    config = read(tmp_path, "qwen3_next", mlp_only_layers=[2], num_experts=8, num_experts_per_tok=2)
    plain = [isinstance(layer.feed_forward, Gated) for layer in config.layers]
    assert plain == [False, False, True, *[False] * 5]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["linear_attention", "mamba"] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 8}, "without a layer of attention"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"linear_num_value_heads": 5}, "not a multiple of 2 of keys"),
        ({"linear_conv_kernel_dim": 99}, "2 to 16"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        read(tmp_path, **changes)


def test_the_preset_for_benchmarks_is_as_large_as_its_neighbour() -> None:
    ours, theirs = random_model_config("qwen3.5-100m"), random_model_config("qwen3-100m")
    assert 0.95 <= ours.num_parameters / theirs.num_parameters <= 1.05
    assert (len(ours.layers), len(ours.attention), ours.max_context_tokens) == (12, 3, 65536)


def test_factors_of_a_running_slot_are_about_half_a_state() -> None:
    config = random_model_config("qwen3.5-100m")
    share = ring_bytes(config, torch.bfloat16) / state_bytes(config, torch.bfloat16)
    assert 0.4 < share < 0.65
