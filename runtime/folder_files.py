"""Small files of a model's folder, read within bounds.

Whoever made a folder does not decide what reading it costs: a file is a regular one (links are
followed) or a pipe, no larger than its bound while it is read, and its JSON has no more values and
levels than what is published needs. Who waits for a pipe is found by the watch over
loading.

Knows files and JSON. Knows no model and no tokenizer.

Always true: what is refused is refused before it is parsed, by the file's name.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tools_api.json_bounds import BeyondBounds, bounded

MIB = 1 << 20


class UnfitFile(Exception):
    """The file cannot be read within its bounds. The message names it and says why; the reason
    alone is in ``reason``."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """Bounds on a file of JSON."""

    most_bytes: int
    most_values: int
    """Commas and opening brackets outside strings, and strings."""
    most_levels: int = 64


DESCRIPTION = JsonBounds(most_bytes=64 * MIB, most_values=4_000_000)
"""Configurations and lists of shards."""
TOKENIZER = JsonBounds(most_bytes=64 * MIB, most_values=6_000_000)
"""``tokenizer.json``: half a million merges of two strings each, and as many pieces."""
HEADER = JsonBounds(most_bytes=16 * MIB, most_values=1_200_000)
"""Bound on the header of one file of weights: 65,536 tensors."""


def read_within(path: Path, most_bytes: int) -> bytes:
    """The whole content of a file, or of a pipe, which is waited for.

    Raises:
        FileNotFoundError: there is no such file.
        UnfitFile: it cannot be read, is no regular file, or is larger.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                raise UnfitFile(path, "not a regular file")
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnfitFile(path, str(error.strerror or error)) from error
    if len(content) > most_bytes:
        raise UnfitFile(path, f"larger than {most_bytes} bytes")
    return content


def refuse_beyond(text: bytes, bounds: JsonBounds, path: Path) -> None:
    """Look at JSON before it is parsed.

    Raises:
        UnfitFile: it has more values or levels than ``bounds`` allow.
    """
    try:
        bounded(text, most_values=bounds.most_values, most_levels=bounds.most_levels)
    except BeyondBounds as error:
        raise UnfitFile(path, f"not JSON within bounds: {error}") from None


def read_json(path: Path, bounds: JsonBounds) -> bytes:
    """The text of a file of JSON that is within ``bounds``. Raises as ``read_within``, and
    ``UnfitFile`` as ``refuse_beyond``."""
    text = read_within(path, bounds.most_bytes)
    refuse_beyond(text, bounds, path)
    return text
