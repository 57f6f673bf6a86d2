"""Hybrid folders: what is read of them, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, LoadError
from runtime.model.hf_config import read_model_config
from runtime.model.hybrid_families import HYBRID_FAMILIES
from runtime.model.recurrent import ShortConv
from runtime.model.rope_config import RopeConfig

LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "norm_eps": 1e-5,
    "layer_types": ["conv", "full_attention", "conv"],
}


def read(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(LFM2 | changes))
    return read_model_config(folder)


def test_layers_follow_the_list(tmp_path: Path) -> None:
    config = read(tmp_path, conv_L_cache=4, conv_bias=True)
    kinds = [type(layer.mixer) for layer in config.layers]
    assert kinds == [ShortConv, Attention, ShortConv]
    assert config.recurrent == (ShortConv(channels=64, taps=4, bias=True),) * 2
    assert config.tie_embeddings
    assert set(HYBRID_FAMILIES) == {"lfm2", "lfm2_moe", "lfm3"}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 256),
        ({"block_multiple_of": 16}, 64),
        ({"block_multiple_of": 16, "block_ffn_dim_multiplier": 1.3}, 96),
        ({"block_auto_adjust_ff_dim": False}, 96),
        ({"block_auto_adjust_ff_dim": False, "block_ff_dim": 40}, 40),
    ],
)
def test_the_mlp_is_as_large_as_the_checkpoints_make_it(
    tmp_path: Path, changes: dict[str, Any], size: int
) -> None:
    assert read(tmp_path, **changes).layers[0].feed_forward.size == size


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["conv", "mamba", "conv"]}, "layer_types"),
        ({"layer_types": ["conv", "full_attention"]}, "layer_types"),
        ({"layer_types": ["conv"] * 3}, "without a layer of attention"),
        ({"layer_types": None, "full_attn_idxs": "all"}, "full_attn_idxs"),
        ({"conv_L_cache": 1}, "2 to 16"),
        ({"conv_L_cache": 99}, "2 to 16"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        read(tmp_path, **changes)


LFM3: dict[str, Any] = {
    **LFM2,
    "model_type": "lfm3",
    "num_hidden_layers": 5,
    "layer_types": None,
}


def read_lfm3(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(LFM3 | changes))
    return read_model_config(folder)


def test_lfm3_has_two_kinds_of_attention_among_its_convolutions(tmp_path: Path) -> None:
    config = read_lfm3(tmp_path)
    assert [type(layer.mixer) for layer in config.layers] == [
        *[ShortConv] * 2,
        Attention,
        ShortConv,
        Attention,
    ]
    assert config.recurrent == (ShortConv(channels=64, taps=7),) * 3
    full, sliding = config.attention
    assert (full.window, sliding.window) == (None, 256)
    assert full.rope == RopeConfig(theta=1000000.0, kind="proportional", rotated=64)
    assert sliding.rope == RopeConfig(theta=10000.0)
    for mixer in config.attention:
        assert (mixer.heads, mixer.kv_heads, mixer.head_dim) == (4, 2, 128)
        assert (mixer.norm, mixer.gated_heads, mixer.bias) == ("each", True, False)
    assert {layer.norms for layer in config.layers} == {"both"}
    assert config.tie_embeddings


def test_lfm3_says_what_it_has_otherwise(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 9.0},
        "sliding_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    config = read_lfm3(
        tmp_path,
        use_sandwich_norm=False,
        use_attention_gate=False,
        attention_bias=True,
        sliding_window=30,
        head_dim=16,
        rope_parameters=ropes,
        layer_types=["sliding_attention", "conv", "full_attention", "conv", "conv"],
    )
    sliding, full = config.attention
    assert (sliding.window, full.window) == (30, None)
    assert sliding.rope == RopeConfig(theta=10000.0, kind="proportional", rotated=4)
    assert full.rope == RopeConfig(theta=9.0)
    assert (full.gated_heads, full.bias, full.output_bias) == (False, True, True)
    assert {layer.norms for layer in config.layers} == {"before"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["conv", "attention"]}, "layer_types is .* not 5 of conv, full_attention"),
        ({"layer_types": ["conv"] * 5}, "without a layer of attention"),
        ({"sliding_window": None}, "sliding_window is None, not a number"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters is .* with sliding_att"),
        ({"conv_L_cache": 17}, "2 to 16"),
    ],
)
def test_what_cannot_be_served_of_lfm3_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        read_lfm3(tmp_path, **changes)


def test_the_wrapper_of_lfm3_need_not_say_what_is_in_it(tmp_path: Path) -> None:
    text = {name: value for name, value in LFM3.items() if name != "model_type"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "lfm3_vl", "text_config": text})
    )
    assert read_model_config(tmp_path).model_type == "lfm3"
