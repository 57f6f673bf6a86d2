"""Folders with a small ``config.json``."""

import json
from pathlib import Path
from typing import Any

from runtime.model.config import ModelConfig
from runtime.model.hf_config import read_model_config

BASE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
}


def read_folder(folder: Path, model_type: str, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **BASE, **changes}))
    return read_model_config(folder)


def seen(config: ModelConfig) -> list[int | None]:
    return [layer.mixer.window for layer in config.layers]
