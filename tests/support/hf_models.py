"""Seeded random Hugging Face models and their folders, for parity and bad-input tests."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.byte_tokenizer import files

SMALL = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 8192,
    "initializer_range": 0.12,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 6, "head_dim": 16}),
    "llama3": (
        "Llama",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
            "tie_word_embeddings": True,
        },
    ),
    "llama-biases": (
        "Llama",
        {"num_key_value_heads": 3, "head_dim": 20, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-linear": (
        "Llama",
        {
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        },
    ),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-yarn": (
        "Qwen2",
        {
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 2048,
            },
        },
    ),
    "qwen2-window": (
        "Qwen2",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 100,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 32}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-window": (
        "Qwen3Moe",
        {
            "num_key_value_heads": 2,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 90,
        },
    ),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64}),
}


def make_model(family: str, *, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
    """A random model of the family in float32, its biases and norms not trivial."""
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **own, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(".bias"):
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
        elif "norm" in parameter_name:
            parameter.data = 1 + 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def save(model: transformers.PreTrainedModel, folder: Path, *, max_shard: str = "5GB") -> Path:
    """Write the model and the byte tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder, max_shard_size=max_shard)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
