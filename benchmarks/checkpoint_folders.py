"""Folders of one random model in every published format, for timing: codes and scales are drawn, no
number means anything.

The dense model is untied; the other one has its weights in experts, as gpt-oss does.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from runtime.model.sources import BYTE_TOKENIZER

Parts = dict[str, Tensor]
Write = Callable[[int, int, torch.Generator], Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of both models."""

    hidden: int
    size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int
    expert_size: int
    expert_layers: int


SHAPES = {
    "500m": Shape(
        hidden=1024, size=3072, layers=28, heads=16, kv_heads=8, head_dim=128, vocab=32768,
        experts=16, expert_size=768, expert_layers=12,
    ),
    "tiny": Shape(
        hidden=256, size=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab=512,
        experts=4, expert_size=128, expert_layers=2,
    ),
}  # fmt: skip


def _words(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int64, generator=draw).int()


def _scales(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=draw) * 0.004 + 0.001


def _plain(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
    return {"weight": (torch.randn(outputs, inputs, generator=draw) / inputs**0.5).bfloat16()}


def _fp8(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
    codes = torch.randint(0, 0x7F, (outputs, inputs), dtype=torch.uint8, generator=draw)
    signs = torch.randint(0, 2, (outputs, inputs), dtype=torch.uint8, generator=draw) << 7
    grid = -(-outputs // 128), -(-inputs // 128)
    values = (codes | signs).view(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": _scales(draw, *grid) / 50}


def _packed(group: int) -> Write:
    def write(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
        return {
            "weight_packed": _words(draw, outputs, inputs // 8),
            "weight_scale": _scales(draw, outputs, inputs // group).bfloat16(),
            "weight_shape": torch.tensor([outputs, inputs]),
        }

    return write


def _awq(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
    return {
        "qweight": _words(draw, inputs, outputs // 8),
        "qzeros": _words(draw, inputs // 128, outputs // 8),
        "scales": _scales(draw, inputs // 128, outputs).half(),
    }


def _gptq(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
    return {
        "qweight": _words(draw, inputs // 8, outputs),
        "qzeros": _words(draw, inputs // 128, outputs // 8),
        "scales": _scales(draw, inputs // 128, outputs).half(),
        "g_idx": (torch.arange(inputs) // 128).int(),
    }


def _nvfp4(outputs: int, inputs: int, draw: torch.Generator) -> Parts:
    scales = torch.rand(outputs, inputs // 16, generator=draw) * 2 + 1
    return {
        "weight": torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=draw),
        "weight_scale": scales.to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.001),
    }


def _group(size: int) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": size}
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


FORMATS: Mapping[str, tuple[Write, dict[str, Any] | None]] = {
    "bf16": (_plain, None),
    "fp8": (_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "int4_group32": (_packed(32), _group(32)),
    "int4_group128": (_packed(128), _group(128)),
    "awq": (_awq, {"quant_method": "awq", "bits": 4, "group_size": 128}),
    "gptq": (_gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "nvfp4": (_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}
GGUF_KINDS = {"gguf_q8_0": "Q8_0", "gguf_q4_0": "Q4_0", "gguf_q4_k": "Q4_K"}
EXPERT_FORMATS = ("experts_bf16", "experts_mxfp4")
NAMES = (*FORMATS, *GGUF_KINDS, *EXPERT_FORMATS)


def write(name: str, shape: Shape, folder: Path) -> Path:
    """A folder of one of ``NAMES``; returns it, or the file in it that is the model."""
    folder.mkdir(parents=True)
    if name in GGUF_KINDS:
        return _write_gguf(folder / "model.gguf", GGUF_KINDS[name], shape)
    tensors = dict(_expert_tensors(name, shape) if name in EXPERT_FORMATS else _dense(name, shape))
    save_file(tensors, folder / "model.safetensors")
    for file in BYTE_TOKENIZER.iterdir():
        shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(_config(name, shape)))
    return folder


def _config(name: str, shape: Shape) -> dict[str, Any]:
    config = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    if name not in EXPERT_FORMATS:
        config |= {"model_type": "qwen3", "num_hidden_layers": shape.layers}
        config |= {"intermediate_size": shape.size, "quantization_config": FORMATS[name][1]}
        return config
    config |= {"model_type": "gpt_oss", "num_hidden_layers": shape.expert_layers}
    config |= {"intermediate_size": shape.expert_size, "num_local_experts": shape.experts}
    config |= {"num_experts_per_tok": 4, "attention_bias": False, "sliding_window": 128}
    if name == "experts_mxfp4":
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config


def _dense(name: str, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    make = FORMATS[name][0]
    yield from _ends(shape, draw)
    for index in range(shape.layers):
        stem = f"model.layers.{index}"
        yield from _norms(stem, shape)
        for module, (outputs, inputs) in _maps(shape).items():
            for part, values in make(outputs, inputs, draw).items():
                yield f"{stem}.{module}.{part}", values
        for each in ("q_norm", "k_norm"):
            yield f"{stem}.self_attn.{each}.weight", torch.ones(shape.head_dim).bfloat16()


def _maps(shape: Shape) -> dict[str, tuple[int, int]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "self_attn.q_proj": (query, shape.hidden),
        "self_attn.k_proj": (key, shape.hidden),
        "self_attn.v_proj": (key, shape.hidden),
        "self_attn.o_proj": (shape.hidden, query),
        "mlp.gate_proj": (shape.size, shape.hidden),
        "mlp.up_proj": (shape.size, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.size),
    }


def _ends(shape: Shape, draw: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for name in ("model.embed_tokens", "lm_head"):
        yield f"{name}.weight", _plain(shape.vocab, shape.hidden, draw)["weight"]
    yield "model.norm.weight", torch.ones(shape.hidden).bfloat16()


def _norms(stem: str, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{stem}.{name}.weight", torch.ones(shape.hidden).bfloat16()


def _expert_tensors(name: str, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    yield from _ends(shape, draw)
    for index in range(shape.expert_layers):
        stem = f"model.layers.{index}"
        yield from _norms(stem, shape)
        for module, (outputs, inputs) in _maps(shape).items():
            if module.startswith("self_attn"):
                yield f"{stem}.{module}.weight", _plain(outputs, inputs, draw)["weight"]
        yield f"{stem}.self_attn.sinks", torch.zeros(shape.heads).bfloat16()
        router = _plain(shape.experts, shape.hidden, draw)["weight"]
        yield f"{stem}.mlp.router.weight", router
        yield f"{stem}.mlp.router.bias", torch.zeros(shape.experts).bfloat16()
        for stack, outputs, inputs in (
            ("gate_up_proj", 2 * shape.expert_size, shape.hidden),
            ("down_proj", shape.hidden, shape.expert_size),
        ):
            own = f"{stem}.mlp.experts.{stack}"
            yield f"{own}_bias", torch.zeros(shape.experts, outputs).bfloat16()
            yield from _stack(own, name, (shape.experts, outputs, inputs), draw)


def _stack(
    own: str, name: str, sizes: tuple[int, int, int], draw: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    experts, outputs, inputs = sizes
    if name == "experts_bf16":
        weight = torch.randn(experts, inputs, outputs, generator=draw) / inputs**0.5
        yield own, weight.bfloat16()
        return
    shape = experts, outputs, inputs // 32
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=draw)
    yield f"{own}_blocks", blocks
    yield f"{own}_scales", torch.full(shape, 118, dtype=torch.uint8)


def _write_gguf(path: Path, kind: str, shape: Shape) -> Path:
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.size)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    wanted = gguf.GGMLQuantizationType[kind]
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    draw = np.random.default_rng(0)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", _blocks(draw, wanted, shape.vocab, shape.hidden),
                          raw_dtype=wanted)  # fmt: skip
    writer.add_tensor("output_norm.weight", np.ones(shape.hidden, np.float32))
    for index in range(shape.layers):
        norms = {"attn_norm": shape.hidden, "ffn_norm": shape.hidden}
        norms |= {"attn_q_norm": shape.head_dim, "attn_k_norm": shape.head_dim}
        for norm, size in norms.items():
            writer.add_tensor(f"blk.{index}.{norm}.weight", np.ones(size, np.float32))
        for module, sizes in _maps(shape).items():
            blocks = _blocks(draw, wanted, *sizes)
            writer.add_tensor(f"blk.{index}.{names[module]}.weight", blocks, raw_dtype=wanted)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    for file in BYTE_TOKENIZER.iterdir():
        shutil.copy(file, path.parent / file.name)
    (path.parent / "config.json").unlink(missing_ok=True)
    return path


def _blocks(
    draw: np.random.Generator, kind: gguf.GGMLQuantizationType, outputs: int, inputs: int
) -> np.ndarray:
    """Random bits behind scales of a usual size."""
    numbers, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (outputs, inputs // numbers, width), dtype=np.uint8)
    halves = 2 if kind.name == "Q4_K" else 1
    scale = np.array([0.0002] * halves, np.float16).view(np.uint8)
    blocks[:, :, : 2 * halves] = scale
    return blocks.reshape(outputs, -1)
