"""Folders of hybrids, and of attention that is gated or normed over all heads, among several ranks:
as they are published, with what they keep together and with every bias, in float64.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from runtime.config import EngineConfig
from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.cut_weights import CutWeights
from runtime.model.runner import load_runner
from runtime.process.model_report import model_report
from tests.model.test_quantised_hybrids import qwen3_5, qwen3_next
from tests.model.test_ranks import FINE, loaded
from tests.support.family_shapes import VOCABULARY, disturbed, save
from tests.support.quantised_folders import FORMATS, write_folder
from tests.support.thread_ranks import thread_ranks

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
CONVOLUTIONS = ["conv", "full_attention", "conv", "full_attention"]
DELTA = {
    "layer_types": MIXED,
    "head_dim": 16,
    "attention_bias": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
}
MAMBA = {
    "layer_types": MIXED,
    "attention_bias": True,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 10,
    "mamba_conv_bias": True,
    "mamba_proj_bias": True,
    "shared_intermediate_size": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "head_dim": 16,
    "mlp_bias": True,
    "mamba_num_heads": 8,
    "mamba_head_dim": 10,
    "n_groups": 4,
    "ssm_state_size": 10,
    "use_bias": True,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 20,
}
KIMI = {
    "layer_types": MIXED,
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
    "num_key_value_heads": 4,
    "kv_lora_rank": 22,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 13,
    "attention_bias": True,
    "linear_head_dim": 12,
    "linear_num_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {"layer_types": CONVOLUTIONS, "conv_bias": True}),
    "lfm2_moe": (
        "Lfm2Moe",
        {**EXPERTS, "layer_types": CONVOLUTIONS, "num_dense_layers": 1, "conv_bias": True},
    ),
    "qwen3_next": ("Qwen3Next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 20}),
    "qwen3_5_text": ("Qwen3_5Text", DELTA),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 20},
    ),
    "granitemoehybrid": ("GraniteMoeHybrid", MAMBA),
    "nemotron_h": ("NemotronH", NEMOTRON),
    "kimi_linear": ("KimiLinear", KIMI),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "olmo3": ("Olmo3", {"sliding_window": 17}),
    "minimax_m2": (
        "MiniMaxM2",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


def model_of(family: str, seed: int) -> transformers.PreTrainedModel:
    """A random model of which nothing is as it was first set."""
    name, own = FAMILIES[family]
    given = {**SIZES, **own}
    without = {"qwen3_5_moe_text": "intermediate_size", "nemotron_h": "num_hidden_layers"}
    given.pop(without.get(family, ""), None)
    config = getattr(transformers, f"{name}Config")(**given)
    name = name.removesuffix("Text")
    return disturbed(getattr(transformers, f"{name}ForCausalLM")(config).eval(), seed)


def config_of(model: Path, ranks: int, **more: object) -> EngineConfig:
    settings: dict[str, object] = {"dtype": "float64", "device": "cpu", "threads": 1} | more
    settings |= {"max_running": 4, "num_blocks": 64, "tensor_parallel": ranks}
    return EngineConfig(model=str(model), **settings)  # type: ignore[arg-type]


def logits_of(config: EngineConfig) -> Tensor:
    """Of 150 tokens, and of 5 others beside them."""
    runner = loaded(config)
    rng = np.random.default_rng(3)
    step = [
        SequenceInput(
            tokens=rng.integers(0, 256, count).astype(np.int32),
            start=0,
            block_table=np.arange(first, first + 16, dtype=np.int32),
            num_logits=count,
        )
        for first, count in ((0, 150), (16, 5))
    ]
    try:
        return runner.run(step).clone()
    finally:
        runner.close()


def compared(model: Path, ranks: int, *, within: float = FINE, **more: object) -> None:
    alone = logits_of(config_of(model, 1, **{k: v for k, v in more.items() if k == "dtype"}))
    found = logits_of(config_of(model, ranks, **more))
    assert float(alone.abs().max()) > 0.1
    assert (found - alone).abs().max() <= within * alone.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_cut_into_two_and_four(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Heads of keys, groups and the one group of all are on several of four ranks."""
    save(model_of(family, request.config.getoption("--seed")), tmp_path)
    compared(tmp_path, 2, expert_parallel=family in ("qwen3_next", "nemotron_h", "kimi_linear"))
    compared(tmp_path, 4)


