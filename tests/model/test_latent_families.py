"""Fields of families with latent attention; their arithmetic is ``test_family_parity``'s."""

import math
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, Gated, LoadError, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.latent import Latent
from runtime.model.latent_families import LATENT_FAMILIES
from tests.support.config_folders import BASE, read_folder

HEADS = {"num_key_value_heads": BASE["num_attention_heads"], "num_experts_per_tok": 4}
YARN = {
    "type": "yarn",
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}


def read(folder: Path, model_type: str, **changes: Any) -> ModelConfig:
    return read_folder(folder, model_type, **HEADS | changes)


def mixer_of(config: ModelConfig) -> Latent:
    mixer = config.layers[0].mixer
    assert isinstance(mixer, Latent)
    return mixer


@pytest.mark.parametrize("model_type", sorted(LATENT_FAMILIES))
def test_every_family_reads_the_least_that_a_folder_says(model_type: str, tmp_path: Path) -> None:
    config = read(tmp_path, model_type)
    row = 320 if model_type == "mistral4" else 576
    assert config.num_layers == 6
    (group,) = config.kv_groups
    assert group.shape == KVShape(rows=1, heads=1, size=row)
    assert isinstance(config.layers[-1].feed_forward, Experts)


def test_deepseek_stretches_its_context_and_sharpens_its_scores(tmp_path: Path) -> None:
    config = read(tmp_path, "deepseek_v3", rope_scaling=YARN, max_position_embeddings=163840)
    mixer, factor = mixer_of(config), 0.1 * math.log(40) + 1
    assert mixer.scale == pytest.approx(192**-0.5 * factor**2)
    assert mixer.rope.attention_factor == 1
    assert config.max_context_tokens == 163840
    kinds = [type(layer.feed_forward) for layer in config.layers]
    assert kinds == [Gated] * 3 + [Experts] * 3
    without = read(tmp_path, "deepseek_v3", rope_scaling=YARN | {"mscale_all_dim": 0})
    assert mixer_of(without).scale == pytest.approx(192**-0.5)
    assert mixer_of(without).rope.attention_factor == pytest.approx(factor)


def test_mistral_rotates_half_of_a_head_and_its_queries_grow(tmp_path: Path) -> None:
    config = read(tmp_path, "mistral4")
    mixer, rope = mixer_of(config), mixer_of(config).rope
    assert (mixer.plain_dim, mixer.rotary_dim, rope.rotated) == (64, 64, None)
    assert (rope.kind, rope.query_beta, rope.original_max_position) == ("yarn", 0.1, 8192)
    assert config.max_context_tokens == 1 << 20
    assert mixer.scale == pytest.approx(128**-0.5 * (0.1 * math.log(128) + 1) ** 2)
    own = {**YARN, "partial_rotary_factor": 0.5, "llama_4_scaling_beta": 0.2}
    for spelling in ("rope_parameters", "rope_scaling"):
        read_of = mixer_of(read(tmp_path, "mistral4", **{spelling: own})).rope
        assert (read_of.factor, read_of.query_beta, read_of.rotated) == (40, 0.2, None)
    experts = config.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.scores, experts.router.normalise) == ("softmax", True)


def test_queries_without_a_latent_say_so(tmp_path: Path) -> None:
    assert mixer_of(read(tmp_path, "deepseek_v2", q_lora_rank=None)).query_rank is None
    assert mixer_of(read(tmp_path, "deepseek_v2")).query_rank == 1536


def test_layers_with_one_mlp_are_listed_or_counted(tmp_path: Path) -> None:
    kinds = ["sparse", "dense", "dense", "sparse", "sparse", "sparse"]
    for found, changes in (
        (kinds, {"mlp_layer_types": kinds}),
        (["dense"] * 2 + ["sparse"] * 4, {"first_k_dense_replace": 2}),
        (["dense"] + ["sparse"] * 5, {}),
    ):
        config = read(tmp_path, "glm4_moe_lite", **changes)
        dense = [isinstance(layer.feed_forward, Gated) for layer in config.layers]
        assert dense == [kind == "dense" for kind in found]


def test_a_wrapper_of_kimis_and_its_old_name_are_read(tmp_path: Path) -> None:
    for name in ({"model_type": "kimi_k2"}, {"model_type": "deepseek_v3"}, {}):
        text = {**BASE, **HEADS, "n_group": 1, "topk_group": 1, **name}
        config = read_folder(tmp_path, "kimi_k25", text_config=text)
        assert mixer_of(config).heads == BASE["num_attention_heads"]


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        (
            "deepseek_v3",
            {"num_key_value_heads": 2},
            "num_key_value_heads is 2, not 8, like num_",
        ),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method is 'greedy', not noaux_tc"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2, not 1"),
        ("deepseek_v3", {"rope_scaling": YARN | {"mscale_all_dim": 1e300}}, "not at most 100"),
        ("deepseek_v3", {"index_topk": 2048}, "index_topk is 2048, not null"),
        ("deepseek_v3", {"q_lora_rank": 0}, "q_lora_rank is 0, not a whole number"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "7 dimensions are rotated"),
        ("deepseek_v3", {"kv_lora_rank": 1 << 30}, "kv_lora_rank is 1073741824, not at most"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', not greedy or"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is True, not false"),
        ("deepseek_v2", {"mlp_bias": True}, "mlp_bias is True, not false"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types is .*, not 6 of dense"),
        ("glm4_moe_lite", {"partial_rotary_factor": 0.5}, "whole heads to be rotated"),
        ("mistral4", {"partial_rotary_factor": 0.25}, "factor is 0.25, not 64 of 128 dimensions"),
        ("mistral4", {"rope_scaling": YARN | {"partial_rotary_factor": 1.0}}, "not 64 of 128"),
        ("mistral4", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', not softmax"),
        ("mistral4", {"n_routed_experts": 128, "n_group": 128}, "groups of 1 experts, at least 2"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, model_type, **changes)
