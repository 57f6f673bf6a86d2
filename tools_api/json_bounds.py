"""How deep and how large JSON is, told before it is parsed.

A parser makes objects of what it reads: a text of brackets takes forty times its length in memory.
Works on bytes alone, in time linear in them. Knows nothing of what the JSON says.

Always true: on malformed text the figures may be wrong behind the fault, where no parser arrives.
"""

from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20


class BeyondBounds(ValueError):
    """A text is too large or nested too deep to be parsed. The message says which."""


def bounded(text: bytes, *, most_values: int, most_levels: int) -> bytes:
    """The text outside the strings of a text that is within its bounds, put together.

    First what stands in strings is cut out, then pairs of brackets are deleted from the inside
    out, one level at a time.

    Args:
        most_values: strings; and commas and opening brackets outside of them.
        most_levels: of arrays and objects.

    Raises:
        BeyondBounds: it is not.
    """
    bare = without_escapes(text)
    if bare.count(b'"') > 2 * most_values:
        raise BeyondBounds(f"more than {most_values} strings")
    structure = outside_strings(bare)
    if sum(map(structure.count, (b",", b"[", b"{"))) > most_values:
        raise BeyondBounds(f"more than {most_values} values")
    brackets = structure.translate(_TO_SQUARE, delete=_NOT_BRACKETS)
    for _ in range(most_levels):
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > most_levels:
        raise BeyondBounds(f"nested deeper than {most_levels} levels")
    return structure


def without_escapes(text: bytes) -> bytes:
    """A JSON text in which every quote opens or closes a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def outside_strings(bare: bytes) -> bytes:
    """The text outside the strings of what ``without_escapes`` gave, put together."""
    return b"".join(_outside(bare))


def _outside(bare: bytes) -> Iterator[bytes]:
    """A chunk at a time, since each piece of a split takes memory of its own."""
    inside = False
    for at in range(0, len(bare), _CHUNK_BYTES):
        pieces = bare[at : at + _CHUNK_BYTES].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0


_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
