"""Text to token ids by the tokenizer library, however long its words are.

The added tokens are taken out of the library's tokenizer, so that nothing a text spells becomes
one. Where the library gives up on a text, its words are cut by ``runtime.long_words`` and the
library merges them one by one: the same tokens.

Knows tokenizer.json. Knows no segments, no special tokens and no embedding.

Always true: the ids of a text are those the library has for it, whoever cut it into words.
"""

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import orjson
import tokenizers

from runtime.expressions import Unsupported
from runtime.long_words import LongWords, library_step
from runtime.token_bound import TokenBound
from tools_api.exact_json import whole_text

_STEPS = ("normalizer", "normalizers", "pre_tokenizer", "pretokenizers")
"""Keys of tokenizer.json under which a text's way into the model stands."""
_LONG_WORD = 150_000
"""Characters. The library gives up on none that is as short."""
_SAMPLE = 1000
_WORDS_AT_ONCE = 50_000


class UnsplittableText(Exception):
    """The library gives up on the text, and cuts it by an expression that nobody else knows."""


class TextEncoder:
    """Safe to share between threads."""

    def __init__(self, raw: Mapping[str, Any], specials: frozenset[str]) -> None:
        """
        Args:
            raw: tokenizer.json.
            specials: texts of the added tokens. They leave the vocabulary as well: a BPE with
                ``ignore_merges`` takes a whole word that is in it, merges or no merges.

        Raises:
            Exception: any failure inside the Rust library is a bare one.
        """
        self._pre_tokenizer = _without_first_prefix(raw.get("pre_tokenizer"))
        plain = {
            **raw,
            "model": _without(specials, raw["model"]),
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
            "pre_tokenizer": self._pre_tokenizer,
        }
        self._normalizer = raw.get("normalizer")
        self._metaspace = "ByteLevel" not in node_types(raw.get("decoder"))
        self._whole = tokenizers.Tokenizer.from_str(orjson.dumps(plain).decode())

    def bound(self, pieces: Sequence[bytes]) -> TokenBound:
        """How few ids a text can have, where they write ``pieces``."""
        return TokenBound(pieces, self._normalizer, metaspace=self._metaspace)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Other threads run meanwhile.

        Raises:
            UnsplittableText: see there.
        """
        if not text:
            return []
        text = whole_text(text)
        if self._seems_too_long(text):
            with suppress(UnsplittableText):
                return self.encode_by_word(text)
        try:
            # As a batch it lets others run; without offsets it takes half the time.
            (found,) = self._whole.encode_batch_fast([text], add_special_tokens=False)
        except BaseException as error:
            # What the Rust library gives up with is no Exception, and its type has no module.
            if type(error).__name__ != "PanicException":
                raise
            return self.encode_by_word(text)
        return found.ids

    def _seems_too_long(self, text: str) -> bool:
        """Whether the library would give up. It does so slowly, and tells the log at length; where
        this is mistaken, it only costs time.

        A word for which it would is longer than the steps between the samples, one of which then
        is a part of it, and a word itself.
        """
        cutter = self._whole.pre_tokenizer
        if cutter is None or len(text) < _LONG_WORD:
            return False
        samples = (text[at : at + _SAMPLE] for at in range(0, len(text), _LONG_WORD // 2))
        return any(
            len(word) > _SAMPLE * 3 // 4
            for sample in samples
            for word, _ in cutter.pre_tokenize_str(sample)
        )

    def encode_by_word(self, text: str) -> list[int]:
        """The same, slower, without the library's expressions.

        Raises:
            UnsplittableText: see there.
        """
        try:
            cut, by_word = self._by_word
            normaliser = self._whole.normalizer
            text = text if normaliser is None else normaliser.normalize_str(text)
            words, ids = cut.of(text), list[int]()
            while some := list(islice(words, _WORDS_AT_ONCE)):
                (found,) = by_word.encode_batch_fast(
                    [some], is_pretokenized=True, add_special_tokens=False
                )
                ids += found.ids
        except Unsupported as error:
            raise UnsplittableText(
                "it has a run of characters of one kind that is too long to be tokenised"
            ) from error
        return ids

    @functools.cached_property
    def _by_word(self) -> tuple[LongWords, tokenizers.Tokenizer]:
        """The cutter of texts, and the library's tokenizer for single words."""
        cut = LongWords(self._pre_tokenizer)
        by_word = tokenizers.Tokenizer(self._whole.model)
        if cut.rest is not None:
            by_word.pre_tokenizer = library_step(cut.rest)
        return cut, by_word


def node_types(node: Any) -> dict[str, dict[str, Any]]:
    """Steps of a pre-tokenizer or decoder by type, sequences flattened."""
    if not isinstance(node, dict):
        return {}
    found = {str(node.get("type")): node}
    for child in [*node.get("pretokenizers", []), *node.get("decoders", [])]:
        found |= node_types(child)
    return found


def without_prefix(node: Any) -> Any:
    """A tokenizer's description, or a part of it, with no space put in front of texts."""
    if isinstance(node, list):
        return [without_prefix(step) for step in node if not _is_prepend(step)]
    if not isinstance(node, dict):
        return node
    if _is_prepend(node):
        return None
    kept = {key: without_prefix(node[key]) for key in _STEPS if key in node}
    for key, value in (("prepend_scheme", "never"), ("add_prefix_space", False)):
        if key in node:
            kept[key] = value
    return {**node, **kept}


def _is_prepend(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "Prepend"


def _without(specials: frozenset[str], model: Mapping[str, Any]) -> dict[str, Any]:
    """A model that cannot write the added tokens."""
    vocabulary = {piece: token for piece, token in model["vocab"].items() if piece not in specials}
    merges = [merge for merge in model.get("merges", []) if not specials & _pieces(merge)]
    plain = {**model, "vocab": vocabulary, "merges": merges}
    return plain | {"unk_token": None} if plain.get("unk_token") in specials else plain


def _pieces(merge: str | Sequence[str]) -> set[str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return {left, right, left + right}


def _without_first_prefix(node: Any) -> Any:
    """Metaspace's ``prepend_scheme: first`` means the start of the transcript. Ours start
    with a special token, so no text we encode is first."""
    if not isinstance(node, dict):
        return node
    if node.get("type") == "Sequence":
        return {**node, "pretokenizers": [_without_first_prefix(n) for n in node["pretokenizers"]]}
    if node.get("type") == "Metaspace" and node.get("prepend_scheme") == "first":
        return {**node, "prepend_scheme": "never"}
    return node
