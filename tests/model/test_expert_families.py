"""Fields that only some families with experts have; their arithmetic is
``test_family_parity``'s."""

from pathlib import Path

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder, seen


def test_minimax_spells_the_part_that_is_turned_as_a_number(tmp_path: Path) -> None:
    changes = {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 16}
    rope = read_folder(tmp_path, "minimax_m2", **changes).layers[0].mixer.rope
    assert rope == RopeConfig(theta=5000000.0, rotated=8)
    with pytest.raises(LoadError, match="partial_rotary_factor"):
        read_folder(tmp_path, "minimax_m2", **changes | {"rotary_dim": 7})


def test_glm_has_one_mlp_in_its_first_layers_and_half_heads_turned(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "glm4_moe", first_k_dense_replace=2, n_routed_experts=16)
    kinds = [isinstance(layer.feed_forward, Gated) for layer in config.layers]
    assert kinds == [True, True, False, False, False, False]
    rope = config.layers[0].mixer.rope
    assert rope is not None
    assert rope.rotated == 4


def test_hy3_has_one_mlp_in_its_first_layer_unless_it_lists_them(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "hy_v3", num_shared_experts=2, moe_intermediate_size=16)
    kinds = [isinstance(layer.feed_forward, Gated) for layer in config.layers]
    assert kinds == [True, *[False] * 5]
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=32)
    assert (experts.router.scale, experts.router.num_experts) == (2.826, 192)
    (mixer,) = set(config.attention)
    assert mixer.rope == RopeConfig(theta=11158840.0)
    later = read_folder(tmp_path, "hy_v3", first_k_dense_replace=3)
    assert sum(isinstance(layer.feed_forward, Gated) for layer in later.layers) == 3
    listed = read_folder(tmp_path, "hy_v3", mlp_layer_types=["sparse", "dense"] * 3)
    kinds = [isinstance(layer.feed_forward, Gated) for layer in listed.layers]
    assert kinds == [False, True] * 3
    with pytest.raises(LoadError, match="route_norm is False, not true"):
        read_folder(tmp_path, "hy_v3", route_norm=False)


def test_trinity_rotates_layers_with_a_window_alone_and_gates_all(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "afmoe", num_dense_layers=2, mup_enabled=True)
    assert seen(config) == [1024, 1024, 1024, None, 1024, 1024]
    for mixer in config.attention:
        assert isinstance(mixer, Attention)
        assert (mixer.rope is None) == (mixer.window is None)
        assert (mixer.gated, mixer.gate_apart, mixer.norm) == (True, True, "each")
    kinds = [isinstance(layer.feed_forward, Gated) for layer in config.layers]
    assert kinds == [True, True, *[False] * 4]
    experts = config.layers[2].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=2816)
    assert config.embedding_scale == 8.0
    assert {layer.norms for layer in config.layers} == {"both"}
    assert read_folder(tmp_path, "afmoe").embedding_scale == 1.0
    for name, value in (("score_func", "softmax"), ("route_norm", False)):
        with pytest.raises(LoadError, match=f"{name} is {value!r}, not"):
            read_folder(tmp_path, "afmoe", **{name: value})
