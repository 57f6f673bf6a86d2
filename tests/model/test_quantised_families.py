"""Folders in few bits of families whose tensors have names or sizes of their own."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.begun_states import begun_states
from tests.support.quantised_folders import FORMATS, SIZES, widened_folder, write_folder

CPU = torch.device("cpu")
EXPERTS = {"num_experts_per_tok": 2, "tie_word_embeddings": False}


def mimo(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {"head_dim": 32, "v_head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 64}
    kinds = ["full_attention", "sliding_attention"]
    config = transformers.MiMoV2FlashConfig(**SIZES, **EXPERTS, **own, layer_types=kinds)
    return transformers.MiMoV2FlashForCausalLM(config).eval()


def minimax_m3(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    text = {
        **SIZES,
        **EXPERTS,
        "intermediate_size": 64,
        "head_dim": 32,
        "rotary_dim": 16,
        "num_local_experts": 4,
        "dense_intermediate_size": 128,
        "shared_intermediate_size": 64,
        "mlp_layer_types": ["dense", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_block_size": 16,
        "index_topk_blocks": 2,
    }
    vision = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    config = transformers.MiniMaxM3VLConfig(
        text_config=text,
        vision_config={**vision, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
        projector_hidden_size=64,
    )
    return transformers.MiniMaxM3SparseForConditionalGeneration(config).eval()


def laguna(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {"head_dim": 32, "num_experts": 4, "moe_intermediate_size": 64, "gating": "per-element"}
    config = transformers.LagunaConfig(
        **SIZES,
        **EXPERTS,
        **own,
        shared_expert_intermediate_size=64,
        num_attention_heads_per_layer=[4, 6],
        layer_types=["full_attention", "sliding_attention"],
    )
    return transformers.LagunaForCausalLM(config).eval()


def step(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    text = {
        **SIZES,
        **EXPERTS,
        "head_dim": 32,
        "n_routed_experts": 4,
        "moe_intermediate_size": 64,
        "share_expert_dim": 64,
        "mlp_layer_types": ["dense", "sparse"],
        "swiglu_limits": [None, 0.3],
    }
    vision = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision |= {"image_size": 28, "patch_size": 14, "mlp_ratio": 2.0}
    config = transformers.Step3p7Config(text_config=text, vision_config=vision)
    return transformers.Step3p7ForConditionalGeneration(config).eval()


def lfm3(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    kinds = ["conv", "full_attention"]
    config = transformers.Lfm3Config(**SIZES, **ids, head_dim=32, layer_types=kinds)
    return transformers.Lfm3ForCausalLM(config).eval()


def logits(folder: Path) -> Tensor:
    runner = ModelRunner(
        load_model(folder, dtype=torch.float32, device=CPU), num_blocks=16, block_size=16
    )
    (slot,) = begun_states(runner, 1)
    step = SequenceInput(
        tokens=np.random.default_rng(0).integers(0, 256, 80, dtype=np.int32),
        start=0,
        block_table=np.arange(5, dtype=np.int32),
        num_logits=80,
        state_slot=slot,
    )
    return runner.run([step]).clone()


GATES = ("model.layers.0.self_attn.g_proj", "model.layers.1.self_attn.g_proj")
M3 = "language_model.model.layers"


@pytest.mark.parametrize(
    ("make", "form", "kept", "modules"),
    [
        (mimo, "fp8 blocks", ("lm_head", "model.layers.0.self_attn.o_proj"), 2 * 4 - 1 + 3 + 4 * 3),
        (mimo, "awq 32", ("lm_head", "model.layers.1.self_attn.v_proj"), 2 * 4 - 1 + 3 + 4 * 3),
        (laguna, "fp8 blocks", ("lm_head",), 2 * 5 + 3 + 5 * 3),
        (laguna, "packed 4 group 32", ("model.layers.1.self_attn.g_proj",), 2 * 5 - 1 + 3 + 5 * 3),
        (step, "fp8 blocks", (*GATES, "model.layers.1.moe.gate"), 2 * 4 + 3 * 3),
        (step, "fp8 tensor", (*GATES, "model.layers.1.moe.up_proj"), 2 * 4 + 3 * 3 - 1),
        (step, "nvfp4", GATES, 2 * 4 + 3 * 3),
        (minimax_m3, "fp8 blocks", (f"{M3}.1.self_attn.index_k_proj",), 2 * 4 + 1 + 3 * 6),
        (minimax_m3, "mxfp8", (f"{M3}.1.self_attn.index_k_proj",), 2 * 4 + 1 + 3 * 6),
        (minimax_m3, "packed 4 group 32", (f"{M3}.0.mlp.up_proj",), 2 * 4 + 2 + 3 * 6 - 1),
        (lfm3, "fp8 blocks", ("model.layers.1.self_attn.gate_proj",), 2 + 4 + 2 * 3),
        (lfm3, "gptq 8", ("model.layers.1.self_attn.gate_proj",), 2 + 4 + 2 * 3),
    ],
)
def test_a_folder_in_few_bits_computes_with_its_numbers(
    make: object, form: str, kept: tuple[str, ...], modules: int, tmp_path: Path
) -> None:
    assert callable(make)
    numbers = write_folder(tmp_path / "kept", FORMATS[form], seed=2, kept=kept, make=make)
    assert sum(".layers." in name and "vision" not in name for name in numbers) == modules
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide", make))
    found = logits(tmp_path / "kept")
    assert (found - plain).norm() <= 1e-4 * plain.norm()
