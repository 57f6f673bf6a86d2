"""Model folders of random weights whose turns end only at their token limit.

The shape is that of a ``random:qwen3-SIZE`` preset, in bfloat16. The tokenizer has one token for
each byte, so that a prompt of so many letters has so many tokens, and fills the rest of the
vocabulary with words of four letters, so that a sampled token is readable at once and one
event. Knows nothing of servers.

Always true: end of turn, other special tokens and bytes that are no printable ASCII are never
sampled. One channel of the residual stream is the same small number behind every token and
nothing else writes to it; the output rows of those tokens weigh it with a large negative one.
For that the output's matrix is one of its own, which makes the model of ``100m`` one of 126M.

Models with wide margins (``write_margin_model``) are for comparing two engines' greedy answers,
which differ where rounding decides. A token's output row is the embedding of the token that it
follows, and layers add little to the embedding: the next token hangs on the last one alone, by a
margin tens of times as wide as what rounding moves. All layers are computed all the same. An
answer therefore shows that the same prompt was read to its end and so many tokens were
written, not that what lies before was read right; and drafts from earlier answers would all be
taken, so that such a model says nothing of them.
"""

import itertools
import json
import random
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.engine_loops import (
    benchmark_config,
    random_tensors,
    write_folder,
    write_model,
)
from benchmarks.report import DataMissing
from runtime.model.config import LoadError
from runtime.model.random_weights import RandomWeights
from runtime.model.sources import BYTE_TOKENIZER

PREFIX = "random:qwen3-"
_CONSTANT = 0.02
"""The constant in the reserved channel."""
_AMPLIFIED = 64.0
"""The last norm's weight of it."""
_QUIET = 1 / 32
"""What each layer adds to the residual stream, by its share of what it would."""
_MARGIN = 40.0
"""The logit of the token that follows, about; others are within some units of 0."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
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


def write_margin_model(
    folder: Path, name: str, *, device: torch.device | None = None, seed: int = 0
) -> int:
    """Write the model that ``name`` (``random:qwen3-SIZE``) stands for with wide margins (see the
    module), drawn on ``device``; its parameters.

    Raises:
        DataMissing: there is no such preset.
    """
    try:
        config = replace(benchmark_config(name.removeprefix(PREFIX)), tie_embeddings=False)
    except LoadError as error:
        raise DataMissing(str(error)) from error
    tensors = random_tensors(config, device or torch.device("cpu"), seed=seed)
    count = sum(tensor.numel() for tensor in tensors.values())
    for key, tensor in tensors.items():
        if key.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(_QUIET)
    follows = torch.tensor(successors(config.vocab_size, seed), device=tensors[_EMBEDDING].device)
    embedding = tensors[_EMBEDDING]
    embedding.mul_(config.hidden_size**0.5 / 2)  # of variance 1, as what layers read has
    banned, allowed = map(torch.tensor, _banned_and_allowed(config.vocab_size))
    embedding[banned] = embedding[allowed[torch.arange(len(banned)) % len(allowed)]]
    head = tensors[_HEAD]
    head[banned] = 0
    head[follows[allowed]] = embedding[allowed] * (_MARGIN / config.hidden_size)
    write_folder(folder, config, tensors)
    _write_tokenizer(folder / "tokenizer.json", config.vocab_size)
    return count


def successors(vocab_size: int, seed: int = 0) -> list[int]:
    """The token that the model of wide margins says behind each token. Those that it may say are
    one ring, so that a text of fewer tokens than that repeats none."""
    banned, allowed = _banned_and_allowed(vocab_size)
    ring = random.Random(f"ring/{seed}").sample(allowed, len(allowed))
    follows = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    follows |= {token: follows[like] for token, like in zip(banned, itertools.cycle(allowed))}
    return [follows[token] for token in range(vocab_size)]


def _banned_and_allowed(vocab_size: int) -> tuple[list[int], list[int]]:
    """Tokens that are never said, and those that are: printable ASCII and the added words."""
    raw = json.loads((BYTE_TOKENIZER / "tokenizer.json").read_text())
    words = range(max(int(token["id"]) for token in raw["added_tokens"]) + 1, vocab_size)
    allowed = sorted({*map(ord, string.printable[:95]), *words})
    return sorted(set(range(vocab_size)).difference(allowed)), allowed


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