@pytest.mark.parametrize(
    ("form", "make", "left"),
    [
        ("fp8 blocks", qwen3_5, ("ba",)),
        ("packed 4 zeros", qwen3_5, ("ba",)),
        ("awq 32", qwen3_next, ("ba",)),
        ("packed 4 group 32", qwen3_next, ("ba",)),
    ],
)
def test_gated_delta_nets_in_few_bits_are_cut_into_two(
    form: str, make: Callable[[int], Any], left: tuple[str, ...], tmp_path: Path
) -> None:
    """Codes that are kept together, in order or head by head, are taken apart before."""
    kept = tuple(f"model.layers.0.linear_attn.in_proj_{part}" for part in ("a", "b", *left))
    write_folder(tmp_path, FORMATS[form], seed=3, kept=("lm_head", *kept), make=make)
    compared(tmp_path, 2)


def few_bits(family: str) -> Callable[[int], Any]:
    """A model of sizes that formats have groups for."""
    wide = {
        "hidden_size": 128,
        "intermediate_size": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_d_state": 32,
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "ssm_state_size": 32,
        "n_groups": 2,
        "shared_intermediate_size": 128,
        "num_local_experts": 0,
        "moe_intermediate_size": 128,
        "moe_shared_expert_intermediate_size": 128,
        "mlp_bias": False,
        "linear_head_dim": 32,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
    }

    def make(seed: int) -> transformers.PreTrainedModel:
        name, own = FAMILIES[family]
        given = {**SIZES, **own}
        changed = {field: size for field, size in wide.items() if field in given}
        if family == "granitemoehybrid":
            changed |= {"mamba_d_head": 32}
        if family == "kimi_linear":
            changed |= {"num_local_experts": 4, "mlp_layer_types": ["dense"] * 4}
        given |= changed
        if family == "nemotron_h":
            given |= {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}
            given |= {"n_routed_experts": 0, "n_shared_experts": 0, "n_group": 1}
            del given["num_hidden_layers"]
        torch.manual_seed(seed)
        config = getattr(transformers, f"{name}Config")(**given)
        model: transformers.PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config)
        return model.eval()

    return make


@pytest.mark.parametrize("family", ["lfm2", "granitemoehybrid", "nemotron_h", "kimi_linear"])
@pytest.mark.parametrize("form", ["packed 4 group 32", "fp8 tensor"])
def test_other_hybrids_in_few_bits_are_cut_into_two(form: str, family: str, tmp_path: Path) -> None:
    """Segments of codes one below the other."""
    mlps = [f"model.layers.{layer}.feed_forward.w{part}" for layer in range(4) for part in "123"]
    mlps += [
        f"model.layers.{layer}.shared_mlp.{part}_linear"
        for layer in range(4)
        for part in ("input", "output")
    ]
    numbers = write_folder(
        tmp_path, FORMATS[form], seed=5, kept=("lm_head", *mlps), make=few_bits(family)
    )
    assert any("in_proj" in name or "o_proj" in name for name in numbers)
    compared(tmp_path, 2)


def test_inputs_of_a_recurrent_layer_that_share_a_scale_are_not_cut_too_finely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by headers, with the numbers that can be had."""
    write_folder(
        tmp_path,
        FORMATS["packed 4 group 32"],
        seed=0,
        kept=("lm_head", *(f"model.layers.0.linear_attn.in_proj_{part}" for part in "ab")),
        make=narrow,
    )

    def reads(*arguments: object) -> None:
        raise AssertionError("a weight is read")

    monkeypatch.setattr(CutWeights, "matrix", reads)
    monkeypatch.setattr(CutWeights, "tensor", reads)
    config = config_of(tmp_path, 4)
    leading = thread_ranks(config)
    try:
        with pytest.raises(LoadError) as refused:
            load_runner(config, ranks=leading)
    finally:
        leading.close()
    said = (
        "32 inputs of model.layers.0.linear_attn.out_proj share a scale, and a rank would have 16 "
        "of its 64; parts are of whole groups, or of multiples of 32; what can be had: 2"
    )
    assert said in str(refused.value)
    assert said in (model_report(config).fault or "")


def narrow(seed: int) -> transformers.PreTrainedModel:
    """The results of recurrent layers are 4 heads of 16 numbers."""
    torch.manual_seed(seed)
    fields = {**SIZES, "hidden_size": 128, "intermediate_size": 128, **DELTA}
    fields |= {"head_dim": 32, "linear_value_head_dim": 16, "linear_key_head_dim": 16}
    fields |= {"layer_types": MIXED[:2], "num_hidden_layers": 2}
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**fields)).eval()


def test_our_own_few_bits_of_a_hybrid_are_near_those_of_one_rank(tmp_path: Path) -> None:
    """Each rank quantises its own part: scales of rows of inputs are of fewer."""
    save(model_of("qwen3_5_text", 1), tmp_path)
    alone = logits_of(config_of(tmp_path, 1, dtype="bfloat16"))
    narrow = logits_of(config_of(tmp_path, 2, dtype="bfloat16", quantization="int8"))
    assert float((narrow - alone).norm() / alone.norm()) < 0.1
