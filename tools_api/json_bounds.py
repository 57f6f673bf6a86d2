"""How deep and how large JSON is, told before it is parsed.

A parser makes objects of what it reads: a text of brackets takes forty times its length in memory.
Works on bytes alone, in time linear in them. Knows nothing of what the JSON says.

Always true: on malformed text the figures may be wrong behind the fault, where no parser arrives.
"""

from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20


def beyond_bounds(text: bytes, *, most_values: int, most_levels: int) -> str | None:
    """Why a text is too large or nested too deep to be parsed; None if it is not.

    First what stands in strings is cut out, then pairs of brackets are deleted from the inside
    out, one level at a time.

    Args:
        most_values: strings; and commas and opening brackets outside of them.
        most_levels: of arrays and objects.
    """
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 2 * most_values:
        return f"more than {most_values} strings"
    structure = b"".join(_outside_strings(text))
    if sum(map(structure.count, (b",", b"[", b"{"))) > most_values:
        return f"more than {most_values} values"
    brackets = structure.translate(_TO_SQUARE, delete=_NOT_BRACKETS)
    for _ in range(most_levels):
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > most_levels:
        return f"nested deeper than {most_levels} levels"
    return None


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """What stands outside strings, of a text without escaped quotes; a chunk at a time, since each
    piece of a split takes memory of its own."""
    inside = False
    for at in range(0, len(text), _CHUNK_BYTES):
        pieces = text[at : at + _CHUNK_BYTES].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0


_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
