"""Text to token ids and back, for byte-complete BPE tokenizers of Hugging Face folders.

The one idea: text and control are two channels. A ``Segment`` marked special is exactly one
added token, found by name; every other segment is text, encoded by a tokenizer from which
the added tokens have been taken out. What a user writes therefore can never open a sequence or
close a tool call, whatever it spells.

Knows tokenizer.json and the two files that name end-of-turn ids. Knows no template, no
grammar and no model weights.

Always true: every byte string has a token sequence, ``token_bytes`` concatenated over an
encoding gives the text's UTF-8 (up to the leading space that sentencepiece adds), and no id
of ``encode`` is an added token unless its segment said so.
"""

import codecs
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import orjson

from runtime.folder_files import DESCRIPTION, TOKENIZER, JsonBounds, UnfitFile, read_json
from runtime.text_encoder import TextEncoder, node_types, without_prefix
from runtime.token_bound import TokenBound
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat, Segment

TokenArray = npt.NDArray[np.int32]
FormatOf = Callable[[Mapping[str, int]], ChatFormat]
"""Chooses a chat format for special tokens, by their texts."""

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "\u2581"
_MOST_ID = (1 << 24) - 1
"""No vocabulary is larger."""
_MOST_SHOWN_CHARS = 80


class TokenizerError(Exception):
    """The tokenizer's files are missing, unfit or contradict each other, or a special
    segment names no token. The model cannot be served with them."""


