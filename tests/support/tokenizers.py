"""Small tokenizers of the published shapes, made on the spot.

``byte_level_json`` is the shape of Qwen and Llama 3 (byte-level BPE, added tokens behind the
vocabulary), ``sentencepiece_json`` that of Mistral 7B (meta symbol, byte fallback, added
tokens inside the vocabulary). Both are trained on a few lines, so JSON has multi-byte tokens.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

CHATML_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MISTRAL_SPECIALS = (
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
LINES = (
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    '{"name": "look_up_product", "arguments": {"query": "red shoes", "limit": 10}}',
    '{"type": "object", "properties": {"items": [{"id": 1, "price": 2.5}, {"id": 2}]}}',
    '"true", "false": null, [true, false], "description": "the name of the city", 2024-01-02',
    "The user asks for the weather in Paris and the price of the red shoes.",
    "What is the order number? It is A1B2C3, and the reservation is for two nights.",
)


_SHIPPED = Path(__file__).parents[2] / "runtime" / "assets" / "default_model" / "tokenizer.json"


def shipped_json() -> dict[str, Any]:
    """tokenizer.json of the model that comes with the package."""
    return json.loads(_SHIPPED.read_text())


def shipped_pattern() -> str:
    """The expression by which it cuts."""
    pattern: str = shipped_json()["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return pattern


def byte_level_json(vocab_size: int = 600) -> dict[str, Any]:
    """tokenizer.json of a ChatML model, its added tokens as in Qwen3."""
    return json.loads(_byte_level_text(vocab_size))


@functools.cache
def _byte_level_text(vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    for name in CHATML_SPECIALS:
        special = name.startswith("<|")
        tokenizer.add_tokens([AddedToken(name, special=special, normalized=False)])
    return tokenizer.to_str()


def sentencepiece_json() -> dict[str, Any]:
    """tokenizer.json of a Mistral model with the legacy prefix (a space before any text)."""
    fallback = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    trainer = BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *MISTRAL_SPECIALS, *fallback],
        show_progress=False,
        max_token_length=12,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["content"] not in fallback]
    return raw


def write_tokenizer(
    folder: Path,
    raw: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the files of a model folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": raw,
        "config.json": config,
        "generation_config.json": generation_config,
    }
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
