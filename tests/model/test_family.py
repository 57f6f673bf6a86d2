"""What the readers of families share, and each family's own fields: defaults and old spellings."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, LoadError, Router
from runtime.model.config_fields import Fields
from runtime.model.dense_families import DENSE_FAMILIES
from runtime.model.expert_families import EXPERT_FAMILIES
from runtime.model.family import (
    SWITCHED,
    read_corrected_router,
    read_layer_types,
    read_listed,
    rotated_dimensions,
)
from runtime.model.hf_config import read_model_config
from runtime.model.laguna_families import LAGUNA_FAMILIES
from runtime.model.mimo_families import MIMO_FAMILIES
from runtime.model.minimax_families import MINIMAX_FAMILIES
from runtime.model.more_dense_families import MORE_DENSE_FAMILIES
from runtime.model.solar_families import SOLAR_FAMILIES
from tests.support.config_folders import BASE, read_folder

WITH_EXPERTS = (
    *EXPERT_FAMILIES,
    *LAGUNA_FAMILIES,
    *MIMO_FAMILIES,
    *MINIMAX_FAMILIES,
    *SOLAR_FAMILIES,
)


@pytest.mark.parametrize("model_type", [*DENSE_FAMILIES, *MORE_DENSE_FAMILIES, *WITH_EXPERTS])
def test_every_family_reads_the_least_that_a_folder_says(model_type: str, tmp_path: Path) -> None:
    least = {"rope_scaling": LONGROPE} if model_type == "phi3" else {}
    config = read_folder(tmp_path, model_type, **least)
    assert config.model_type == model_type
    assert config.num_layers == 6
    assert any(isinstance(layer.feed_forward, Experts) for layer in config.layers) == (
        model_type in WITH_EXPERTS
    )


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"hidden_activation": "relu"}, "hidden_activation is 'relu', not gelu_py"),
        ("llama", {"logits_scaling": 2.0}, "logits_scaling is 2.0, not 1 or null"),
        ("llama", {"num_local_experts": 8}, "num_local_experts is 8"),
        ("mixtral", {"n_shared_experts": 1}, "n_shared_experts is 1"),
        ("llama", {"attention_value_scale": 0.7}, "attention_value_scale is 0.7, not 1 or null"),
        ("qwen3", {"use_attention_gate": True}, "use_attention_gate is True, not false or null"),
        ("qwen3", {"use_sandwich_norm": True}, "use_sandwich_norm is True, not false or null"),
        ("qwen3_moe", {"sparse_attention_config": {}}, "sparse_attention_config is {}, not null"),
        ("mistral", {"hybrid_layer_pattern": [0] * 6}, r"hybrid_layer_pattern is \[0, 0"),
        ("llama", {"add_swa_attention_sink_bias": True}, "add_swa_attention_sink_bias is True"),
        ("qwen3_moe", {"n_group": 4}, "n_group is 4"),
        ("granite", {"logits_scaling": 0}, "logits divided by 0"),
        ("granite", {"hidden_act": "gelu"}, "hidden_act is 'gelu', not silu"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, "not default or longrope"),
        ("phi3", {"partial_rotary_factor": 0.4}, "partial_rotary_factor is 0.4, not one that"),
        ("phi3", {"partial_rotary_factor": 3}, "partial_rotary_factor is 3.0, not one that"),
        ("phi3", {"partial_rotary_factor": 1e308}, r"partial_rotary_factor is 1e\+308, not one"),
        ("smollm3", {"partial_rotary_factor": 0.5}, "whole heads to be rotated"),
        ("glm4_moe", {"n_group": 3}, "128 experts are not in 3 equal groups"),
        ("glm4_moe", {"n_group": 128}, "groups of 1 experts"),
        ("glm4_moe", {"n_routed_experts": 1_000_000}, "n_routed_experts is 1000000, not at most"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size is 'set'"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm is False, not true"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit is 0.0, not a number above 0"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0, not 1.702"),
        ("gpt_oss", {"num_local_experts": 3}, "4 of 3 experts"),
        ("olmo3", {"layer_types": ["full_attention"]}, "layer_types is .*, not 6 of sliding_att"),
        ("olmo3", {"layer_types": [["x"]] * 6}, "layer_types is"),
        ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": 1}}, "original_max_position"),
    ],
)
def test_what_a_family_does_not_compute_is_refused_by_name(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        read_folder(tmp_path, model_type, **changes)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")
    assert "\n" not in str(caught.value)


def test_layers_without_types_have_the_familys_own() -> None:
    path = Path("config.json")
    assert read_layer_types(Fields(path, {}), [True, False]) == (True, False)
    spelled = {"layer_types": ["full_attention", "sliding_attention"]}
    assert read_layer_types(Fields(path, spelled), [True, False]) == (False, True)


def test_a_part_of_a_head_is_stated_in_either_place() -> None:
    path = Path("config.json")
    for whole, rope, rotated in (
        ({}, {}, 8),
        ({"partial_rotary_factor": 0.25}, {}, 4),
        ({"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 1}, 16),
    ):
        assert rotated_dimensions(Fields(path, whole), Fields(path, rope), 16, 0.5) == rotated


def test_a_router_with_a_correction_is_read_and_has_the_family_s_defaults() -> None:
    path = Path("c")
    assert read_corrected_router(Fields(path, {}), experts=64, scale=2.5) == Router(
        num_experts=64, per_token=8, scores="sigmoid", normalise=True, correction=True, scale=2.5
    )
    said: dict[str, Any] = {
        "num": 12,
        "n_routed_experts": 96,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
    }
    said |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
    read = read_corrected_router(
        Fields(path, said), "num", experts=64, per_token=2, scale=2.5, least_sum=1e-20
    )
    assert read == Router(
        num_experts=12,
        per_token=3,
        scores="sigmoid",
        normalise=False,
        correction=True,
        groups=4,
        chosen_groups=2,
        scale=1.5,
        least_sum=1e-20,
    )
    assert read_corrected_router(Fields(path, {}), experts=9, per_token=2).per_token == 2
    assert read_corrected_router(Fields(path, said), experts=9).num_experts == 96


@pytest.mark.parametrize("wrapper", ["mistral3", "gemma3", "llava"])
def test_a_wrapper_is_read_for_its_text_part(wrapper: str, tmp_path: Path) -> None:
    own = {"mistral3": "mistral", "gemma3": "gemma3_text", "llava": "llama"}[wrapper]
    alone = read_folder(tmp_path, own, tie_word_embeddings=True)
    text = BASE if wrapper != "llava" else {"model_type": own, **BASE}
    fields = {"model_type": wrapper, "tie_word_embeddings": True, "vision_config": {"x": 1}}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "text_config": text}))
    assert read_model_config(tmp_path) == alone


def test_a_wrapper_around_a_wrapper_is_refused(tmp_path: Path) -> None:
    text: dict[str, Any] = {"model_type": "llama", **BASE}
    for _ in range(10):
        text = {"model_type": "llava", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(text))
    with pytest.raises(LoadError, match=r"field text_config\.text_config is 'set', not absent"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": [1]}))
    with pytest.raises(LoadError, match=r"field text_config is \[1\], not an object"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "found", [None, "01", [0], [0, 1, 2], [0, 1, "1"], [0, 1, [1]], [0, 1, 0.0], {"0": 1}]
)
def test_a_list_for_the_layers_is_as_long_as_they_are_and_of_known_words(found: object) -> None:
    assert read_listed(Fields(Path("c"), {"a": [0, 1, True]}), "a", SWITCHED, 3) == [
        False,
        True,
        True,
    ]
    with pytest.raises(LoadError, match=r"field a is .*, not 3 of 0, 1"):
        read_listed(Fields(Path("c"), {"a": found}), "a", SWITCHED, 3)
