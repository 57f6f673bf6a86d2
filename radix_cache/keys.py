"""Names of blocks that hold beyond this process: chained xxh3-128 of all tokens up to their end.

https://xxhash.com/doc/v0.8.3. Computed only for what goes to the disk.
"""

import xxhash

from radix_cache.edge import TokenArray
from radix_cache.nodes import Owner


def root_key(owner: Owner) -> bytes:
    """Where the chain of keys of ``owner`` begins, 16 bytes."""
    return xxhash.xxh3_128_digest(owner.key.encode())


def chain_keys(key: bytes, tokens: TokenArray, block_size: int) -> list[bytes]:
    """The xxh3-128 key of each block of ``tokens``: of the key before it and its tokens. It
    names all tokens up to the block's end, however they are cut into runs."""
    data = tokens.tobytes()
    step = 4 * block_size
    keys = []
    for start in range(0, len(data), step):
        key = xxhash.xxh3_128_digest(key + data[start : start + step])
        keys.append(key)
    return keys
