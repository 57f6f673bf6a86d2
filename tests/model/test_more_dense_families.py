"""What folders of Seed-OSS, GLM-4, Arcee and IQuest-Coder say; their arithmetic is
``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Gated, Layer, LoadError, Plain
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder


def test_seed_oss_has_biases_on_queries_keys_and_values(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "seed_oss")
    (mixer,) = set(config.attention)
    assert mixer == Attention(heads=8, kv_heads=4, head_dim=128, bias=True)
    config = read_folder(
        tmp_path, "seed_oss", attention_bias=False, attention_out_bias=True, mlp_bias=True
    )
    (mixer,) = set(config.attention)
    assert isinstance(mixer, Attention)
    assert (mixer.bias, mixer.output_bias) == (False, True)
    assert config.layers[0].feed_forward == Gated(size=32, bias=True)


def test_glm4_rotates_neighbours_of_a_half_and_norms_on_both_sides(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "glm4")
    (mixer,) = set(config.attention)
    assert mixer == Attention(
        heads=8,
        kv_heads=4,
        head_dim=128,
        rope=RopeConfig(rotated=64),
        interleaved=True,
        bias=True,
    )
    assert {layer.norms for layer in config.layers} == {"both"}
    assert config.norm_eps == 1.5625e-7


def test_arcee_has_no_gate_in_its_mlp(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "arcee", mlp_bias=True)
    (layer,) = set(config.layers)
    assert layer.feed_forward == Plain(size=32, bias=True)
    assert config.attention[0].head_dim == 8
    with pytest.raises(LoadError, match="hidden_act is 'silu', not relu2"):
        read_folder(tmp_path, "arcee", hidden_act="silu")


def test_iquest_coder_is_llama_of_other_defaults(tmp_path: Path) -> None:
    mixer = read_folder(tmp_path, "iquestcoder", num_key_value_heads=2).layers[0].mixer
    assert mixer == Attention(heads=8, kv_heads=2, head_dim=128)
    own = read_folder(tmp_path, "iquestcoder", head_dim=None, attention_bias=True, mlp_bias=True)
    assert own.layers[0] == Layer(
        mixer=Attention(heads=8, kv_heads=4, head_dim=8, bias=True, output_bias=True),
        feed_forward=Gated(size=32, bias=True),
    )
    assert own.norm_eps == 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window is True, not false"),
        ({"loop_num": 2}, "loop_num is 2, not 1"),
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0, not null"),
    ],
)
def test_what_no_checkpoint_of_iquest_coder_has_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read_folder(tmp_path, "iquestcoder", **changes)
