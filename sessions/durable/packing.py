"""JSON objects kept small while nobody asks for them.

Deflating runs in the event loop, so only what takes less than a millisecond is deflated; a larger
text stays as it is, and counts with all its bytes where it is kept.

Always true: ``unpack(pack(text)) == text``, for every text that ``pack`` takes.
"""

import zlib

MAX_DEFLATED_BYTES = 64 * 1024
_WINDOW_BITS, _MEMORY_LEVEL = 13, 6


def pack(text: bytes) -> bytes:
    """A JSON object, or nothing, as it is kept.

    Raises:
        ValueError: it is something else.
    """
    if text and not text.startswith(b"{"):
        raise ValueError("no JSON object")
    if not text or len(text) > MAX_DEFLATED_BYTES:
        return text
    return deflate(text)


def deflate(data: bytes) -> bytes:
    """Any bytes, deflated; ``zlib.decompress`` is the inverse.

    By its own choice zlib takes a quarter of a megabyte for each call, fresh from the system, which
    costs ten times what it costs to deflate an event. A window of 8 KB takes a quarter of that.
    """
    deflating = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return deflating.compress(data) + deflating.flush()


def unpack(packed: bytes) -> bytes:
    """The text again. A deflated one is no longer than ``MAX_DEFLATED_BYTES``."""
    # What is deflated begins with a byte x8 (RFC 1950, section 2.2).
    return packed if not packed or packed.startswith(b"{") else zlib.decompress(packed)
