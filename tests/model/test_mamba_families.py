"""Folders with Mamba-2: what is read of them, and what is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    LoadError,
    Plain,
)
from runtime.model.hf_config import read_model_config
from runtime.model.mamba_families import MAMBA_FAMILIES
from runtime.model.recurrent import Mamba2
from runtime.model.state_pool import ring_bytes, state_bytes

OWN: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}


def read(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**OWN, **changes}))
    return read_model_config(folder)


def test_layers_follow_the_list_and_have_no_positions_unless_it_says_so(tmp_path: Path) -> None:
    config = read(tmp_path, mamba_d_head="auto", attention_multiplier=0.25)
    kinds = [type(layer.mixer) for layer in config.layers]
    assert kinds == [Mamba2, Attention, Mamba2]
    mamba = Mamba2(heads=8, head_dim=16, groups=1, state_dim=16, taps=4)
    assert config.recurrent == (mamba,) * 2
    assert (config.attention[0].rope, config.attention[0].scale) == (None, 0.25)
    assert read(tmp_path, position_embedding_type="rope").attention[0].rope is not None
    assert set(MAMBA_FAMILIES) == {"granitemoehybrid", "nemotron_h"}


NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hybrid_override_pattern": "M-*EM",
    "mamba_num_heads": 8,
    "n_groups": 2,
    "n_routed_experts": 4,
    "layer_types": None,
}


def nemotron(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**NEMOTRON, **changes}))
    return read_model_config(folder)


def test_each_layer_of_nemotron_h_is_one_thing(tmp_path: Path) -> None:
    config = nemotron(tmp_path)
    assert [type(layer.mixer) for layer in config.layers if layer.mixer] == [
        Mamba2,
        Attention,
        Mamba2,
    ]
    halves = [layer.feed_forward for layer in config.layers]
    assert [type(half) for half in halves if half] == [Plain, Experts]
    assert halves[1] == Plain(size=24)
    assert (config.attention[0].rope, config.attention[0].head_dim) == (None, 128)
    assert config.recurrent[0].least_step == 0.001
    listed = ["linear_attention", "mlp", "full_attention", "moe", "mamba"]
    assert nemotron(tmp_path, layers_block_type=listed) == config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hybrid_override_pattern": "M-*EX"}, "layers_block_type"),
        ({"hybrid_override_pattern": None}, "layers_block_type"),
        ({"moe_latent_size": 32}, "moe_latent_size"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"hybrid_override_pattern": "M-EM"}, "without a layer of attention"),
    ],
)
def test_what_nemotron_h_cannot_be_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        nemotron(tmp_path, **changes)


def test_dense_ones_have_the_mlp_that_others_share(tmp_path: Path) -> None:
    experts = read(tmp_path).layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.each.size, experts.shared) == (24, Gated(size=40))
    assert read(tmp_path, num_local_experts=0).layers[0].feed_forward == Gated(size=40)


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        (None, (0.0, math.inf)),
        ([0.25, 2], (0.25, 2.0)),
        ([0.0, {"__float__": "Infinity"}], (0.0, math.inf)),
    ],
)
def test_limits_of_steps_are_read_however_they_are_written(
    tmp_path: Path, written: Any, limits: tuple[float, float]
) -> None:
    mamba = read(tmp_path, time_step_limit=written).recurrent[0]
    assert (mamba.least_step, mamba.most_step) == limits


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["mamba", "conv", "mamba"]}, "layer_types"),
        ({"layer_types": None}, "without a layer of attention"),
        ({"mamba_d_head": 12}, "mamba_d_head"),
        ({"mamba_n_groups": 3}, "8 heads are not in 3 equal groups"),
        ({"time_step_limit": [1.0]}, "time_step_limit"),
        ({"time_step_limit": [3.0, 1.0]}, "steps within 3.0 and 1.0"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type"),
        ({"mamba_d_conv": 40}, "a convolution over 40 tokens"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        read(tmp_path, **changes)


def test_a_slot_has_a_matrix_for_each_head_and_the_window_of_the_convolution(
    tmp_path: Path,
) -> None:
    config = read(tmp_path)
    channels = 128 + 2 * 16
    assert state_bytes(config, torch.bfloat16) == 2 * 4 * (3 * channels + 8 * 16 * 16)
    factors = 16 + 128 + 8
    assert ring_bytes(config, torch.bfloat16) == 32 * 2 * (2 * channels + 4 * factors)
