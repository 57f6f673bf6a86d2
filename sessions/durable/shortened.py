"""Texts that are cut in the middle: how they are cut, and which text one is left of.

A note stands where something is missing. Knows no tokens and no items.

Always true: both ends stay, whole characters of each; a text that is cut again has one note,
which counts what both cuts left out.
"""

import re

_NOTE = re.compile(r"\n\[\.\.\. (\d{1,12}) characters left out \.\.\.\]\n")


def shortened(text: str, keep: int) -> str:
    """``text`` with ``keep`` of its characters, from both ends, and a note between them."""
    head, tail = text[: (keep + 1) // 2], text[len(text) - keep // 2 :]
    middle = text[len(head) : len(text) - len(tail)]
    missing = len(middle)
    for note in _NOTE.finditer(middle):
        missing += int(note[1]) - len(note[0])
    return f"{head}\n[... {missing} characters left out ...]\n{tail}"


def is_shortened(short: str, text: str) -> bool:
    """Whether ``short`` is what a cut, or several, left of ``text``."""
    return any(
        note.start() + int(note[1]) + len(short) - note.end() == len(text)
        and text.startswith(short[: note.start()])
        and text.endswith(short[note.end() :])
        for note in _NOTE.finditer(short)
    )
