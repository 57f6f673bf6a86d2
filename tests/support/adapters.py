"""LoRA adapters of random numbers, in PEFT's layout."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from runtime.model.config import Attention, Gated, Layer, ModelConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path,
    config: ModelConfig,
    *,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = ATTENTION + FEED_FORWARD,
    scale: float = 1.0,
) -> Path:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``, float32, into a folder that
    is made if missing; returns it.

    Args:
        folder: for both files.
        config: of the model that it is for: layers of attention and gated MLPs.
        seed: of the numbers.
        rank: of every pair of matrices.
        targets: names of the linear maps that it changes, in every layer.
        scale: what it adds to a map's result, as a multiple of the root mean square of the input.
    """
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for number, layer in enumerate(config.layers):
        sizes = _sizes(config.hidden_size, layer)
        for target in targets:
            part, (outputs, inputs) = sizes[target]
            name = f"base_model.model.model.layers.{number}.{part}.{target}"
            first = torch.randn(rank, inputs, generator=draw) / math.sqrt(inputs)
            second = torch.randn(outputs, rank, generator=draw) / math.sqrt(rank)
            tensors[f"{name}.lora_A.weight"] = first
            tensors[f"{name}.lora_B.weight"] = second
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": list(targets),
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _sizes(hidden: int, layer: Layer) -> dict[str, tuple[str, tuple[int, int]]]:
    """The module that each linear map is in, and its outputs and inputs."""
    mixer, mlp = layer.mixer, layer.feed_forward
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, Gated)
    of_attention = {
        "q_proj": (mixer.heads * mixer.head_dim, hidden),
        "k_proj": (mixer.kv_heads * mixer.head_dim, hidden),
        "v_proj": (mixer.kv_heads * (mixer.value_dim or mixer.head_dim), hidden),
        "o_proj": (hidden, mixer.heads * (mixer.value_dim or mixer.head_dim)),
    }
    of_mlp = {
        "gate_proj": (mlp.size, hidden),
        "up_proj": (mlp.size, hidden),
        "down_proj": (hidden, mlp.size),
    }
    return {name: ("self_attn", size) for name, size in of_attention.items()} | {
        name: ("mlp", size) for name, size in of_mlp.items()
    }
