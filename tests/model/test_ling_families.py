"""Folders of Ling 3: what is read, and what is refused by name. The arithmetic is
``test_hybrid_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, LoadError, ModelConfig
from runtime.model.latent import Latent
from runtime.model.ling_families import LING_FAMILIES
from runtime.model.recurrent import KimiDelta
from tests.support.config_folders import BASE, read_folder

PUBLISHED: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 157184,
    "max_position_embeddings": 262144,
    "rope_theta": 6000000,
    "rope_interleave": True,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "layer_group_size": 6,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5,
    "q_lora_rank": 1536,
    "gated_attention_proj_granularity_type": "head_wise",
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "moe_shared_expert_intermediate_size": 768,
    "score_function": "sigmoid",
    "norm_topk_prob": True,
    "moe_router_enable_expert_bias": True,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
}
"""Fields in the names of published programs for it, with the defaults of ``transformers``."""
KEYS = {"num_key_value_heads": BASE["num_attention_heads"]}


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "bailing_hybrid", **KEYS | changes)


def attending(config: ModelConfig) -> list[int]:
    return [at for at, layer in enumerate(config.layers) if isinstance(layer.mixer, Latent)]


def test_the_least_that_a_folder_says_is_read(tmp_path: Path) -> None:
    assert set(LING_FAMILIES) == {"bailing_hybrid"}
    config = read(tmp_path)
    assert attending(config) == [5]
    mixer = config.attention[0]
    assert (mixer.query_rank, mixer.gated, mixer.rope.theta) == (None, "heads", 6e6)
    delta = KimiDelta(heads=8, head_dim=128, taps=4, two_steps=False, lowest=-5.0)
    assert config.recurrent == (delta,) * 5
    kinds = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert kinds == [False] * 2 + [True] * 4


def test_a_published_folder_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, **PUBLISHED)
    assert attending(config) == list(range(5, 42, 6))
    assert config.attention[0].query_rank == 1536
    experts = config.layers[2].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.groups, experts.router.chosen_groups) == (8, 4)
    assert config.max_context_tokens == 262144


def test_what_transformers_saves_is_read_too(tmp_path: Path) -> None:
    """Heads of recurrent layers under a name of their own, rotated parts under theirs."""
    saved = {
        "model_max_length": 2048,
        "max_position_embeddings": None,
        "head_dim": 64,
        "linear_head_dim": 128,
        "linear_num_heads": 8,
        "linear_conv_kernel_dim": 4,
        "num_expert_group": 2,
        "topk_group": 1,
        "num_experts_per_token": 2,
        "moe_renormalize": False,
        "kda_safe_gate": False,
    }
    config = read(tmp_path, **saved)
    assert config.max_context_tokens == 2048
    assert (config.recurrent[0].head_dim, config.recurrent[0].lowest) == (128, None)
    router = config.layers[-1].feed_forward.router
    assert (router.groups, router.per_token, router.normalise) == (2, 2, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, not 8, like num_"),
        ({"rope_interleave": False}, "rope_interleave is False, not true"),
        ({"no_kda_lora": False}, "no_kda_lora is False, not true: decays are made in one"),
        ({"gated_attention_proj_granularity_type": "element_wise"}, "not head_wise: attention is"),
        ({"score_function": "softmax"}, "score_function is 'softmax', not sigmoid"),
        ({"use_qkv_bias": True}, "use_qkv_bias is True, not false"),
        ({"kda_lower_bound": 1.0}, "kda_lower_bound is 1.0, not a number below 0"),
        ({"linear_num_heads": 4}, "linear_num_heads is 4, not 8, like num_attention_heads"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim is 3, not 4, like short_"),
        ({"layer_group_size": 4}, "layer_group_size is 4, not a divisor of the 6 layers, or layer"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*, not 6 of full_attention, linear"),
        ({"mlp_layer_types": ["moe"] * 6}, "mlp_layer_types is .*, not 6 of dense, sparse"),
        ({"moe_shared_expert_intermediate_size": 5}, "is 5, not 768, like moe_intermediate_size"),
        ({"n_group": 8, "num_expert_group": 4}, "n_group is 8, not 4, like num_expert_group"),
        ({"model_max_length": 8}, "max_position_embeddings is 4096, not 8, like model_max_length"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)
