"""Gated delta nets in few bits: folders as they are published, our own, and keys and values."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from runtime.model.batch import SequenceInput
from runtime.model.layers import WeightBits
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.quantised_folders import FORMATS, SIZES, widened_folder, write_folder

CPU = torch.device("cpu")
KINDS = ["linear_attention", "full_attention"]
DELTA = {
    **SIZES,
    "head_dim": 32,
    "layer_types": KINDS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "tie_word_embeddings": False,
}


def qwen3_5(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    config = transformers.Qwen3_5TextConfig(**DELTA)
    return transformers.Qwen3_5ForCausalLM(config).eval()


def qwen3_next(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config = transformers.Qwen3NextConfig(
        **DELTA, **experts, shared_expert_intermediate_size=64, mlp_only_layers=[0]
    )
    return transformers.Qwen3NextForCausalLM(config).eval()


def kimi_linear(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "mlp_layer_types": ["dense", "sparse"],
        "linear_num_heads": 4,
        "linear_head_dim": 32,
    }
    ends = {f"{name}_token_id": None for name in ("pad", "bos", "eos")}
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    config = transformers.KimiLinearConfig(**sizes, **own, **ends, layer_types=KINDS)
    return transformers.KimiLinearForCausalLM(config).eval()


def logits(
    model: str | Path,
    dtype: torch.dtype = torch.float32,
    bits: WeightBits = 16,
    kv: torch.dtype | None = None,
) -> Tensor:
    loaded = load_model(model, dtype=dtype, device=CPU, bits=bits)
    runner = ModelRunner(loaded, num_blocks=16, block_size=16, kv_dtype=kv)
    tokens = np.random.default_rng(0).integers(0, 256, 80, dtype=np.int32)
    table = np.arange(5, dtype=np.int32)
    step = SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=80)
    return runner.run([step]).clone()


@pytest.mark.parametrize(
    ("form", "make", "modules"), [("fp8 blocks", qwen3_5, 12), ("awq 32", qwen3_next, 24)]
)
def test_a_folder_in_few_bits_computes_with_its_numbers(
    form: str, make: object, modules: int, tmp_path: Path
) -> None:
    """Projections that are kept together, in order or head by head, are taken apart as codes."""
    assert callable(make)
    paces = [f"model.layers.0.linear_attn.in_proj_{part}" for part in ("a", "b", "ba")]
    kept = "lm_head", "model.layers.0.linear_attn.in_proj_z", *paces
    numbers = write_folder(tmp_path / "kept", FORMATS[form], seed=2, kept=kept, make=make)
    assert len(numbers) == modules
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide", make))
    found = logits(tmp_path / "kept")
    assert float((found - plain).norm() / plain.norm()) < 1e-5


@pytest.mark.parametrize(("form", "modules"), [("awq 32", 30), ("packed 4 group 32", 31)])
def test_decays_by_channel_in_few_bits_are_those_of_their_numbers(
    form: str, modules: int, tmp_path: Path
) -> None:
    """Both steps that decays and gates come in are codes, with betas between them or without."""
    betas = () if form == "packed 4 group 32" else ("model.layers.0.self_attn.b_proj",)
    folder = tmp_path / "kept"
    kept = "lm_head", *betas
    numbers = write_folder(folder, FORMATS[form], seed=2, kept=kept, make=kimi_linear)
    assert len(numbers) == modules
    plain = logits(widened_folder(folder, numbers, tmp_path / "wide", kimi_linear))
    found = logits(folder)
    assert float((found - plain).norm() / plain.norm()) < 1e-5


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.05), (4, 0.5)])
@pytest.mark.parametrize("model", ["random:qwen3.5-tiny", "random:kimi-linear-tiny"])
def test_our_own_few_bits_are_near(model: str, bits: WeightBits, limit: float) -> None:
    plain = logits(model, torch.bfloat16)
    narrow = logits(model, torch.bfloat16, bits)
    assert float((narrow - plain).norm() / plain.norm()) < limit


def test_keys_and_values_in_8_bits_are_near() -> None:
    plain, narrow = (logits("random:qwen3.5-tiny", kv=kv) for kv in (None, torch.int8))
    assert not torch.equal(narrow, plain)
    assert float((narrow - plain).norm() / plain.norm()) < 0.05
