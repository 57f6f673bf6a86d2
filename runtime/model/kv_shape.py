"""What attention keeps of tokens in one layer, as the pool has room for it. No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Rows of numbers; layers with the same are kept in one tensor (``runtime.model.kv_pool``)."""

    rows: int
    """Of each head: a key and a value, or one that is both."""
    heads: int
    size: int
    """Numbers of a row."""
    tokens: int = 1
    """Of so many neighbouring tokens there is one row, in the block of the last of them."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"a row of {self.tokens} tokens, at least 1 is needed")

    def places(self, block_size: int) -> int:
        """Rows of a head that a block of so many tokens has room for."""
        return places_in_block(self.tokens, block_size)


def places_in_block(tokens: int, block_size: int) -> int:
    """How many stretches of so many tokens end in a block, at most. One whose last token is the
    n-th of its block, from 0 on, has place ``n // tokens``, which no other has."""
    return -(-block_size // tokens)
