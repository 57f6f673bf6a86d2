"""Small GGUF files by the format's own library, and the numbers that it reads in them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from runtime.model.gguf_description import name_in_gguf
from tests.support.byte_tokenizer import files

SIZES = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
ARCHITECTURES = {
    "llama": ("Llama", {"head_dim": 64}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 64}),
    "qwen3moe": ("Qwen3Moe", {"head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
                              "moe_intermediate_size": 256, "norm_topk_prob": True}),
}  # fmt: skip
_QUANTISED = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")


def model_of(architecture: str, *, seed: int, tied: bool = False) -> transformers.PreTrainedModel:
    name, own = ARCHITECTURES[architecture]
    config = getattr(transformers, f"{name}Config")(**SIZES, **own, tie_word_embeddings=tied)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter += 0.2 * torch.randn(parameter.shape)
    return model


def in_pairs(rows: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as llama.cpp's conversion lays them."""
    by_head = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return by_head.swapaxes(1, 2).reshape(rows.shape)


def back(rows: Tensor, heads: int) -> Tensor:
    by_head = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return by_head.swapaxes(1, 2).reshape(rows.shape)


def random_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits, but scales that are numbers of a usual size."""
    numbers, width = gguf.GGML_QUANT_SIZES[kind]
    rows = int(np.prod(shape)) // numbers
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (rows, width), dtype=np.uint8)
    half = (draw.random((rows, 2)) * 0.002 + 0.0005).astype(np.float16).view(np.uint8)
    places = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}
    for number, place in enumerate(places.get(kind.name, (0,))):
        blocks[:, place : place + 2] = half[:, 2 * number : 2 * number + 2]
    if kind.name == "MXFP4":
        blocks[:, 0] = draw.integers(115, 122, rows)
    return blocks.reshape(*shape[:-1], -1)


def write_gguf(
    path: Path,
    architecture: str,
    kind: str,
    *,
    seed: int,
    tied: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> transformers.PreTrainedModel:
    """The file; returns the model of the numbers that the library reads in it."""
    model = model_of(architecture, seed=seed, tied=tied)
    writer = gguf.GGUFWriter(str(path), architecture)
    _write_metadata(writer, architecture, model.config, metadata or {})
    wanted = gguf.GGMLQuantizationType[kind]
    state, done = model.state_dict(), {}
    for name, tensor in state.items():
        if name == "lm_head.weight" and tied:
            continue
        theirs, expert = name_in_gguf(name) if ".experts." not in name else ("", None)
        if ".experts." in name:
            done |= _experts(writer, name, tensor, wanted, seed)
            continue
        assert expert is None
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2], 0)
        paired = architecture == "llama" and heads
        rows = in_pairs(tensor, heads) if paired else tensor
        read = _write(writer, theirs, rows, wanted if name.endswith(_QUANTISED) else None, seed)
        done[name] = back(read, heads) if paired else read
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(done, strict=False)
    return model


def _experts(
    writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: gguf.GGMLQuantizationType, seed: int
) -> dict[str, Tensor]:
    """Stacks of ``transformers``: gates above ups, and downs."""
    stem = f"blk.{name.split('.')[2]}"
    if name.endswith("down_proj"):
        return {name: _write(writer, f"{stem}.ffn_down_exps.weight", tensor, kind, seed)}
    gate, up = tensor.chunk(2, dim=1)
    parts = [
        _write(writer, f"{stem}.ffn_{which}_exps.weight", part.contiguous(), kind, seed + number)
        for number, (which, part) in enumerate((("gate", gate), ("up", up)))
    ]
    return {name: torch.cat(parts, dim=1)}


def _write(
    writer: gguf.GGUFWriter,
    name: str,
    tensor: Tensor,
    kind: gguf.GGMLQuantizationType | None,
    seed: int,
) -> Tensor:
    """The tensor in the kind, None for F32; returns what the library reads."""
    values = tensor.float().numpy()
    if kind is None:
        writer.add_tensor(name, values)
        return tensor.float()
    if kind.name in ("F16", "Q8_0", "Q4_0", "BF16"):
        raw = gguf.quants.quantize(values, kind)
    else:
        raw = random_blocks(kind, tuple(tensor.shape), seed + len(name))
    writer.add_tensor(name, raw, raw_dtype=kind)
    return torch.from_numpy(np.ascontiguousarray(gguf.quants.dequantize(raw, kind), np.float32))


def _write_metadata(
    writer: gguf.GGUFWriter, architecture: str, config: Any, own: Mapping[str, Any]
) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture != "qwen2":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    tokenizer = json.loads(files()["tokenizer.json"])
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {index: token for token, index in vocabulary.items()} | special
    tokens = [by_id.get(index, f"[unused{index}]") for index in range(config.vocab_size)]
    kinds = [3 if index in special else 1 if index in by_id else 5 for index in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([])
    writer.add_eos_token_id(max(special))
    writer.add_chat_template("{{ messages }}")
    for name, value in own.items():
        writer.add_string(name, value)
