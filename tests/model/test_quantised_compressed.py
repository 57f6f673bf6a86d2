"""DeepSeek V4's folders in few bits: attention in FP8, experts in FP8 or in MXFP4, and what is in
neither without being listed."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.layers import WeightBits
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.model.test_compressed_families import as_published
from tests.support.byte_tokenizer import files
from tests.support.quantised_folders import random_e4m3

CPU = torch.device("cpu")
BLOCK = 32
IN_FP8 = re.compile(r".+\.(attn|indexer|shared_experts)\.(wq_a|wq_b|wkv|wo_a|wo_b|w[123])\.weight")
EXPERTS = re.compile(r".+\.experts\.\d+\.w[123]\.weight")
SETTINGS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}


def exponents(draw: torch.Generator, *shape: int) -> Tensor:
    drawn = torch.randint(114, 119, shape, dtype=torch.uint8, generator=draw)
    return drawn.view(torch.float8_e8m0fnu)


def plain_folder(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(
        vocab_size=320,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        index_n_heads=8,
        index_head_dim=32,
        index_topk=6,
        sliding_window=16,
        partial_rotary_factor=0.25,
        max_position_embeddings=512,
        compress_rate_hca=16,
        num_hash_layers=1,
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ],
    )
    model = transformers.DeepseekV4ForCausalLM(config)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("sinks", "position_bias", "base", "e_score_correction_bias")):
            tensor.data.normal_(std=0.3)
        if name.endswith("tid2eid"):
            tensor.data = torch.rand(320, 4).argsort(1)[:, :2]
    model.save_pretrained(folder)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    stored = load_file(folder / "model.safetensors")
    named = {as_published(name): tensor.contiguous() for name, tensor in stored.items()}
    save_file(named, folder / "model.safetensors")
    return folder


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def in_few_bits(folder: Path, wide: Path, experts: str) -> None:
    """Make of a plain folder one in few bits, and another with its numbers in float32."""
    draw = torch.Generator().manual_seed(3)
    kept, numbers = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        in_four = experts == "fp4" and EXPERTS.fullmatch(name)
        if not in_four and not IN_FP8.fullmatch(name) and not EXPERTS.fullmatch(name):
            kept[name] = numbers[name] = tensor
            continue
        outputs, inputs = tensor.shape
        if in_four:
            values = torch.randint(-128, 128, (outputs, inputs // 2), generator=draw)
            kept[name] = values.to(torch.int8)
            scales = exponents(draw, outputs, inputs // 32)
        else:
            kept[name] = random_e4m3(outputs, inputs, draw)
            scales = exponents(draw, -(-outputs // BLOCK), -(-inputs // BLOCK))
        kept[name.replace(".weight", ".scale")] = scales
        numbers[name] = Fp8Dequantize(None)._dequantize_one(kept[name], scales, torch.float32)
    save_file(numbers, wide / "model.safetensors")
    save_file(kept, folder / "model.safetensors")
    edit(folder, quantization_config=SETTINGS)


def logits(model: str | Path, dtype: torch.dtype, bits: WeightBits = 16) -> Tensor:
    loaded = load_model(model, dtype=dtype, device=CPU, bits=bits)
    runner = ModelRunner(loaded, num_blocks=16, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, 80, dtype=np.int32)
    table = np.arange(5, dtype=np.int32)
    step = SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=80)
    return runner.run([step]).clone()


def off(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize(("experts", "inside"), [("fp8", False), ("fp4", False), ("fp4", True)])
def test_a_folder_in_few_bits_computes_with_its_numbers(
    experts: str, inside: bool, tmp_path: Path
) -> None:
    folder, wide = plain_folder(tmp_path / "kept"), plain_folder(tmp_path / "wide")
    in_few_bits(folder, wide, experts)
    if inside:
        edit(folder, quantization_config={**SETTINGS, "expert_dtype": experts})
    elif experts == "fp4":
        edit(folder, expert_dtype=experts)
    found = logits(folder, torch.float32)
    assert off(found, logits(wide, torch.float32)) < 1e-5


def test_experts_in_another_type_than_is_said_are_refused(tmp_path: Path) -> None:
    folder, wide = plain_folder(tmp_path / "kept"), plain_folder(tmp_path / "wide")
    in_few_bits(folder, wide, "fp4")
    with pytest.raises(LoadError, match=r"experts.0.w1.weight' is int8, not float8_e4m3fn"):
        load_model(folder, dtype=torch.float32, device=CPU)
    edit(folder, expert_dtype="int4")
    with pytest.raises(LoadError, match="expert_dtype is 'int4', not fp4 or fp8"):
        load_model(folder, dtype=torch.float32, device=CPU)
    edit(wide, expert_dtype="fp4")
    with pytest.raises(LoadError, match="expert_dtype is 'fp4', not null"):
        load_model(wide, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.05), (4, 0.5)])
def test_our_own_few_bits_are_near(bits: WeightBits, limit: float) -> None:
    plain = logits("random:deepseek-v4-tiny", torch.bfloat16)
    narrow = logits("random:deepseek-v4-tiny", torch.bfloat16, bits)
    assert 0 < off(narrow, plain) < limit
