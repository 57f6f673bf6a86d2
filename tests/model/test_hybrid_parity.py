"""Hybrid families' logits beside those of ``transformers``, in float64."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.model.test_family_parity import scores_in_float64
from tests.support.family_shapes import SHAPES, VOCABULARY, Shape, disturbed, save

CPU = torch.device("cpu")
PROMPTS = (1, 63, 64, 65, 150, 700)
LIMIT = 1e-5
CLASSES = {
    "lfm2": "Lfm2",
    "lfm2_moe": "Lfm2Moe",
    "lfm3": "Lfm3",
    "qwen3_next": "Qwen3Next",
    "qwen3_5_text": "Qwen3_5Text",
    "qwen3_5_moe_text": "Qwen3_5MoeText",
    "granitemoehybrid": "GraniteMoeHybrid",
    "nemotron_h": "NemotronH",
    "kimi_linear": "KimiLinear",
    "glm5_next": "Glm5Next",
    "olmo_hybrid": "OlmoHybrid",
    "bailing_hybrid": "BailingHybrid",
}
DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


KIMI = ("kimi_linear", "glm5_next")
MAMBA = ("granitemoehybrid", "nemotron_h")
ALWAYS = {("qwen3_next", "below"), ("qwen3_5_text", "above"), ("qwen3_5_moe_text", "uneven")} | {
    ("granitemoehybrid", "above"),
    ("nemotron_h", "below"),
    ("kimi_linear", "below"),
    ("kimi_linear", "uneven"),
    ("glm5_next", "below"),
    ("glm5_next", "above"),
    ("olmo_hybrid", "uneven"),
    ("bailing_hybrid", "below"),
    ("bailing_hybrid", "above"),
}
CASES = [
    pytest.param(family, shape, marks=[] if always else pytest.mark.slow)
    for family in CLASSES
    for shape in SHAPES
    for always in [
        family not in (*DELTA, *MAMBA, *KIMI, "olmo_hybrid", "bailing_hybrid")
        or (family, shape) in ALWAYS
    ]
]


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """In float64, in the place of those of ``transformers``, which compute in float32 whatever the
    model is in and differ from themselves by 2e-4 where a prompt is cut."""
    shared = value.shape[2] // key.shape[2]
    query, key = (each / (each.square().sum(-1, True) + 1e-6).sqrt() for each in (query, key))
    query, key = (each.repeat_interleave(shared, 2) for each in (query, key))
    state = value.new_zeros(len(value), value.shape[2], key.shape[3], value.shape[3])
    mixed = []
    for at in range(value.shape[1]):
        kept = g[:, at].double().exp()
        state = state * (kept[..., None] if kept.dim() == 3 else kept[..., None, None])
        known = torch.einsum("bhk,bhkv->bhv", key[:, at], state)
        corrected = beta[:, at, :, None] * (value[:, at] - known)
        state = state + key[:, at, :, :, None] * corrected[:, :, None, :]
        mixed.append(torch.einsum("bhk,bhkv->bhv", query[:, at] / key.shape[3] ** 0.5, state))
    return torch.stack(mixed, 1), None


def fields(family: str, shape: Shape) -> dict[str, Any]:
    if family == "kimi_linear":
        return kimi_fields(shape)
    if family == "glm5_next":
        return glm_fields(shape)
    if family == "olmo_hybrid":
        return olmo_fields(shape)
    if family == "bailing_hybrid":
        return ling_fields(shape)
    if family == "granitemoehybrid":
        return mamba_fields(shape)
    if family == "nemotron_h":
        return nemotron_fields(shape)
    if family == "lfm3":
        return lfm3_fields(shape)
    return delta_fields(family, shape) if family in DELTA else conv_fields(family, shape)


def lfm3_fields(shape: Shape) -> dict[str, Any]:
    kinds = ["sliding_attention", "conv", "full_attention", "conv", "sliding_attention"]
    return {
        "layer_types": kinds[: shape.layers],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 9000.0,
                "partial_rotary_factor": 0.5 if shape.tied else 0.4,
            },
        },
        "head_dim": 20,
        "sliding_window": shape.window,
        "conv_bias": shape.tied,
        "conv_L_cache": 7 - (shape.layers == 5),
        "use_sandwich_norm": shape.layers != 3,
        "use_attention_gate": shape.layers != 5,
        "attention_bias": shape.tied,
    }


def nemotron_fields(shape: Shape) -> dict[str, Any]:
    kinds = ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]
    return {
        "layers_block_type": kinds[: shape.layers] + ["moe"] * shape.tied,
        "head_dim": shape.head_dim,
        "mlp_bias": shape.tied,
        "mamba_num_heads": 6,
        "mamba_head_dim": 10 + shape.layers,
        "n_groups": {4: 2, 3: 1, 5: 3}[shape.layers],
        "ssm_state_size": 10,
        "conv_kernel": 4 - shape.tied,
        "use_conv_bias": shape.layers != 3,
        "use_bias": shape.layers == 5,
        "time_step_min": 0.3,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 2,
        "topk_group": 1 + shape.tied,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 20,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": not shape.tied,
        "tie_word_embeddings": False,
    }


def kimi_fields(shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    kinds = [
        "full_attention" if each in attends else "linear_attention" for each in range(shape.layers)
    ]
    return {
        "layer_types": kinds,
        "mlp_layer_types": [
            "dense" if each in (0, shape.kv_heads) else "sparse" for each in range(shape.layers)
        ],
        "num_key_value_heads": shape.heads,
        "kv_lora_rank": 2 * shape.head_dim + 2,
        "q_lora_rank": 20 if shape.heads == 5 else None,
        "qk_nope_head_dim": shape.head_dim,
        "qk_rope_head_dim": 6 if shape.tied else 8,
        "v_head_dim": shape.head_dim + 3,
        "attention_bias": shape.tied,
        "linear_head_dim": 10 + shape.layers,
        "linear_num_heads": 1 + shape.layers % 3,
        "linear_conv_kernel_dim": 4 - shape.tied,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4 if shape.tied else 2,
        "topk_group": 2,
        "n_shared_experts": 1 + shape.tied,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": not shape.tied,
        "tie_word_embeddings": False,
    }


def ling_fields(shape: Shape) -> dict[str, Any]:
    kimi = kimi_fields(shape)
    own = {name: value for name, value in kimi.items() if not name.startswith("linear_")}
    stretched = {"mscale": 1.0, "mscale_all_dim": 0.7}
    return {
        **own,
        "attention_bias": False,
        "rope_parameters": {**shape.rope, **(stretched if shape.tied else {})},
        "head_dim": 10 + shape.layers,
        "short_conv_kernel_size": 4 - shape.tied,
        "kda_safe_gate": shape.layers != 3,
        "kda_lower_bound": -2.5,
        "pad_token_id": 0,
    }


def olmo_fields(shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    nowhere = {"rope_type": "default", "rope_theta": None}
    return {
        "layer_types": [
            "full_attention" if each in attends else "linear_attention"
            for each in range(shape.layers)
        ],
        "rope_parameters": nowhere if shape.layers == 5 else shape.rope,
        "attention_bias": shape.tied,
        "linear_num_key_heads": 1 + shape.layers % 2,
        "linear_num_value_heads": 2 * (1 + shape.layers % 2),
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 14,
        "linear_conv_kernel_dim": 4 - shape.tied,
        "linear_allow_neg_eigval": not shape.tied,
        "pad_token_id": 0,
    }


def glm_fields(shape: Shape) -> dict[str, Any]:
    """Choices of few pools and of more than there are."""
    kimi = kimi_fields(shape)
    attends = "indexed_attention"
    kinds = [attends if kind == "full_attention" else kind for kind in kimi["layer_types"]]
    return {
        **{name: value for name, value in kimi.items() if name != "num_local_experts"},
        "layer_types": kinds,
        "n_routed_experts": 8,
        "q_lora_rank": 20,
        "qk_rope_head_dim": 0,
        "attention_bias": False,
        "swiglu_limit": 0.7,
        "linear_lower_bound": -5.0 if shape.tied else -1.5,
        "index_topk": {4: 40, 3: 30, 5: 640}[shape.layers],
        "index_kpool": {4: 8, 3: 5, 5: 16}[shape.layers],
        "index_head_dim": 10 + 2 * shape.tied,
        "index_n_heads": 16,
        "hc_mult": 4 if shape.tied else 3,
        "hc_sinkhorn_iters": 3 + shape.layers,
        "pad_token_id": 0,
    }


def mamba_fields(shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    heads = 3 * shape.kv_heads + (shape.layers == 4) * 3
    return {
        "layer_types": [
            "full_attention" if each in attends else "linear_attention"
            for each in range(shape.layers)
        ],
        "rope_parameters": shape.rope,
        "position_embedding_type": "rope" if shape.layers == 3 else None,
        "attention_bias": shape.tied,
        "mamba_n_heads": heads if shape.layers != 3 else 5,
        "mamba_n_groups": {4: 2, 3: 1, 5: 3}[shape.layers],
        "mamba_d_state": 10,
        "mamba_d_conv": 4 - shape.tied,
        "mamba_conv_bias": shape.layers != 3,
        "mamba_proj_bias": False,
        "mamba_chunk_size": 32,
        "shared_intermediate_size": 40,
        "num_local_experts": 0 if shape.tied else 7,
        "num_experts_per_tok": 3,
        "time_step_limit": (0.01, 2.0) if shape.layers == 5 else (0.0, float("inf")),
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
    }


def delta_fields(family: str, shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    kinds = [
        "full_attention" if each in attends else "linear_attention" for each in range(shape.layers)
    ]
    own = {
        "layer_types": kinds,
        "rope_parameters": {**shape.rope, "partial_rotary_factor": 0.5},
        "head_dim": 12,
        "attention_bias": shape.tied,
        "linear_num_key_heads": 1 + shape.layers % 2,
        "linear_num_value_heads": 2 * (1 + shape.layers % 2) + 2 * shape.tied,
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 14,
        "linear_conv_kernel_dim": 4 - shape.tied,
    }
    if family == "qwen3_5_text":
        return own
    own |= {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
    }
    if family == "qwen3_next":
        own |= {"norm_topk_prob": not shape.tied, "mlp_only_layers": [1] if shape.tied else []}
    return own


def conv_fields(family: str, shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    kinds = ["full_attention" if each in attends else "conv" for each in range(shape.layers)]
    own = {
        "layer_types": kinds,
        "rope_parameters": shape.rope,
        "conv_bias": shape.tied,
        "conv_L_cache": 3 + (shape.layers == 5),
    }
    if family == "lfm2":
        return own | {"block_auto_adjust_ff_dim": not shape.tied, "block_multiple_of": 8}
    return own | {
        "num_dense_layers": 1,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": not shape.tied,
        "use_expert_bias": shape.layers != 3,
    }


def random_model(family: str, shape: Shape, seed: int) -> transformers.PreTrainedModel:
    name = CLASSES[family]
    given = {**shape.fields, **fields(family, shape)}
    if family == "qwen3_5_moe_text":
        del given["intermediate_size"]
    if family == "nemotron_h":
        del given["num_hidden_layers"]
    if family == "glm5_next":
        return glm_model(given, seed)
    config = getattr(transformers, f"{name}Config")(**given)
    config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    name = name.removesuffix("Text")
    return disturbed(getattr(transformers, f"{name}ForCausalLM")(config).eval(), seed)


def glm_model(given: dict[str, Any], seed: int) -> transformers.PreTrainedModel:
    """With a small part for images, which nobody asks."""
    vision = {"depth": 1, "hidden_size": 8, "num_heads": 1, "intermediate_size": 8}
    config = transformers.Glm5NextConfig(
        text_config=given,
        vision_config={**vision, "projection_intermediate_size": 8, "out_hidden_size": 8},
        tie_word_embeddings=False,
    )
    config._attn_implementation = "eager"
    config.text_config._experts_implementation = "eager"
    return disturbed(transformers.Glm5NextForConditionalGeneration(config).eval(), seed)


RULES = {
    **dict.fromkeys(
        (*DELTA, "olmo_hybrid"),
        ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    ),
    "bailing_hybrid": ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    "glm5_next": ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    "kimi_linear": ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
}


def in_float64(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = family.removesuffix("_text")
    for rule in RULES.get(family, ()):
        monkeypatch.setattr(f"transformers.models.{name}.modeling_{name}.{rule}", delta_rule)


@pytest.mark.parametrize(("family", "shape"), CASES)
@pytest.mark.samples(2)
def test_logits_of_a_hybrid_are_those_of_transformers(
    family: str,
    shape: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole prompts, and in two chunks of which the second begins where the first has left the
    state. Angles are in float32 as in ``transformers``."""
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    in_float64(family, monkeypatch)
    seed = request.config.getoption("--seed")
    compare(random_model(family, SHAPES[shape], seed), tmp_path, seed)


