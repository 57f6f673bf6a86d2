"""Small files of a model's folder, read within bounds.

Whoever made a folder does not decide what reading it costs: a file is a regular one (links are
followed) or a pipe, no larger than its bound while it is read, and its JSON has no more values and
levels than what is published needs. Who waits for a pipe is found by the watch over loading; where
there is none, as over a file that an option names, the wait has a bound.

Knows files and JSON. Knows no model and no tokenizer.

Always true: what is refused is refused before it is parsed, by the file's name.
"""

import os
import select
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from tools_api.json_bounds import BeyondBounds, bounded

MIB = 1 << 20


PIPE_WAIT_S = 5.0
"""Seconds for whoever writes into a pipe that an option names, as ``<(command)`` is one."""


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


def read_within(path: Path, most_bytes: int, *, wait_s: float | None = None) -> bytes:
    """The whole content of a file, or of a pipe, which is waited for.

    Args:
        wait_s: the most seconds until a pipe's end; None: it is waited for, come what may.

    Raises:
        FileNotFoundError: there is no such file.
        UnfitFile: it cannot be read, is no regular file, is larger, or did not end in time.
    """
    try:
        at_once = 0 if wait_s is None else os.O_NONBLOCK
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | at_once)
        with open(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                raise UnfitFile(path, "not a regular file")
            if wait_s is not None and stat.S_ISFIFO(mode):
                content = _piped(path, handle, most_bytes + 1, wait_s)
            else:
                content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnfitFile(path, str(error.strerror or error)) from error
    if len(content) > most_bytes:
        raise UnfitFile(path, f"larger than {most_bytes} bytes")
    return content


def read_named(path: Path, most_bytes: int) -> bytes:
    """As ``read_within``, of a file that an option names; a pipe has ``PIPE_WAIT_S``."""
    return read_within(path, most_bytes, wait_s=PIPE_WAIT_S)


def _piped(path: Path, handle: int, most_bytes: int, wait_s: float) -> bytes:
    content, until = bytearray(), time.monotonic() + wait_s
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    while len(content) < most_bytes:
        if not waiting.poll(max(0, round((until - time.monotonic()) * 1000))):
            raise UnfitFile(path, f"a pipe whose writer did not end within {wait_s:g} s")
        piece = os.read(handle, most_bytes - len(content))
        if not piece:
            break
        content += piece
    return bytes(content)


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
