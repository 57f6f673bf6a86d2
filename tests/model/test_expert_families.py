"""Fields that only some families with experts have; their arithmetic is
``test_family_parity``'s."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.config import EngineConfig
from runtime.model.batch import SequenceInput
from runtime.model.config import Attention, Experts, Gated, LoadError
from runtime.model.rope_config import RopeConfig
from runtime.model.runner import load_runner
from tests.support.config_folders import read_folder, seen
from tests.support.family_shapes import SHAPES, make, save


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


def test_ernie_has_experts_from_one_layer_to_another(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "ernie4_5_moe", moe_num_experts=16, moe_intermediate_size=16)
    kinds = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert kinds == [False, *[True] * 5]
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=32)
    router = experts.router
    assert (router.num_experts, router.per_token) == (16, 6)
    assert (router.scores, router.normalise, router.correction) == ("softmax", True, True)
    (mixer,) = set(config.attention)
    assert isinstance(mixer, Attention)
    assert (mixer.rope, mixer.interleaved) == (RopeConfig(theta=500000.0), True)
    some = {"moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_layer_interval": 2}
    config = read_folder(tmp_path, "ernie4_5_moe", moe_num_shared_experts=0, **some)
    found = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert found == [False, False, False, True, False, False]
    experts = config.layers[3].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared is None
    for name, value in (("use_bias", True), ("moe_norm_min", 0.5)):
        with pytest.raises(LoadError, match=f"{name} is {value!r}, not"):
            read_folder(tmp_path, "ernie4_5_moe", **{name: value})


def test_ernies_correction_is_read_where_either_program_keeps_it(tmp_path: Path) -> None:
    """As it is published, beside the router, and as ``transformers`` saves it, within; layers that
    predict further tokens are not read."""
    model = make("ernie4_5_moe", SHAPES["above"], seed=3)
    saved, published = tmp_path / "saved", tmp_path / "published"
    save(model, saved)
    save(model, published)
    file = published / "model.safetensors"
    tensors = {
        name.replace("gate.moe_statics", "moe_statics"): values
        for name, values in load_file(file).items()
    }
    assert any("mlp.moe_statics." in name for name in tensors)
    tensors["model.mtp_linear_proj.0.weight"] = torch.zeros(3, 3)
    save_file(tensors, file, metadata={"format": "pt"})
    step = SequenceInput(
        tokens=np.arange(20, dtype=np.int32),
        start=0,
        block_table=np.arange(2, dtype=np.int32),
        num_logits=20,
    )
    found = []
    for each in (saved, published):
        config = EngineConfig(model=str(each), dtype="float64", device="cpu", num_blocks=4)
        found.append(load_runner(config).run([step]).clone())
    assert torch.equal(*found)


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
