"""Folders of GLM-5.3-Flash: what is read, and what is refused by name. The arithmetic is
``test_hybrid_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, LoadError, ModelConfig
from runtime.model.glm_next_families import GLM_NEXT_FAMILIES
from runtime.model.kv_shape import KVShape
from runtime.model.latent import Indexer, Latent
from runtime.model.recurrent import KimiDelta
from runtime.model.streams import Streams
from tests.support.config_folders import BASE, read_folder

LINEAR: dict[str, Any] = {
    "head_dim": 128,
    "num_heads": 64,
    "short_conv_kernel_size": 4,
    "gate_lower_bound": -5.0,
    "safe_gate": True,
}
PUBLISHED: dict[str, Any] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "index_kpool": 4,
    "index_topk": 2048,
    "linear_attn_config": LINEAR,
    "max_position_embeddings": 1048576,
    "model_type": "glm5_next_text",
}
"""What a folder says, but for fields whose defaults are the same."""
KEYS = {"num_key_value_heads": BASE["num_attention_heads"]}


def read(folder: Path, model_type: str = "glm5_next_text", **changes: Any) -> ModelConfig:
    return read_folder(folder, model_type, **KEYS | changes)


def attending(config: ModelConfig) -> list[int]:
    return [at for at, layer in enumerate(config.layers) if isinstance(layer.mixer, Latent)]


@pytest.mark.parametrize("model_type", GLM_NEXT_FAMILIES)
def test_the_least_that_a_folder_says_is_read(model_type: str, tmp_path: Path) -> None:
    config = read(tmp_path, model_type)
    assert attending(config) == [3]
    assert config.streams == Streams(count=4, iterations=20, eps=1e-6, learnt_end=False)
    assert config.norm_eps == 1e-5
    assert [isinstance(layer.feed_forward, Experts) for layer in config.layers] == [False] * 3 + [
        True
    ] * 3
    assert config.recurrent == (KimiDelta(heads=64, head_dim=128, taps=4, lowest=-5.0),) * 5


def test_a_published_folder_is_read(tmp_path: Path) -> None:
    vision = {"depth": 24}
    config = read_folder(tmp_path, "glm5_next", text_config=PUBLISHED, vision_config=vision)
    assert attending(config) == list(range(3, 45, 4))
    mixer = config.attention[0]
    assert mixer.indexer == Indexer(heads=32, dim=128, top_k=2048, pool=4)
    assert (mixer.eps, mixer.rotary_dim, mixer.rope) == (1e-5, 0, None)
    (group,) = config.kv_groups
    assert group.shape == KVShape(rows=1, heads=1, size=512 + 2 * 128)
    assert config.max_context_tokens == 1 << 20


def test_decays_and_lists_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    own = {**LINEAR, "gate_lower_bound": -2.0}
    for changes in ({"linear_lower_bound": -2.0}, {"linear_attn_config": own}):
        assert read(tmp_path, **changes).recurrent[0].lowest == -2.0
    kinds = ["linear_attention", "indexed_attention"] * 3
    lists = {"full_attn_layers": [2, 4, 6], "kda_layers": [1, 3, 5]}
    for spelled in (kinds, [kind.replace("indexed", "full") for kind in kinds]):
        config = read(tmp_path, layer_types=spelled, linear_attn_config={**LINEAR, **lists})
        assert attending(config) == [1, 3, 5]
    others = ["shared", "full"] * 3
    assert attending(read(tmp_path, layer_types=kinds, indexer_types=others)) == [1, 3, 5]
    assert attending(read(tmp_path, index_topk_pattern="F" * 6)) == [3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, not 8, like num_"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim is 64, not 0: this model type"),
        ({"attention_bias": True}, "attention_bias is True, not false"),
        ({"mla_use_nope": False}, "mla_use_nope is False, not true"),
        ({"index_kpool": 1}, "index_kpool is 1, not at least 2"),
        ({"index_kpool": 48}, "2048 tokens are chosen, no whole number of 48"),
        ({"index_kpool_always_select_tail": False}, "always_select_tail is False, not true"),
        ({"index_topk_freq": 4}, "index_topk_freq is 4, not 1"),
        ({"index_topk_pattern": "FSSF"}, "index_topk_pattern is 'FSSF', not 6 times F"),
        ({"indexer_types": ["full"] * 3 + ["shared"] * 3}, "'shared', not full for layer 3, which"),
        ({"indexer_types": ["full"] * 5}, "indexer_types is .*, not 6 of full, shared"),
        ({"layer_types": ["mamba"] * 6}, "layer_types is .*, not 6 of linear_attention, indexed_"),
        ({"mlp_layer_types": "dense"}, "mlp_layer_types is 'dense', not 6 of dense, sparse"),
        ({"first_k_dense_replace": 1}, "first_k_dense_replace is 1, not 3, or mlp_layer_types"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0.0, not above 0"),
        ({"linear_lower_bound": None}, "linear_lower_bound is None, not a number: decays have"),
        ({"linear_lower_bound": 0.5}, "linear_lower_bound is 0.5, not a number below 0"),
        (
            {"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}},
            "linear_lower_bound is None, not a number: decays have",
        ),
        ({"linear_attn_config": {"kda_layers": [1]}}, "kda_layers is 'set', not absent: layer_ty"),
        ({"linear_attn_config": {"beta": 2}}, "linear_attn_config.beta is 2, not absent"),
        ({"hc_sinkhorn_iters": 1001}, "hc_sinkhorn_iters is 1001, not at most 1000"),
        ({"q_lora_rank": 0}, "q_lora_rank is 0, not a whole number"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)