class Tokenizer:
    """Immutable after ``load``; safe to share between threads."""

    def __init__(
        self,
        *,
        source: str,
        text_encoder: TextEncoder,
        spelling_encoder: TextEncoder,
        token_bytes: Sequence[bytes | None],
        added: Mapping[str, int],
        vocab_size: int,
        end_of_turn_ids: Sequence[int],
        strips_first_space: bool,
    ) -> None:
        self._source = source
        self.text_encoder = text_encoder
        self._spelling_encoder = spelling_encoder
        self._token_bytes = tuple(token_bytes)
        self._specials = _with_rows(added, vocab_size)
        self._special_texts = {token: text for text, token in self._specials.items()}
        self.vocab_size = vocab_size
        """Rows of the embedding, and so of the logits; ids the tokenizer does not define
        (see ``is_defined``) are padding of the matrix."""
        self.end_of_turn_ids = frozenset(end_of_turn_ids)
        """Ids that end a model sequence. Never empty."""
        self.end_of_turn_id = end_of_turn_ids[0]
        """The one of them that the chat format writes."""
        self.strips_first_space = strips_first_space
        self.without_rows = added.keys() - self._specials.keys()
        """Added tokens that the embedding has no row for, by their texts: the model can neither
        read nor write one, and a text that spells one is text (Gemma 3 without images)."""
        digest = hashlib.sha256(source.encode())
        digest.update(f"{vocab_size} {end_of_turn_ids}".encode())
        self.fingerprint = digest.hexdigest()[:32]
        """Equal exactly for equal tokenizer.json, vocabulary size and end-of-turn ids."""

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        vocab_size: int | None = None,
        model_type: str | None = None,
        format_of: FormatOf | None = None,
    ) -> "Tokenizer":
        """Read ``tokenizer.json`` and, where present, the ``*_config.json`` beside it.

        Args:
            folder: a Hugging Face model folder.
            vocab_size: rows of the embedding if the caller knows them; default is
                config.json's ``vocab_size``, else one more than the highest id.
            model_type: config.json's ``model_type`` when there is no such file. Names the
                chat format, whose end-of-turn tokens end a sequence besides the configured ones.
            format_of: chooses the chat format instead; what it raises of ``ValueError`` and
                ``LookupError`` is the tokenizer's fault.

        Raises:
            TokenizerError: naming the file and what is wrong with it.
        """
        path = folder / "tokenizer.json"
        source = _json_text(path, TOKENIZER)
        if source is None:
            raise TokenizerError(f"{path}: file not found")
        raw = _json_object(path, source)
        config = _read_json(folder / "config.json") or {}
        added = _added_tokens(raw, folder)
        named = model_type or config.get("model_type")
        if format_of is None and named is not None:
            format_of = functools.partial(_by_vocabulary, str(named))
        pieces = _vocabulary(raw, path)
        top = max([*pieces.values(), *added.values()], default=0)
        stated = vocab_size if vocab_size is not None else _config_vocab_size(config, folder)
        rows = stated if stated is not None else top + 1
        specials = _with_rows(added, rows)
        pieces = _checked_rows(pieces, rows, path, but=added.keys() - specials.keys())
        encoder = _text_encoder(raw, frozenset(added), path)
        exact = without_prefix(raw)
        return cls(
            source=source.decode("utf-8"),
            text_encoder=encoder,
            spelling_encoder=encoder
            if exact == raw
            else _text_encoder(exact, frozenset(added), path),
            token_bytes=_byte_table(raw, pieces, specials, rows, path),
            added=added,
            vocab_size=rows,
            end_of_turn_ids=_end_of_turn_ids(folder, config, specials, rows, format_of),
            strips_first_space=_strips_first_space(raw),
        )

    @property
    def source(self) -> str:
        """The text of tokenizer.json."""
        return self._source

    @property
    def specials(self) -> Mapping[str, int]:
        """Every added token by its text."""
        return self._specials

    def encode(self, segments: Sequence[Segment]) -> TokenArray:
        """Token ids of the segments, int32 [n]; neighbouring text is encoded as one piece.

        Raises:
            TokenizerError: a special segment is not one added token of this tokenizer.
            UnsplittableText: see there.
        """
        ids: list[int] = []
        text = ""
        for segment in segments:
            if not segment.special:
                text += segment.text
                continue
            ids += self.text_encoder.encode(text)
            text = ""
            token = self._specials.get(segment.text)
            if token is None:
                raise TokenizerError(f"the tokenizer has no special token {segment.text!r}")
            ids.append(token)
        ids += self.text_encoder.encode(text)
        return np.array(ids, dtype=np.int32)

    def least_tokens(self, text: str) -> int:
        """No encoding of the text has fewer; found without tokenising it."""
        return self._bound.least(text)

    @property
    def most_bytes_per_token(self) -> int:
        """No rendered text has fewer tokens than its bytes of UTF-8 divided by this."""
        return max(self._bound.most_bytes, *map(len, self._special_texts.values()))

    @functools.cached_property
    def _bound(self) -> TokenBound:
        pieces = [
            piece
            for token, piece in enumerate(self._token_bytes)
            if piece is not None and token not in self._special_texts
        ]
        return self.text_encoder.bound(pieces)

    def spell(self, text: str) -> list[int]:
        """Token ids that write exactly this text, as it stands behind other text: without the space
        that some tokenizers put in front of what they encode."""
        return self._spelling_encoder.encode(text)

    def special_id(self, text: str) -> int | None:
        return self._specials.get(text)

    def special_text(self, token: int) -> str | None:
        return self._special_texts.get(token)

    def is_special(self, token: int) -> bool:
        """Whether the id is an added token (of any kind: ``<tool_call>`` is one)."""
        return token in self._special_texts

    def is_defined(self, token: int) -> bool:
        """Whether the tokenizer has this id, not only the embedding."""
        return self._token_bytes[token] is not None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token writes, which need not be whole UTF-8; a special token's name;
        empty for an id that only the embedding has."""
        return self._token_bytes[token] or b""

    def text_of(self, tokens: Iterable[int]) -> str:
        """The text of tokens, for people: special ones spelt out, broken characters marked."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")


