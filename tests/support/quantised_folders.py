"""Small folders in published formats, and the numbers that a library reads in them.

Each format is written by its own library where that runs on a CPU, else here from the published
layout, with random codes, scales and zero points: every bit pattern occurs.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support.byte_tokenizer import files

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way of keeping matrices."""

    settings: Mapping[str, Any]
    """``quantization_config``."""
    write: Callable[[int, int, torch.Generator], Tensors]
    """Parts of a module of so many outputs and inputs."""
    read: Callable[[Tensors], Tensor]
    """What the library makes of them, in float32."""
    excluded_field: str = "ignore"


def _compressed(form: str, weights: dict[str, Any]) -> Format:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(form)

    def write(outputs: int, inputs: int, draw: torch.Generator) -> Tensors:
        args = scheme.weights
        assert args is not None
        size = args.group_size or inputs
        groups = 1 if args.strategy in ("tensor", "channel") else inputs // size
        rows = 1 if args.strategy == "tensor" else outputs
        state = {
            "weight": torch.randn(outputs, inputs, generator=draw),
            "weight_scale": torch.rand(rows, groups, generator=draw) * 0.3 + 0.05,
        }
        if args.strategy == "block":
            block = args.block_structure
            assert block is not None
            grid = -(-outputs // block[0]), -(-inputs // block[1])
            state["weight_scale"] = torch.rand(grid, generator=draw) * 0.01 + 0.001
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = torch.rand(1, generator=draw) + 50
            state["weight_scale"] *= 50
        if not args.symmetric:
            low, high = -(2 ** (args.num_bits - 1)), 2 ** (args.num_bits - 1)
            zeros = torch.randint(low, high, (rows, groups), generator=draw)
            state["weight_zero_point"] = zeros.to(torch.int8)
        return {
            name: part.contiguous() for name, part in compressor.compress(state, scheme).items()
        }

    def read(parts: Tensors) -> Tensor:
        if form != "nvfp4-pack-quantized":
            return compressor.decompress(dict(parts), scheme)["weight"].float()
        packed = parts["weight_packed"]  # the compressor itself computes in bfloat16
        values = unpack_fp4_from_uint8(packed, len(packed), 2 * packed.shape[1], torch.float32)
        return dequantize(
            values,
            parts["weight_scale"].float(),
            args=scheme.weights,
            global_scale=parts["weight_global_scale"],
        )

    group = {"targets": ["Linear"], "weights": weights, "format": form}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    return Format(settings={**settings, "format": form}, write=write, read=read)


def _integers(bits: int, symmetric: bool = True, **own: Any) -> Format:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **own}
    return _compressed("pack-quantized", weights)


def _group(size: int) -> dict[str, Any]:
    return {"strategy": "group", "group_size": size}


def random_e4m3(outputs: int, inputs: int, draw: torch.Generator) -> Tensor:
    codes = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8, generator=draw)
    codes[(codes & 0x7F) == 0x7F] = 0x81  # the two that are no numbers
    return codes.view(torch.float8_e4m3fn)


def _fp8(grid: Callable[[int, int], tuple[int, ...]], **settings: Any) -> Format:
    def write(outputs: int, inputs: int, draw: torch.Generator) -> Tensors:
        scales = torch.rand(grid(outputs, inputs), generator=draw) * 0.01 + 1e-4
        return {"weight": random_e4m3(outputs, inputs, draw), "weight_scale_inv": scales}

    def read(parts: Tensors) -> Tensor:
        scales = parts["weight_scale_inv"]
        return Fp8Dequantize(None)._dequantize_one(parts["weight"], scales, torch.float32)

    return Format(
        settings={"quant_method": "fp8", "activation_scheme": "dynamic", **settings},
        write=write,
        read=read,
        excluded_field="modules_to_not_convert",
    )


