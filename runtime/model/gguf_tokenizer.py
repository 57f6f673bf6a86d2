"""The tokenizer and the chat template in a GGUF file's metadata, as the files of a folder.

The rest of the server reads ``tokenizer.json`` and its neighbours, wherever a model comes from.
They are made once for a file and kept in the user's cache folder, by their own digest. Knows
byte-level vocabularies (``gpt2`` in GGUF); others are refused by name. No torch here.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.model.config import LoadError
from runtime.model.gguf_header import GgufHeader
from runtime.model.tokenizer_folders import kept_folder

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens that are found in a text before it is cut into words."""

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_WORDS = {"qwen2": _QWEN2, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3}
"""The expressions by which a text is cut into words before merging, by ``tokenizer.ggml.pre``."""
_GPT2 = ("gpt-2", "default")
_NORMALISED = ("qwen2",)


def tokenizer_folder_of(header: GgufHeader, model_type: str) -> Path:
    """A folder with ``tokenizer.json``, ``tokenizer_config.json`` and ``config.json``: the file's
    own if a ``tokenizer.json`` lies beside it, else one in the cache, which is made.

    Raises:
        LoadError: the vocabulary is of a kind that is not known, or damaged.
    """
    if (header.path.parent / "tokenizer.json").is_file():
        return header.path.parent
    files = {
        "tokenizer.json": _tokenizer(header),
        "tokenizer_config.json": _settings(header),
        "config.json": _config(header, model_type),
    }
    texts = {name: json.dumps(value, ensure_ascii=False).encode() for name, value in files.items()}
    return kept_folder("gguf", texts, lambda: texts)


def _tokenizer(header: GgufHeader) -> dict[str, Any]:
    kind = header.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise LoadError(
            f"{header.path}: metadata tokenizer.ggml.model is {str(kind)[:40]!r}, and only gpt2 is "
            "read; put the model's tokenizer.json beside the file"
        )
    tokens, merges = _strings(header, "tokens"), _strings(header, "merges", [])
    types = header.metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(types, list) or len(types) != len(tokens):
        raise LoadError(f"{header.path}: tokenizer.ggml.token_type has not a type for each token")
    if len(set(tokens)) != len(tokens):
        raise LoadError(f"{header.path}: tokenizer.ggml.tokens has a token twice")
    pairs = [merge.split(" ", 1) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise LoadError(f"{header.path}: tokenizer.ggml.merges has one that is no pair")
    added = [
        _added(index, token, types[index] == _CONTROL)
        for index, token in enumerate(tokens)
        if types[index] in (_CONTROL, _USER_DEFINED)
    ]
    pre = header.metadata.get("tokenizer.ggml.pre", "default")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _NORMALISED else None,
        "pre_tokenizer": _pre_tokenizer(header, pre),
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                           "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                    "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre in ("llama-bpe", "llama3", "llama-v3"),
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": pairs,
        },
    }  # fmt: skip


def _pre_tokenizer(header: GgufHeader, pre: object) -> dict[str, Any]:
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    if pre in _GPT2:
        return {**whole, "use_regex": True}
    if not isinstance(pre, str) or pre not in _WORDS:
        raise LoadError(
            f"{header.path}: metadata tokenizer.ggml.pre is {str(pre)[:40]!r}, not one of "
            f"{', '.join((*_GPT2, *_WORDS))}; put the model's tokenizer.json beside the file"
        )
    split = {"type": "Split", "pattern": {"Regex": _WORDS[pre]}, "behavior": "Isolated"}
    parts = [{**split, "invert": False}, {**whole, "use_regex": False}]
    return {"type": "Sequence", "pretokenizers": parts}


def _added(index: int, token: str, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": token, **plain, "special": special}


def _settings(header: GgufHeader) -> dict[str, Any]:
    """``tokenizer_config.json``."""
    template = header.metadata.get("tokenizer.chat_template")
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    found: dict[str, Any] = {"chat_template": template} if isinstance(template, str) else {}
    for name in ("bos", "eos"):
        index = _token_id(header, name, len(tokens))
        if index is not None:
            found[f"{name}_token"] = tokens[index]
    return found


def _config(header: GgufHeader, model_type: str) -> dict[str, Any]:
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    end = _token_id(header, "eos", len(tokens))
    return {"model_type": model_type, **({} if end is None else {"eos_token_id": end})}


def _token_id(header: GgufHeader, name: str, count: int) -> int | None:
    index = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if index is None:
        return None
    if type(index) is not int or not 0 <= index < count:
        raise LoadError(f"{header.path}: tokenizer.ggml.{name}_token_id is {index!r}: no token")
    return index


def _strings(header: GgufHeader, name: str, default: Sequence[str] | None = None) -> Sequence[str]:
    found = header.metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise LoadError(f"{header.path}: metadata tokenizer.ggml.{name} is not a list of strings")
    return found
