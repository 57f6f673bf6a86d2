"""Fields of families with latent attention; their arithmetic is ``test_family_parity``'s."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.model.batch import SequenceInput
from runtime.model.config import Experts, Gated, LoadError, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.latent import Indexer, Latent
from runtime.model.latent_families import LATENT_FAMILIES
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.config_folders import BASE, read_folder
from tests.support.family_shapes import SHAPES, make, save

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
    sparse = model_type in ("deepseek_v32", "glm_moe_dsa")
    assert group.shape == KVShape(rows=1, heads=1, size=row + 128 * sparse)
    assert config.top_k == (2048 if sparse else None)
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


def test_what_comes_of_axk1s_experts_is_normed(tmp_path: Path) -> None:
    config = read(tmp_path, "axk1")
    assert [layer.norms for layer in config.layers] == ["before", *["around_mlp"] * 5]
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.num_experts, experts.router.groups) == (192, 8)
    every = read(tmp_path, "axk1", moe_layer_freq=2, first_k_dense_replace=2)
    kinds = [isinstance(layer.feed_forward, Gated) for layer in every.layers]
    assert kinds == [True, True, False, True, False, True]
    listed = read(tmp_path, "axk1", mlp_layer_types=["sparse", "dense"] * 3)
    assert [layer.norms for layer in listed.layers] == ["around_mlp", "before"] * 3


def test_axk1_is_read_as_it_is_published(tmp_path: Path) -> None:
    """Without corrections, and with a norm in layers of one MLP too, which nothing is done with;
    or with the norm where ``transformers`` has it."""
    save(make("axk1", SHAPES["above"], seed=0), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    norm = "model.layers.0.post_mlp_layernorm.weight"
    assert norm not in tensors
    ends = ".gate.e_score_correction_bias"
    assert any(name.endswith(ends) for name in tensors)
    zero = {name: each * (not name.endswith(ends)) for name, each in tensors.items()}
    published = {name: each for name, each in zero.items() if not name.endswith(ends)}
    published[norm] = torch.full_like(tensors["model.norm.weight"], 7)
    moved = {name.replace("post_mlp", "mlp.post_mlp"): each for name, each in zero.items()}
    step = SequenceInput(
        tokens=np.arange(20, dtype=np.int32),
        start=0,
        block_table=np.arange(2, dtype=np.int32),
        num_logits=20,
    )
    found = []
    for own in (zero, published, moved):
        save_file(own, file, metadata={"format": "pt"})
        model = load_model(tmp_path, dtype=torch.float64, device=torch.device("cpu"))
        found.append(ModelRunner(model, num_blocks=4, block_size=16).run([step]).clone())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def shared_of(config: ModelConfig) -> str:
    """A letter for each layer: S takes another's choice."""
    indexers = [layer.mixer.indexer for layer in config.layers]
    return "".join("S" if each.shared else "F" for each in indexers)


def test_index_queries_are_rotated_as_the_family_does_it(tmp_path: Path) -> None:
    deepseek = mixer_of(read(tmp_path, "deepseek_v32")).indexer
    assert deepseek == Indexer(heads=64, dim=128, top_k=2048)
    glm = mixer_of(read(tmp_path, "glm_moe_dsa")).indexer
    assert glm == Indexer(heads=32, dim=128, top_k=2048, interleaved=True)
    turned = {"indexer_rope_interleave": False, "index_n_heads": 8, "index_head_dim": 64}
    other = mixer_of(read(tmp_path, "glm_moe_dsa", **turned, index_topk=9)).indexer
    assert other == Indexer(heads=8, dim=64, top_k=9)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, "FFFFFF"),
        ({"index_topk_freq": 2}, "FFSFSF"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "FFFSSS"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSFSS"),
        ({"index_topk_freq": 4, "index_topk_pattern": "FSFSSF"}, "FSFSSF"),
        ({"index_topk_pattern": ["full", "shared"] * 3}, "FSFSFS"),
        ({"indexer_types": ["full"] * 5 + ["shared"], "index_topk_pattern": "FSFSSF"}, "FFFFFS"),
    ],
)
def test_layers_that_take_anothers_choice_are_listed_or_counted(
    changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    assert shared_of(read(tmp_path, "glm_moe_dsa", **changes)) == found


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
        ("deepseek_v32", {"index_topk": 0}, "index_topk is 0, not a whole number of at least 1"),
        ("deepseek_v32", {"index_topk_freq": 4}, "index_topk_freq is 4, not 1 or null"),
        ("deepseek_v32", {"indexer_types": ["full"] * 6}, "indexer_types is .*, not null"),
        ("deepseek_v32", {"index_head_dim": 32}, "index keys of 32 numbers, of which 64 are rot"),
        ("deepseek_v32", {"index_head_dim": 1 << 21}, "index_head_dim is 2097152, not at most"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank is None, not a number: index queries"),
        ("deepseek_v32", {"rope_interleave": False}, "rope_interleave is False, not true"),
        ("deepseek_v32", {"mlp_layer_types": "dense"}, "mlp_layer_types is 'dense', not 6 of"),
        ("glm_moe_dsa", {"indexer_types": ["full"] * 5}, "indexer_types is .*, not 6 of full, sh"),
        ("glm_moe_dsa", {"indexer_types": ["full", []] * 3}, "not 6 of full, shared"),
        ("glm_moe_dsa", {"index_topk_pattern": "FSFSFX"}, "'FSFSFX', not 6 of F, S"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 6}, "the first layer shares a choice"),
        ("glm_moe_dsa", {"index_topk_freq": True}, "index_topk_freq is True, not a whole number"),
        ("glm_moe_dsa", {"indexer_rope_interleave": 1}, "indexer_rope_interleave is 1, not true"),
        ("glm_moe_dsa", {"index_kpool": 4}, "index_kpool is 4, not null: this model type"),
        ("glm_moe_dsa", {"mla_use_nope": True}, "mla_use_nope is True, not false or null"),
        ("axk1", {"q_lora_rank": None}, "q_lora_rank is None, not a number: queries come from"),
        ("axk1", {"mlp_layer_types": ["moe"] * 6}, "mlp_layer_types is .*, not 6 of dense"),
        ("axk1", {"topk_method": "greedy"}, "topk_method is 'greedy', not noaux_tc"),
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