def _mxfp8(scale: str, excluded_field: str, **settings: Any) -> Format:
    """The numbers are read by torch's own type of exponents."""

    def write(outputs: int, inputs: int, draw: torch.Generator) -> Tensors:
        exponents = torch.randint(100, 124, (outputs, inputs // 32), generator=draw)
        values = random_e4m3(outputs, inputs, draw)
        return {"weight": values, scale: exponents.to(torch.uint8)}

    def read(parts: Tensors) -> Tensor:
        scales = parts[scale].view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
        return parts["weight"].float() * scales

    return Format(settings=settings, write=write, read=read, excluded_field=excluded_field)


def _words(draw: torch.Generator, *shape: int) -> Tensor:
    low, high = -(1 << 31), 1 << 31
    return torch.randint(low, high, shape, dtype=torch.int64, generator=draw).int()


def _half_scales(draw: torch.Generator, *shape: int) -> Tensor:
    return (torch.rand(shape, generator=draw) * 0.02 + 0.001).half()


def _awq(group: int) -> Format:
    def write(outputs: int, inputs: int, draw: torch.Generator) -> Tensors:
        return {
            "qweight": _words(draw, inputs, outputs // 8),
            "qzeros": _words(draw, inputs // group, outputs // 8),
            "scales": _half_scales(draw, inputs // group, outputs),
        }

    def read(parts: Tensors) -> Tensor:
        converter = AutoAWQConverter(group_size=group, ignore=())
        wide = {**parts, "scales": parts["scales"].float()}
        made = converter.process({f"module.{name}": part for name, part in wide.items()})
        as_packed = {name.removeprefix("module."): part for name, part in made.items()}
        return _integers(4, symmetric=False, **_group(group)).read(as_packed)

    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return Format(
        settings={**settings, "version": "gemm"},
        write=write,
        read=read,
        excluded_field="modules_to_not_convert",
    )


def _gptq(bits: int, group: int, version: str = "gptq") -> Format:
    """The reference goes number by number, by what the format's kernels compute."""
    each = 32 // bits

    def write(outputs: int, inputs: int, draw: torch.Generator) -> Tensors:
        groups = inputs // group
        zeros = _words(draw, groups, outputs // each)
        if bits == 8:
            zeros &= 0x7F7F7F7F
        return {
            "qweight": _words(draw, inputs // each, outputs),
            "qzeros": zeros,
            "scales": _half_scales(draw, groups, outputs),
            "g_idx": (torch.arange(inputs) // group).int(),
        }

    def read(parts: Tensors) -> Tensor:
        words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
        mask = (1 << bits) - 1
        inputs, outputs = len(words) * each, words.shape[1]
        weight = torch.empty(outputs, inputs)
        for place in range(inputs):
            code = words[place // each] >> (bits * (place % each)) & mask
            column = torch.arange(outputs)
            zero = zeros[place // group][column // each] >> (bits * (column % each)) & mask
            more = 1 if version == "gptq" else 0
            weight[:, place] = (code - (zero + more)) * scales[place // group]
        return weight

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False}
    return Format(
        settings={**settings, "sym": False, "checkpoint_format": version}, write=write, read=read
    )


def _blocks(outputs: int, inputs: int) -> tuple[int, int]:
    return outputs // 32, inputs // 64


FORMATS: Mapping[str, Format] = {
    "fp8 blocks": _fp8(_blocks, weight_block_size=[32, 64]),
    "fp8 tensor": _fp8(lambda *_: (), weight_block_size=None),
    "mxfp8": _mxfp8(
        "weight_scale_inv",
        "ignored_layers",
        quant_method="mxfp8",
        activation_scheme="dynamic",
        weight_block_size=[1, 32],
    ),
    "mxfp8 modelopt": _mxfp8(
        "weight_scale", "exclude_modules", quant_method="modelopt", quant_algo="MXFP8"
    ),
    "fp8 channel": _compressed(
        "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}
    ),
    "fp8 compressed blocks": _compressed(
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
    ),
    "int8": _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "packed 4 group 32": _integers(4, **_group(32)),
    "packed 4 group 64": _integers(4, **_group(64)),
    "packed 4 group 128": _integers(4, **_group(128)),
    "packed 4 channel": _integers(4, strategy="channel"),
    "packed 4 zeros": _integers(4, symmetric=False, **_group(32)),
    "packed 4 zeros channel": _integers(4, symmetric=False, strategy="channel"),
    "packed 8 group 128": _integers(8, **_group(128)),
    "packed 8 zeros": _integers(8, symmetric=False, **_group(64)),
    "awq 128": _awq(128),
    "awq 32": _awq(32),
    "gptq 4": _gptq(4, 128),
    "gptq 4 v2": _gptq(4, 32, "gptq_v2"),
    "gptq 8": _gptq(8, 64),
    "nvfp4": _compressed(
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4 packed": _compressed(
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    ),
}

SIZES = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
KEPT = ("lm_head", "model.layers.1.mlp.down_proj")
"""Modules that are not quantised."""


def plain_model(seed: int) -> transformers.PreTrainedModel:
    config = transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=False)
    torch.manual_seed(seed)
    return transformers.Qwen3ForCausalLM(config).eval()


_MATRIX = re.compile(
    r".+(_proj(_qkvz?|_z|_with_mqa)?|linear_gate|indexer\.w(q_b|k)|(experts\.\d+|feed_forward)\.w[123])\.weight"
)


def write_folder(
    folder: Path,
    form: Format,
    *,
    seed: int,
    kept: tuple[str, ...] = KEPT,
    make: Callable[[int], transformers.PreTrainedModel] = plain_model,
) -> Tensors:
    """A folder in the format; returns the numbers of each quantised module, in float32."""
    make(seed).save_pretrained(folder)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    draw = torch.Generator().manual_seed(seed)
    kept_tensors, found = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not _MATRIX.fullmatch(name) or module in kept:
            kept_tensors[name] = tensor
            continue
        if tensor.dim() == 3:  # a map of all experts
            of_each = [form.write(*each.shape, draw) for each in tensor]
            found[module] = torch.stack([form.read(parts) for parts in of_each])
            parts = {part: torch.stack([one[part] for one in of_each]) for part in of_each[0]}
        else:
            parts = form.write(*tensor.shape, draw)
            found[module] = form.read(parts)
        kept_tensors |= {f"{module}.{part}": values for part, values in parts.items()}
    save_file(kept_tensors, folder / "model.safetensors")
    edit_config(folder, {**form.settings, form.excluded_field: list(kept)})
    return found


def edit_config(folder: Path, settings: Mapping[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": settings}))


def widened_folder(
    folder: Path,
    numbers: Tensors,
    to: Path,
    make: Callable[[int], transformers.PreTrainedModel] = plain_model,
) -> Path:
    """The same model with these numbers in float32."""
    make(0).save_pretrained(to)
    stored, state = load_file(folder / "model.safetensors"), load_file(to / "model.safetensors")
    for name in state:
        module = name.removesuffix(".weight")
        state[name] = numbers[module] if module in numbers else stored[name]
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    for name, text in files().items():
        (to / name).write_text(text, encoding="utf-8")
    return to


def gpt_oss_folder(folder: Path, *, seed: int) -> Tensors:
    """Experts in MXFP4 as gpt-oss has them; returns each stack in float32, inputs first."""
    config = transformers.GptOssConfig(
        **{**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    transformers.GptOssForCausalLM(config).eval().save_pretrained(folder)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    draw = torch.Generator().manual_seed(seed)
    kept, found = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            kept[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = experts, outputs, inputs // 32
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=draw)
        scales = torch.randint(115, 124, shape, dtype=torch.uint8, generator=draw)
        found[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        kept |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(kept, folder / "model.safetensors")
    listed = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    listed.append("lm_head")
    edit_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": listed})
    return found
