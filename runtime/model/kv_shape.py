"""What attention keeps of a token in one layer, as the pool has room for it. No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Rows of numbers; layers with the same are kept in one tensor (``runtime.model.kv_pool``)."""

    rows: int
    """Of each head: a key and a value, or one that is both."""
    heads: int
    size: int
    """Numbers of a row."""
