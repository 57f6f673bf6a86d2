"""Kimi's vocabulary, a file of ranks for ``tiktoken``, as ``tokenizer.json``.

Kimi's folders have ``tiktoken.model`` (a line a token: its bytes in base64, its rank) and a program
that reads it; programs of folders do not run here, and what Kimi's says is known. Ranks are made
merges: every way to put a token together of two others is one, in the order of the tokens' ranks.
No torch here.

Always true: texts are cut and merged as by ``tiktoken`` with the same ranks.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtime.folder_files import DESCRIPTION, TOKENIZER, UnfitFile, read_within
from runtime.model.config import LoadError
from runtime.model.tokenizer_folders import kept_folder

FILE: Final = "tiktoken.model"
_PROGRAM = "tokenization_kimi."
"""The module of the folder's tokenizer, as ``tokenizer_config.json`` names it."""
_MODEL_TYPES = ("kimi_k2", "kimi_k25", "kimi_linear")
_NEIGHBOURS = (
    *("tokenizer_config.json", "config.json", "generation_config.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
)
"""Files beside the vocabulary that belong to a tokenizer."""
_FORMAT = b"1"
_MOST_TOKENS = 1 << 20
_LONGEST_TOKEN = 512
"""Bytes."""
_ADDED = 256
"""Ids behind the vocabulary; those that nothing is named for are reserved."""

_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression by which a text is cut into words before merging."""


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder has Kimi's vocabulary and no ``tokenizer.json``.

    Raises:
        LoadError: it has a vocabulary of that kind that is not Kimi's.
    """
    if (folder / "tokenizer.json").exists() or not (folder / FILE).exists():
        return False
    settings, config = (_object(folder / name) for name in ("tokenizer_config.json", "config.json"))
    if _PROGRAM in json.dumps(settings.get("auto_map")) or config.get("model_type") in _MODEL_TYPES:
        return True
    raise LoadError(
        f"{folder / FILE}: how this model cuts texts is not known: only Kimi's vocabulary is read "
        "without a tokenizer.json"
    )


def tiktoken_folder_of(folder: Path) -> Path:
    """A folder in the cache with ``tokenizer.json`` and what lies beside the vocabulary.

    Raises:
        LoadError: the vocabulary or a file beside it is damaged or too large.
    """
    path = folder / FILE
    ranks = _content(path, TOKENIZER.most_bytes)
    assert ranks is not None, "there is a vocabulary"
    beside = {name: _content(folder / name, DESCRIPTION.most_bytes) for name in _NEIGHBOURS}
    files = {name: content for name, content in beside.items() if content is not None}

    def make() -> Mapping[str, bytes]:
        tokenizer = _tokenizer(path, _ranks(path, ranks), _object(folder / _NEIGHBOURS[0]))
        return {**files, "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode()}

    return kept_folder("tiktoken", {"format": _FORMAT, FILE: ranks, **files}, make)


def _content(path: Path, most_bytes: int) -> bytes | None:
    try:
        return read_within(path, most_bytes)
    except FileNotFoundError:
        return None
    except UnfitFile as error:
        raise LoadError(str(error)) from error


def _object(path: Path) -> dict[str, Any]:
    content = _content(path, DESCRIPTION.most_bytes)
    try:
        value = {} if content is None else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: {error}") from error
    return value if isinstance(value, dict) else {}


def _ranks(path: Path, content: bytes) -> dict[bytes, int]:
    """Tokens by their bytes.

    Raises:
        LoadError: it is damaged: a line is none, a rank is missing, a byte has no token.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        spelt, _, rank = line.partition(b" ")
        try:
            token = base64.b64decode(spelt, validate=True)
        except binascii.Error:
            token = b""
        if not 0 < len(token) <= _LONGEST_TOKEN or rank.strip() != b"%d" % len(ranks):
            raise LoadError(f"{path}: line {number} is no token with the rank {len(ranks)}")
        ranks[token] = len(ranks)
        if len(ranks) > _MOST_TOKENS:
            raise LoadError(f"{path}: more than {_MOST_TOKENS} tokens")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise LoadError(f"{path}: the byte {missing[0]} is no token")
    return ranks


def _tokenizer(
    path: Path, ranks: Mapping[bytes, int], settings: Mapping[str, Any]
) -> dict[str, Any]:
    spelt = {token: _spelt(token) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in ranks:
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        merges += [(spelt[a], spelt[b]) for a, b in cuts if a in ranks and b in ranks]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}  # fmt: skip
    words = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(path, len(ranks), settings),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelt[token]: rank for token, rank in ranks.items()},
            "merges": merges,
        },
    }  # fmt: skip


def _added(path: Path, first: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens behind the vocabulary, with the names that ``tokenizer_config.json`` has."""
    told = settings.get("added_tokens_decoder")
    named: dict[int, str] = {}
    for key, token in (told if isinstance(told, dict) else {}).items():
        text = token.get("content") if isinstance(token, dict) else None
        if not key.isdecimal() or len(key) > len(str(_MOST_TOKENS)) or not isinstance(text, str):
            where = path.parent / _NEIGHBOURS[0]
            raise LoadError(f"{where}: added_tokens_decoder has {key!r:.40}, no token and its text")
        named[int(key)] = text
    if stray := [number for number in named if not first <= number < first + _ADDED]:
        raise LoadError(
            f"{path}: the vocabulary has {first} tokens, and an added one the number {stray[0]}"
        )
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {
            "id": number,
            "content": named.get(number, f"<|reserved_token_{number}|>"),
            **plain,
            "special": True,
        }
        for number in range(first, first + _ADDED)
    ]


def _spelt(token: bytes) -> str:
    """Bytes in the letters that byte-level vocabularies have for them."""
    return token.decode("latin-1").translate(_LETTERS)


def _letters() -> dict[int, int]:
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in own]
    return {byte: 256 + at for at, byte in enumerate(others)}


_LETTERS = _letters()
