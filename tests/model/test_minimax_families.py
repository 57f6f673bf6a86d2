"""What MiniMax M3's folders say; the arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.model.chosen_blocks import BlockChoice
from runtime.model.config import Experts, Gated, LoadError, ModelConfig
from runtime.model.hf_config import read_model_config
from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import RopeConfig
from runtime.model.weights import load_model
from tests.support.config_folders import read_folder
from tests.support.family_shapes import SHAPES, make_wrapper, save

SPARSE = {
    "use_sparse_attention": True,
    "sparse_index_dim": 64,
    "sparse_num_index_heads": 4,
    "sparse_topk_blocks": 3,
    "sparse_block_size": 32,
    "sparse_score_type": "max",
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_attention_freq": [0, 0, 0, 1, 1, 1],
    "sparse_disable_index_value": [0, 0, 0, 1, 1, 1],
}
_MTP = ("mtp", "model.mtp")
NAMES = ["minimax_m3", "minimax_m3_text", "minimax_m3_vl_text"]


def read(folder: Path, model_type: str = "minimax_m3", **changes: Any) -> ModelConfig:
    own = {"sparse_attention_config": SPARSE, "moe_layer_freq": [0, 0, 0, 1, 1, 1]}
    return read_folder(folder, model_type, **{**own, **changes})


@pytest.mark.parametrize("model_type", NAMES)
def test_the_published_spelling_is_read(tmp_path: Path, model_type: str) -> None:
    more = {"rotary_dim": 64, "partial_rotary_factor": 0.5, "hidden_act": "swigluoai"}
    config = read(tmp_path, model_type, **more)
    choice = BlockChoice(dim=64, size=32, count=3, local=1)
    assert [mixer.choice for mixer in config.attention] == [None] * 3 + [choice] * 3
    assert {mixer.norm for mixer in config.attention} == {"each"}
    assert config.attention[0].rope == RopeConfig(theta=5000000.0, rotated=64)
    mlp, experts = config.layers[2].feed_forward, config.layers[3].feed_forward
    assert mlp == Gated(size=12288, activation="clamped_swiglu", limit=7.0)
    assert isinstance(experts, Experts)
    assert (experts.each.size, experts.shared.size) == (32, 3072)
    assert (experts.router.scale, experts.router.correction) == (2.0, True)
    assert [group.shape for group in config.kv_groups] == [
        KVShape(rows=2, heads=4, size=128),
        KVShape(rows=1, heads=1, size=64),
    ]


def test_the_spelling_of_transformers_is_read(tmp_path: Path) -> None:
    config = read_folder(
        tmp_path,
        "minimax_m3_vl_text",
        layer_types=["full_attention", *["minimax_m3_sparse"] * 5],
        mlp_layer_types=["dense", *["sparse"] * 5],
        index_n_heads=4,
        index_local_blocks=2,
    )
    assert [mixer.choice for mixer in config.attention] == [
        None,
        *[BlockChoice(dim=128, size=128, count=16, local=2)] * 5,
    ]
    assert [isinstance(layer.feed_forward, Experts) for layer in config.layers] == [
        False,
        *[True] * 5,
    ]
    assert config.top_k == 2048


def test_without_a_word_of_blocks_no_layer_chooses(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "minimax_m3_vl_text", num_key_value_heads=2)
    assert config.top_k is None
    assert config.has_experts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_gemma_norm": False}, "use_gemma_norm is False, not true"),
        ({"use_qk_norm": False}, "use_qk_norm is False, not true"),
        ({"qk_norm_type": "per_layer"}, "qk_norm_type is 'per_layer', not per_head"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ({"attention_bias": True}, "attention_bias is True, not false"),
        ({"swiglu_alpha": 1.5}, r"swiglu_alpha is 1\.5, not 1\.702"),
        ({"swiglu_limit": 0}, r"swiglu_limit is 0\.0, not a number above 0"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, not 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not swigluoai or silu"),
        ({"rotary_dim": 32, "partial_rotary_factor": 0.5}, "rotary_dim is 32, not 64 as the"),
        ({"moe_layer_freq": [0, 1]}, r"moe_layer_freq is \[0, 1\], not 6 of 0, 1"),
        ({"mlp_layer_types": ["x"] * 6}, "mlp_layer_types is .* not 6 of sparse, dense"),
        ({"layer_types": ["x"] * 6}, "layer_types is .* not 6 of minimax_m3_sparse, full"),
        ({"num_key_value_heads": 2}, "sparse_num_index_heads is 4, not 2, like num_key_value"),
    ],
)
def test_what_is_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sparse_attention": False}, "use_sparse_attention is False, not true"),
        ({"sparse_score_type": "sum"}, "sparse_score_type is 'sum', not max"),
        ({"sparse_init_block": 1}, "sparse_init_block is 1, not 0"),
        ({"sparse_local_block": 0}, "sparse_local_block is 0, not a whole number of at least 1"),
        ({"sparse_attention_freq": [2] * 6}, r"sparse_attention_freq is \[2.* not 6 of 0, 1"),
        ({"sparse_disable_index_value": [0] * 6}, "sparse_disable_index_value is .* not set in"),
        ({"sparse_new": 1}, "sparse_new is 1, not absent: nothing is known of it"),
    ],
)
def test_what_is_otherwise_in_the_choice_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=rf"field sparse_attention_config\.{message}"):
        read(tmp_path, sparse_attention_config={**SPARSE, **changes})


def test_a_wrapper_that_does_not_say_what_is_in_it_has_this(tmp_path: Path) -> None:
    model = make_wrapper("minimax_m3_vl", SHAPES["below"], seed=0)
    save(model, tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"minimax_m3_vl_text"', "null"))
    assert read_model_config(tmp_path).model_type == "minimax_m3_vl_text"


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    """Wherever in a wrapper they are."""
    save(make_wrapper("minimax_m3_vl", SHAPES["below"], seed=0), tmp_path)
    path = tmp_path / "model.safetensors"
    more = {f"language_model.{part}.layers.0.eh_proj.weight": torch.ones(2, 2) for part in _MTP}
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})
    load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    strange = {"language_model.model.strange.weight": torch.ones(2, 2)}
    save_file({**load_file(path), **strange}, path, metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"model\.strange\.weight' is nothing that"):
        load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
