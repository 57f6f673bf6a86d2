"""How few tokens a text can have: a bound that is found without tokenising it.

What cannot fit a context is refused by it, before seconds go into tokenising. Three things bound
the tokens from below: the text's length, how often it has each byte, and its runs of one
character, inside which a token is a run itself.

Knows what the tokens of a vocabulary write, and the normalizer of tokenizer.json. Knows no merges.

Always true: no encoding of the text has fewer tokens than ``least``.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_METASPACE = "\u2581"
_LONG = 8192
"""Characters of a text from which on more than its length is looked at, and of a run."""
_AT_ONCE = 1 << 20
_SHRINKS = {"Prepend": 1, "NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4}
"""The number of bytes of UTF-8 of which a normalizer may make one. What is ASCII they leave as it
is."""


class TokenBound:
    """The bound of one vocabulary."""

    def __init__(self, pieces: Sequence[bytes], normalizer: Any, *, metaspace: bool) -> None:
        """
        Args:
            pieces: what each token of text writes.
            normalizer: its node in tokenizer.json, or None.
            metaspace: the pieces write a space for U+2581, in whose place it may stand in texts.
        """
        self._metaspace = metaspace
        self._shrinks = _shrinks(normalizer)
        self._longest = max(map(len, pieces), default=1)
        self._most_of = _most_of(pieces)
        self._runs: dict[str, int] = {}
        """Bytes of the longest token that is one character again and again."""
        self._longest_part = 1
        """Bytes of the longest token that begins or ends inside a character."""
        for piece in pieces:
            self._learn_run(piece)

    def _learn_run(self, piece: bytes) -> None:
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            self._longest_part = max(self._longest_part, len(piece))
            return
        if text == text[:1] * len(text):
            self._runs[text[:1]] = max(self._runs.get(text[:1], 0), len(piece))

    @property
    def most_bytes(self) -> int:
        """The most bytes of a text's UTF-8 that a token stands for."""
        spelt = len(_METASPACE.encode()) if self._metaspace else 1
        return self._longest * self._shrinks * spelt or sys.maxsize

    def least(self, text: str) -> int:
        """No encoding of the text has fewer tokens. Linear in the text, and fast."""
        if self._metaspace:
            text = text.replace(_METASPACE, " ")
        data = text.encode("utf-8", "surrogatepass")
        shrinks = 1 if self._shrinks and text.isascii() else self._shrinks
        least = len(data) // (self._longest * shrinks) if shrinks else 0
        if len(text) < _LONG or shrinks != 1:
            return least
        counts = sum(_counts(data[at : at + _AT_ONCE]) for at in range(0, len(data), _AT_ONCE))
        return max(least, int((counts // self._most_of).max()), self._least_of_runs(text))

    def _least_of_runs(self, text: str) -> int:
        """The least of the tokens that lie inside of long runs. At each end of one another token
        may reach into it."""
        least = 0
        for at in range(0, len(text), _AT_ONCE):
            codes = np.frombuffer(
                text[at : at + _AT_ONCE].encode("utf-32-le", "surrogatepass"), dtype=np.uint32
            )
            ends = np.append(np.flatnonzero(codes[1:] != codes[:-1]), len(codes) - 1)
            lengths = np.diff(ends, prepend=-1)
            for run in np.flatnonzero(lengths >= _LONG):
                char = chr(codes[ends[run]])
                width = len(char.encode("utf-8", "surrogatepass"))
                part = self._longest_part if width > 1 else 1
                inside = int(lengths[run]) * width - 2 * self._longest
                least += max(inside, 0) // max(self._runs.get(char, 1), part)
        return least


def _counts(data: bytes) -> npt.NDArray[np.int64]:
    return np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)


def _most_of(pieces: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """How often a single piece has each byte, at most; 1 for those that none has."""
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    data = np.frombuffer(b"".join(pieces), dtype=np.uint8).astype(np.int64)
    whose = np.repeat(np.arange(len(pieces)), lengths)
    found, times = np.unique(whose * 256 + data, return_counts=True)
    most = np.ones(256, dtype=np.int64)
    np.maximum.at(most, found % 256, times)
    return most


def _shrinks(node: Any) -> int:
    """The number of bytes of which a normalizer may make one; 0 if nobody knows."""
    if node is None:
        return 1
    if node.get("type") == "Sequence":
        return math.prod(map(_shrinks, node["normalizers"]))
    is_meta = node.get("type") == "Replace" and node.get("pattern") == {"String": " "}
    return 1 if is_meta and node.get("content") == _METASPACE else _SHRINKS.get(node["type"], 0)