class IncrementalDecoder:
    """Token ids to segments, one stream, O(1) per token.

    Always true: the text of all pushes plus ``finish`` does not depend on how the ids were
    split, and no push ends inside a character. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokenizer.strips_first_space

    def push(self, tokens: Iterable[int]) -> list[Segment]:
        """Segments these tokens complete: text in one piece, special tokens on their own."""
        segments: list[Segment] = []
        text = b""
        for token in tokens:
            token = int(token)
            name = self._tokenizer.special_text(token)
            piece = b"" if name is not None else self._tokenizer.token_bytes(token)
            if self._drop_space:
                self._drop_space = False
                piece = piece.removeprefix(b" ")
            text += piece
            if name is not None:
                self._append_text(segments, text, final=True)
                text = b""
                segments.append(Segment(name, special=True))
        self._append_text(segments, text, final=False)
        return segments

    def finish(self) -> list[Segment]:
        """The rest of an unfinished character (one U+FFFD), or nothing."""
        segments: list[Segment] = []
        self._append_text(segments, b"", final=True)
        return segments

    def _append_text(self, segments: list[Segment], text: bytes, *, final: bool) -> None:
        decoded = self._utf8.decode(text, final)
        if decoded:
            segments.append(Segment(decoded))


def _read_json(path: Path) -> dict[str, Any] | None:
    """The file's object, None if there is no such file."""
    text = _json_text(path, DESCRIPTION)
    return None if text is None else _json_object(path, text)


def _json_text(path: Path, bounds: JsonBounds) -> bytes | None:
    try:
        return read_json(path, bounds)
    except FileNotFoundError:
        return None
    except UnfitFile as error:
        raise TokenizerError(str(error)) from error


def _json_object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TokenizerError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return value


def _added_tokens(raw: dict[str, Any], folder: Path) -> dict[str, int]:
    """Added tokens of tokenizer.json, and those that only tokenizer_config.json lists."""
    path, other = folder / "tokenizer.json", folder / "tokenizer_config.json"
    listed = raw.get("added_tokens") or []
    if not isinstance(listed, list):
        raise TokenizerError(f"{path}: added_tokens is {_shown(listed)}, not a list")
    added = dict(
        _added_token(path, token, token.get("id") if isinstance(token, dict) else None)
        for token in listed
    )
    told = (_read_json(other) or {}).get("added_tokens_decoder") or {}
    if not isinstance(told, dict):
        raise TokenizerError(f"{other}: added_tokens_decoder is {_shown(told)}, not an object")
    for key, token in told.items():
        number = int(key) if key.isdecimal() and len(key) <= len(str(_MOST_ID)) else key
        added.setdefault(*_added_token(other, token, number))
    return added


def _added_token(path: Path, token: object, token_id: object) -> tuple[str, int]:
    text = token.get("content") if isinstance(token, dict) else None
    if not isinstance(text, str) or not _is_id(token_id):
        raise TokenizerError(
            f"{path}: the added token {_shown(token)} with the id {_shown(token_id)} is not a text "
            "(content) and a number"
        )
    return text, token_id


def _vocabulary(raw: dict[str, Any], path: Path) -> dict[str, int]:
    model = raw.get("model") or {}
    if not isinstance(model, dict):
        raise TokenizerError(f"{path}: model is {_shown(model)}, not an object")
    vocabulary = model.get("vocab")
    if model.get("type", "BPE") != "BPE" or not isinstance(vocabulary, dict):
        raise TokenizerError(f"{path}: model type {model.get('type')!r}, only BPE is supported")
    strange = next((piece for piece, token in vocabulary.items() if not _is_id(token)), None)
    if strange is not None:
        found = _shown(vocabulary[strange])
        raise TokenizerError(f"{path}: the token {_shown(strange)} has the id {found}, no number")
    return vocabulary


def _with_rows(added: Mapping[str, int], rows: int) -> dict[str, int]:
    return {text: token for text, token in added.items() if token < rows}


def _checked_rows(
    pieces: Mapping[str, int], rows: int, path: Path, *, but: Set[str]
) -> dict[str, int]:
    """The vocabulary without those tokens that may lack a row. Raises TokenizerError: others do."""
    kept = {piece: token for piece, token in pieces.items() if piece not in but}
    top = max(kept.values(), default=0)
    if top >= rows:
        raise TokenizerError(
            f"{path}: token id {top} has no row in an embedding of {rows} tokens; "
            "tokenizer and weights are of different models"
        )
    return kept


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_ID


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN_CHARS else text[:_MOST_SHOWN_CHARS] + "..."


def _config_vocab_size(config: dict[str, Any], folder: Path) -> int | None:
    text_part = config.get("text_config")
    inner = text_part.get("vocab_size") if isinstance(text_part, dict) else None
    size = config.get("vocab_size", inner)
    if size is not None and not _is_id(size):
        found = _shown(size)
        raise TokenizerError(f"{folder / 'config.json'}: vocab_size is {found}, not a number")
    return size


