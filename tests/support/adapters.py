"""LoRA adapters of random numbers, in PEFT's layout."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.model.adapters import AdaptedPart, AdapterSet
from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights

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
    maps = []
    for number, layer in enumerate(config.layers):
        sizes = _sizes(config.hidden_size, layer)
        for target in targets:
            part, (outputs, inputs) = sizes[target]
            maps.append((f"model.layers.{number}.{part}.{target}", outputs, inputs))
    return write_adapter(folder, maps, seed=seed, rank=rank, scale=scale)


class _Asking(AdapterSet):
    """Notes which maps could have an adapter, and gives them none."""

    def __init__(self) -> None:
        super().__init__((), torch.float32, torch.device("cpu"))
        self.maps: list[tuple[str, int, int]] = []

    def part(
        self,
        names: Sequence[str],
        outputs: Sequence[int],
        inputs: int,
        orders: Sequence[Tensor | None] | None = None,
    ) -> AdaptedPart | None:
        self.maps += [(name, size, inputs) for name, size in zip(names, outputs, strict=True)]
        return None


def adaptable_maps(config: ModelConfig) -> list[tuple[str, int, int]]:
    """Name, outputs and inputs of all linear maps that can have an adapter."""
    asking, cpu = _Asking(), torch.device("cpu")
    source = RandomWeights(0, torch.float32, cpu)
    Decoder(config, MapLoader(source=source, adapters=asking), cpu)
    return [each for each in asking.maps if ".layers." in each[0]]


def write_adapter(
    folder: Path,
    maps: Sequence[tuple[str, int, int]],
    *,
    seed: int,
    rank: int = 4,
    scale: float = 1.0,
) -> Path:
    """Write an adapter of these maps: name, outputs and inputs of each."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, outputs, inputs in maps:
        first = torch.randn(rank, inputs, generator=draw) / math.sqrt(inputs)
        second = torch.randn(outputs, rank, generator=draw) / math.sqrt(rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = first
        tensors[f"base_model.model.{name}.lora_B.weight"] = second
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name, _, _ in maps}),
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def added_weights(folder: Path) -> dict[str, Tensor]:
    """What an adapter that was written here adds to weights, [outputs, inputs] in float64, by the
    module's name."""
    fields = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    added = {}
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            up = tensors[f"{module}.lora_B.weight"].double()
            factor = fields["lora_alpha"] / fields["r"]
            added[module.removeprefix("base_model.model.")] = factor * up @ down.double()
    return added


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
