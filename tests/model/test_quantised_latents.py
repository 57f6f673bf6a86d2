"""Latent attention in few bits: folders as they are published, our own, and rows of the pool."""

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
LATENT = {
    **SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 32,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}


def deepseek_v3(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    config = transformers.DeepseekV3Config(**LATENT)
    return transformers.DeepseekV3ForCausalLM(config).eval()


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


def off(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("fp8 blocks", ("lm_head",)),
        ("fp8 compressed blocks", ("lm_head", "model.layers.0.self_attn.kv_b_proj")),
        ("packed 4 group 32", ("lm_head", "model.layers.1.self_attn.kv_a_proj_with_mqa")),
    ],
)
def test_a_folder_in_few_bits_computes_with_its_numbers(
    form: str, kept: tuple[str, ...], tmp_path: Path
) -> None:
    """As DeepSeek's, GLM's and Kimi's; rotated parts are reordered as codes, ``kv_b_proj`` is
    widened."""
    numbers = write_folder(tmp_path / "kept", FORMATS[form], seed=2, kept=kept, make=deepseek_v3)
    assert len(numbers) == 2 * 5 + 3 + 3 * (4 + 1) - (len(kept) - 1)
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide", deepseek_v3))
    assert off(logits(tmp_path / "kept"), plain) < 1e-5


def deepseek_v32(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {"index_topk": 20, "index_n_heads": 8, "index_head_dim": 64}
    config = transformers.DeepseekV32Config(**LATENT, **own)
    return transformers.DeepseekV32ForCausalLM(config).eval()


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32"])
def test_an_indexer_in_few_bits_chooses_by_its_numbers(form: str, tmp_path: Path) -> None:
    """Of its matrices two are in few bits, as DeepSeek's are; the heads' weights are not."""
    weights = [f"model.layers.{layer}.self_attn.indexer.weights_proj" for layer in range(2)]
    kept = ("lm_head", *weights)
    folder = tmp_path / "kept"
    numbers = write_folder(folder, FORMATS[form], seed=2, kept=kept, make=deepseek_v32)
    assert sum(".indexer." in name for name in numbers) == 2 * 2
    plain = logits(widened_folder(folder, numbers, tmp_path / "wide", deepseek_v32))
    assert off(logits(folder), plain) < 1e-5


def hy_v4(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {"index_topk": 20, "index_n_heads": 8, "index_head_dim": 64, "hc_mult": 2}
    own |= {"pad_token_id": 0}
    text = {name: value for name, value in LATENT.items() if "first_k" not in name}
    model = transformers.HYV4ForCausalLM(transformers.HYV4Config(**text, **own))
    return model.eval()


def axk1(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    return transformers.AXK1ForCausalLM(transformers.AXK1Config(**LATENT)).eval()


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32"])
def test_gates_of_latents_in_few_bits_weigh_by_their_numbers(form: str, tmp_path: Path) -> None:
    """Of Hy4's streams and indexers' weights nothing is in few bits."""
    inner = [f"model.layers.{layer}.self_attn.indexer.weights_proj" for layer in range(2)]
    folder = tmp_path / "kept"
    kept = ("lm_head", *inner)
    numbers = write_folder(folder, FORMATS[form], seed=2, kept=kept, make=hy_v4)
    assert sum("self_attn.linear_gate" in name for name in numbers) == 2
    plain = logits(widened_folder(folder, numbers, tmp_path / "wide", hy_v4))
    assert off(logits(folder), plain) < 1e-5


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32"])
def test_what_comes_of_experts_in_few_bits_is_normed(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    numbers = write_folder(folder, FORMATS[form], seed=2, kept=("lm_head",), make=axk1)
    plain = logits(widened_folder(folder, numbers, tmp_path / "wide", axk1))
    assert off(logits(folder), plain) < 1e-5


def glm5_next(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {"index_topk": 16, "index_kpool": 4, "index_n_heads": 8, "index_head_dim": 64}
    delta = {"linear_head_dim": 64, "linear_num_heads": 2}
    text = {name: value for name, value in LATENT.items() if "first_k" not in name}
    text |= {"qk_rope_head_dim": 0, "layer_types": ["linear_attention", "indexed_attention"]}
    text |= {"mlp_layer_types": ["dense", "sparse"], "pad_token_id": 0, **own, **delta}
    vision = {"depth": 0, "hidden_size": 8, "num_heads": 1, "intermediate_size": 8}
    vision |= {"projection_intermediate_size": 8, "out_hidden_size": 8}
    config = transformers.Glm5NextConfig(text_config=text, vision_config=vision)
    return transformers.Glm5NextForConditionalGeneration(config).eval()


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32"])
def test_pools_and_bound_decays_in_few_bits_compute_with_their_numbers(
    form: str, tmp_path: Path
) -> None:
    """Gates of pools are no matrix of a folder's; betas are too narrow for blocks."""
    folder, prefix = tmp_path / "kept", "model.language_model.layers"
    visual = [f"model.visual.merger.{part}_proj" for part in ("gate", "up", "down")]
    visual += ["model.visual.merger.proj", "model.visual.patch_embed.proj"]
    kept = ("lm_head", f"{prefix}.0.self_attn.b_proj", *visual)
    kept += (f"{prefix}.1.self_attn.indexer.weights_proj",)
    numbers = write_folder(folder, FORMATS[form], seed=2, kept=kept, make=glm5_next)
    assert sum(".indexer." in name for name in numbers) == 2
    plain = logits(widened_folder(folder, numbers, tmp_path / "wide", glm5_next))
    assert off(logits(folder), plain) < 1e-5


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.05), (4, 0.5)])
def test_our_own_few_bits_are_near(bits: WeightBits, limit: float) -> None:
    plain = logits("random:deepseek-v3-tiny", torch.bfloat16)
    narrow = logits("random:deepseek-v3-tiny", torch.bfloat16, bits)
    assert 0 < off(narrow, plain) < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_8_bits_are_near(dtype: torch.dtype) -> None:
    plain = logits("random:deepseek-v3-tiny")
    narrow = logits("random:deepseek-v3-tiny", dtype, kv=torch.int8)
    assert 0 < off(narrow, plain) < 0.05
