"""Packed masks over a vocabulary: one bit a token, in words of 32.

Bit ``t % 32`` of word ``t // 32`` is set where token t is allowed. Knows no grammar.
"""

import numpy as np
import numpy.typing as npt

MaskRow = npt.NDArray[np.int32]
"""int32 [mask_words(vocabulary)]."""


def mask_words(vocab_size: int) -> int:
    """Words of a mask over ``vocab_size`` tokens."""
    return -(-vocab_size // 32)


def set_bit(row: MaskRow, token: int) -> None:
    """Allow a token in a mask."""
    row.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def only_bit(row: MaskRow) -> int | None:
    """The one token of a mask that allows exactly one."""
    if np.count_nonzero(row) != 1:
        return None
    word = int(row.argmax() if row.max() > 0 else row.argmin())
    bits = int(row[word]) & 0xFFFFFFFF
    return None if bits & (bits - 1) else word * 32 + bits.bit_length() - 1
