"""Hybrid folders: what is read of them, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, LoadError
from runtime.model.hf_config import read_model_config
from runtime.model.hybrid_families import HYBRID_FAMILIES
from runtime.model.recurrent import ShortConv

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
    assert set(HYBRID_FAMILIES) == {"lfm2", "lfm2_moe"}


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
