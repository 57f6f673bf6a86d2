"""Folders of Kimi Linear, as published and as saved: what is read, and what is refused by name."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from runtime.model.checkpoint import Checkpoint
from runtime.model.config import Experts, Gated, LoadError, ModelConfig
from runtime.model.family_weights import FamilyWeights
from runtime.model.hf_config import read_model_config
from runtime.model.kimi_families import KIMI_FAMILIES
from runtime.model.latent import Latent
from runtime.model.recurrent import KimiDelta
from runtime.model.weights import load_model
from tests.support.config_folders import read_folder
from tests.support.family_shapes import disturbed, save

LISTS = {"full_attn_layers": [4, 6], "kda_layers": [1, 2, 3, 5]}
LINEAR: dict[str, Any] = {
    **LISTS,
    "head_dim": 128,
    "num_heads": 32,
    "short_conv_kernel_size": 4,
}
PUBLISHED: dict[str, Any] = {
    "model_type": "kimi_linear",
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": LINEAR,
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
"""As of the published folder, but for its 27 layers."""
KINDS = [
    "full_attention" if each in LISTS["full_attn_layers"] else "linear_attention"
    for each in range(1, 7)
]
MLPS = ["dense", *["sparse"] * 5]


def read(folder: Path, *left_out: str, **changes: Any) -> ModelConfig:
    given = {name: value for name, value in PUBLISHED.items() if name not in left_out}
    (folder / "config.json").write_text(json.dumps({**given, **changes}))
    return read_model_config(folder)


def test_a_published_folder_is_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert set(KIMI_FAMILIES) == {"kimi_linear"}
    assert config.recurrent == (KimiDelta(heads=32, head_dim=128, taps=4),) * 4
    latent = Latent(
        heads=32,
        rank=512,
        plain_dim=128,
        rotary_dim=64,
        value_dim=128,
        rope=None,
        interleaved=False,
    )
    assert config.attention == (latent,) * 2
    attending = [isinstance(layer.mixer, Latent) for layer in config.layers]
    assert attending == [kind == "full_attention" for kind in KINDS]
    assert [isinstance(each.feed_forward, Gated) for each in config.layers] == [True] + [False] * 5
    experts = config.layers[-1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=1024)
    assert (experts.router.num_experts, experts.router.per_token) == (256, 8)
    assert (experts.router.scores, experts.router.correction) == ("sigmoid", True)
    assert (experts.router.scale, experts.router.normalise) == (2.446, True)
    assert (config.max_context_tokens, config.norm_eps) == (1048576, 1e-5)


def test_a_folder_that_was_saved_says_the_same_in_other_words(tmp_path: Path) -> None:
    published = read(tmp_path)
    saved = {
        "layer_types": KINDS,
        "mlp_layer_types": MLPS,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
        "qk_head_dim": 192,
        "pretraining_tp": 1,
    }
    left_out = "linear_attn_config", "first_k_dense_replace", "moe_layer_freq", "mla_use_nope"
    assert read(tmp_path, *left_out, **saved) == published
    older = {
        "max_position_embeddings": 1048576,
        "norm_topk_prob": True,
        "n_group": 1,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
    }
    left_out = "model_max_length", "moe_renormalize", "num_expert_group", "num_experts"
    left_out = *left_out, "num_experts_per_token", "num_shared_experts"
    assert read(tmp_path, *left_out, **older) == published


def test_what_is_left_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    """But for the layers: of these the lists are left out."""
    sizes = {name: LINEAR[name] for name in LINEAR if name not in LISTS}
    config = read(tmp_path, linear_attn_config=sizes)
    default = transformers.KimiLinearConfig(num_hidden_layers=6).layer_types
    kinds = [isinstance(layer.mixer, Latent) for layer in config.layers]
    assert kinds == [kind == "full_attention" for kind in default]
    needed = "model_type", "num_hidden_layers", "hidden_size", "vocab_size"
    least = read(tmp_path, *(name for name in PUBLISHED if name not in needed))
    assert least == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope is False, not true"),
        ({"moe_router_activation_func": "softmax"}, "activation_func is 'softmax', not sigmoid"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, not 1"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, not 32, like num_attention"),
        ({"use_grouped_topk": False, "num_expert_group": 4}, "use_grouped_topk is False, not true"),
        ({"hidden_act": "situ"}, "hidden_act is 'situ', not silu"),
        ({"num_experts": 8, "num_local_experts": 4}, "num_local_experts is 4, not 8, like num_"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False, not True, like moe_renormalize"),
        ({"num_experts": 4}, "8 of 4 experts"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate is True, not false or null"),
        ({"attn_res_block_size": 12}, "attn_res_block_size is 12, not null"),
        ({"routed_expert_hidden_size": 64}, "routed_expert_hidden_size is 64, not null"),
        ({"latent_moe_use_norm": True}, "latent_moe_use_norm is True, not false"),
        ({"index_topk": 2048}, "index_topk is 2048, not null"),
        ({"qk_rope_head_dim": 7}, "7 dimensions are rotated"),
        ({"layer_types": ["linear_attention"]}, "layer_types is .*, not 6 of full_attention"),
        ({"layer_types": KINDS[::-1]}, "layer_types is .*, not as linear_attn_config"),
        ({"mlp_layer_types": ["moe"] * 6}, "mlp_layer_types is .*, not 6 of dense, sparse"),
        ({"linear_attn_config": [4]}, r"linear_attn_config is \[4\], not an object"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 0}, r"linear_attn_config\.head_dim is 0, not a whole number"),
        ({"num_heads": True}, r"linear_attn_config\.num_heads is True, not a whole"),
        ({"short_conv_kernel_size": 1}, "a convolution over 1 tokens, 2 to 16 are served"),
        ({"gate_lower_bound": -5.0}, r"linear_attn_config\.gate_lower_bound is -5.0, not absent"),
        ({"full_attn_layers": [0, 6]}, r"kda_layers is \[1, 2, 3, 5\], not the layers from 1 to 6"),
        ({"kda_layers": [1, 2, 3]}, r"kda_layers is \[1, 2, 3\], not the layers from 1 to 6"),
        ({"kda_layers": [1, 2, 3, 4, 5]}, "kda_layers is .*, not the layers from 1 to 6"),
        ({"kda_layers": None}, "kda_layers is None, not a list of layer numbers"),
        ({"full_attn_layers": ["4", 6]}, "full_attn_layers is .*, not a list of layer numbers"),
        (
            {"full_attn_layers": [], "kda_layers": [1, 2, 3, 4, 5, 6]},
            "a model without a layer of attention",
        ),
    ],
)
def test_what_is_wrong_of_recurrent_layers_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, linear_attn_config=LINEAR | changes)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "qwen3_next", "llama"])
def test_other_families_refuse_kimis_layers(model_type: str, tmp_path: Path) -> None:
    heads = {"num_key_value_heads": 8, "num_attention_heads": 8}
    read_folder(tmp_path, model_type, num_experts_per_tok=4, **heads)
    with pytest.raises(LoadError, match=r"linear_attn_config is .* computes without it"):
        read_folder(tmp_path, model_type, num_experts_per_tok=4, linear_attn_config=LINEAR, **heads)


def test_mlps_without_experts_are_found_under_either_name(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """``transformers`` saves them as those of layers with experts, Moonshot does not."""
    config = transformers.KimiLinearConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=12,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        linear_head_dim=8,
        linear_num_heads=2,
        num_local_experts=4,
        num_experts_per_token=2,
        moe_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    seed = request.config.getoption("--seed")
    save(disturbed(transformers.KimiLinearForCausalLM(config).eval(), seed), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors, saved = load_file(path), "layers.0.block_sparse_moe."
    assert any(saved in name for name in tensors)
    assert any("layers.1.block_sparse_moe.experts.3.w1.weight" in name for name in tensors)
    cpu, found = torch.device("cpu"), []
    for published in (False, True):
        if published:
            renamed = {name.replace(saved, "layers.0.mlp."): each for name, each in tensors.items()}
            save_file(renamed, path, metadata={"format": "pt"})
        config = load_model(tmp_path, dtype=torch.float32, device=cpu).config
        with contextlib.closing(Checkpoint(tmp_path, torch.float32, cpu)) as stored:
            weights = FamilyWeights(stored, KIMI_FAMILIES["kimi_linear"].names, config)
            found.append(weights.tensor("model.layers.0.mlp.up_proj.weight", (40, 32)))
    assert torch.equal(*found)
    save_file({**renamed, "model.layers.1.mlp.up_proj.weight": torch.ones(1)}, path)
    with pytest.raises(LoadError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(tmp_path, dtype=torch.float32, device=cpu)