def _text_encoder(raw: dict[str, Any], specials: frozenset[str], path: Path) -> TextEncoder:
    try:
        return TextEncoder(raw, specials)
    except Exception as error:  # any failure inside the Rust library
        raise TokenizerError(f"{path}: {error}") from error


def _strips_first_space(raw: dict[str, Any]) -> bool:
    """Whether decoding drops the space that encoding put before the first word."""
    steps = node_types(raw.get("decoder"))
    if "Metaspace" in steps:
        return bool(steps["Metaspace"].get("prepend_scheme", "always") != "never")
    strip = steps.get("Strip", {})
    return bool(strip.get("content") == " " and strip.get("start", 0) > 0)


def _byte_table(
    raw: dict[str, Any],
    pieces: Mapping[str, int],
    specials: Mapping[str, int],
    vocab_size: int,
    path: Path,
) -> list[bytes | None]:
    """The bytes that each id writes. Raises TokenizerError if some byte has no token."""
    table: list[bytes | None] = [None] * vocab_size
    if "ByteLevel" in node_types(raw.get("decoder")):
        chars = _byte_level_chars()
        for piece, token in pieces.items():
            try:
                table[token] = bytes([chars[char] for char in piece])
            except KeyError:
                table[token] = piece.encode()
    elif raw["model"].get("byte_fallback"):
        for piece, token in pieces.items():
            fallback = _BYTE_FALLBACK.fullmatch(piece)
            table[token] = (
                bytes([int(fallback[1], 16)])
                if fallback
                else piece.replace(_METASPACE, " ").encode()
            )
    else:
        raise TokenizerError(f"{path}: neither byte-level nor with byte fallback")
    for token in specials.values():
        table[token] = None
    missing = {bytes([value]) for value in range(256)}.difference(t for t in table if t)
    # Bytes that occur in no UTF-8 text may be missing; sentencepiece writes ASCII as pieces.
    missing -= {bytes([value]) for value in (0xC0, 0xC1, *range(0xF5, 0x100))}
    if missing:
        raise TokenizerError(f"{path}: {len(missing)} bytes have no token, so text can be lost")
    for piece, token in specials.items():
        table[token] = piece.encode()
    return table


def _byte_level_chars() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE (Radford et al. 2019, GPT-2's
    ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    chars = {chr(value): value for value in printable}
    return chars | {chr(256 + index): value for index, value in enumerate(others)}


def _by_vocabulary(model_type: str, specials: Mapping[str, int]) -> ChatFormat:
    return chat_format_for(model_type, specials.__contains__)


def _end_of_turn_ids(
    folder: Path,
    config: dict[str, Any],
    specials: Mapping[str, int],
    vocab_size: int,
    format_of: FormatOf | None,
) -> list[int]:
    """The chat format's end-of-turn tokens, then generation_config.json's ``eos_token_id``,
    else config.json's, of a wrapper its text part's. The first is what a sequence is written
    with."""
    ids: list[int] = []
    if format_of is not None:
        try:
            chat_format = format_of(specials)
        except (ValueError, LookupError) as error:
            raise TokenizerError(f"{folder / 'config.json'}: {error}") from error
        ids += [specials[name] for name in chat_format.end_of_turn if name in specials]
    generation = _read_json(folder / "generation_config.json") or {}
    text_part = config.get("text_config")
    inner = text_part if isinstance(text_part, dict) else {}
    places = (("generation_config.json", generation), ("config.json", config))
    for name, source in (*places, ("config.json", inner)):
        value = source.get("eos_token_id")
        values = [] if value is None else value if isinstance(value, list) else [value]
        bad = [v for v in values if not _is_id(v) or v >= vocab_size]
        if bad:
            raise TokenizerError(f"{folder / name}: eos_token_id {bad[0]!r} is no token id")
        if values:
            ids += values
            break
    if not ids:
        raise TokenizerError(
            f"{folder}: no end-of-turn token in generation_config.json, config.json or a chat "
            "format"
        )
    return list(dict.fromkeys(ids))