def test_logits_of_a_wrappers_text_part_are_those_of_transformers(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    seed = request.config.getoption("--seed")
    text = random_model("lfm3", SHAPES["below"], seed).config
    part = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 1}
    config = transformers.Lfm3VlConfig(
        text_config=text.to_dict(),
        vision_config={**part, "num_key_value_heads": 1, "intermediate_size": 8, "patch_size": 4},
        projector_hidden_size=8,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    model = transformers.Lfm3VlForConditionalGeneration(config).eval()
    compare(disturbed(model, seed), tmp_path, seed)


def compare(model: transformers.PreTrainedModel, folder: Path, seed: int) -> None:
    save(model, folder)
    model.double()
    scores_in_float64(model)
    ours = load_model(folder, dtype=torch.float64, device=CPU)
    runner = ModelRunner(ours, num_blocks=45, block_size=16)
    runner.hold_states(slots=2, rings=2)
    assert runner.states is not None
    table = np.arange(45, dtype=np.int32)[::-1].copy()
    for length in PROMPTS:
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int32)
        with torch.inference_mode():
            expected = model(torch.from_numpy(tokens).long()[None], use_cache=False).logits[0]
        for cut in {0, length // 2}:
            runner.states.begin(1, source=None, position=0)
            found = [
                runner.run(
                    [
                        SequenceInput(
                            tokens=tokens[start:end],
                            start=start,
                            block_table=table,
                            num_logits=end - start,
                            state_slot=1,
                        )
                    ]
                ).clone()
                for start, end in ((0, cut), (cut, length))
                if end > start
            ]
            runner.states.end(1, position=None)
            difference = (torch.cat(found) - expected).norm() / expected.norm()
            assert difference <= LIMIT, f"{length} tokens, cut at {cut}, seed {seed}"


@pytest.mark.parametrize("family", CLASSES)
def test_a_list_of_layers_that_contradicts_the_tensors_is_named(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the layer and a tensor that it would have to have, whichever two are exchanged."""
    seed = request.config.getoption("--seed")
    save(random_model(family, next(iter(SHAPES.values())), seed), tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    own = written.get("text_config", written)
    name = next(each for each in ("layer_types", "layers_block_type") if each in own)
    kinds = own[name]
    load_model(tmp_path, dtype=torch.float32, device=CPU)
    for first in range(len(kinds) - 1):
        if kinds[first] == kinds[first + 1]:
            continue
        swapped = [*kinds[:first], kinds[first + 1], kinds[first], *kinds[first + 2 :]]
        changed = {**own, name: swapped}
        changed = {**written, "text_config": changed} if own is not written else changed
        path.write_text(json.dumps(changed))
        with pytest.raises(LoadError, match=rf"layers\.{first}\."):
            load_model(tmp_path, dtype=torch.float32, device=CPU)
