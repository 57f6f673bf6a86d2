"""Model folders of random weights whose turns end only at their token limit.

The shape is that of a ``random:qwen3-SIZE`` preset, in bfloat16. The tokenizer has one token for
each byte, so that a prompt of so many letters has so many tokens, and fills the rest of the
vocabulary with words of four letters, so that a sampled token is readable at once and one
event. Knows nothing of servers.

Always true: end of turn, other special tokens and bytes that are no printable ASCII are never
sampled. One channel of the residual stream is the same small number behind every token and
nothing else writes to it; the output rows of those tokens weigh it with a large negative one.
For that the output's matrix is one of its own, which makes the model of ``100m`` one of 126M.
"""

import itertools
import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.engine_loops import write_model
from benchmarks.report import DataMissing
from runtime.model.config import LoadError
from runtime.model.random_weights import RandomWeights

PREFIX = "random:qwen3-"
_CONSTANT = 0.02
"""The constant in the reserved channel."""
_AMPLIFIED = 64.0
"""The last norm's weight of it."""
_BANNED = -100.0
"""A banned token's weight of it: some -40 in a logit where the largest are near 10."""


def write_loop_model(folder: Path, name: str) -> int:
    """Write the model that ``name`` (``random:qwen3-SIZE``) stands for; its parameters.

    Raises:
        DataMissing: there is no such preset.
    """
    if not name.startswith(PREFIX):
        raise DataMissing(f"--model {name!r}: only {PREFIX}SIZE can have its lengths forced")
    try:
        config = write_model(folder, name.removeprefix(PREFIX))
    except LoadError as error:
        raise DataMissing(str(error)) from error
    specials = _write_tokenizer(folder / "tokenizer.json", config.vocab_size)
    printable = [ord(character) for character in string.printable[:95]]
    banned = sorted(set(range(256)).difference(printable) | set(specials))
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    source = RandomWeights(0, torch.bfloat16, torch.device("cpu"))
    shape = (config.vocab_size, config.hidden_size)
    tensors["lm_head.weight"] = source.tensor("lm_head.weight", shape)
    _ban(tensors, banned)
    save_file(tensors, weights, metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"tie_word_embeddings": False}))
    return sum(tensor.numel() for tensor in tensors.values())


def _ban(tensors: dict[str, Tensor], tokens: list[int]) -> None:
    """Make the first channel say no to ``tokens``."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
        elif name.endswith("layernorm.weight"):
            tensor[0] = 0  # no layer reads it
    tensors["model.norm.weight"][0] = _AMPLIFIED
    tensors["model.embed_tokens.weight"][:, 0] = _CONSTANT
    head = tensors["lm_head.weight"]
    head[:, 0] = 0
    head[torch.tensor(tokens), 0] = _BANNED


def _write_tokenizer(path: Path, vocab_size: int) -> list[int]:
    """Add words to the byte tokenizer at ``path``; the ids of its special tokens."""
    raw: dict[str, Any] = json.loads(path.read_text())
    specials = [int(token["id"]) for token in raw["added_tokens"]]
    vocabulary = raw["model"]["vocab"]
    words = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    for token in range(max(specials) + 1, vocab_size):
        vocabulary[next(words)] = token
    path.write_text(json.dumps(raw))
    return specials
