"""Files of slots with a few small blocks, and what is written to them."""

from pathlib import Path

import numpy as np

from radix_cache.transfers import RunContent
from runtime.offload.disk import BLOCKS, SlotFile, slot_bytes

BLOCK_SIZE, BLOCK_BYTES, SLOTS = 4, 1000, 6
SLOT = slot_bytes(BLOCK_BYTES)
ROOT = bytes(16)
NEAR_BYTES = 600
MAIN_BYTES = BLOCK_BYTES - NEAR_BYTES


def open_file(folder: Path, **changes: object) -> SlotFile:
    settings: dict = {
        "num_blocks": SLOTS,
        "block_size": BLOCK_SIZE,
        "block_bytes": BLOCK_BYTES,
        "identity": "a model",
    }
    return SlotFile(folder, **(settings | changes))


def content(
    count: int, *, tenant: str = "t", position: int = 0, parent: bytes = ROOT
) -> RunContent:
    tokens = np.arange(count * BLOCK_SIZE, dtype=np.int32) + 100 * position
    return RunContent(tenant=tenant, position=position, parent_key=parent, tokens=tokens)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def memory(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, BLOCK_BYTES), dtype=np.uint8)


def filled(folder: Path) -> tuple[SlotFile, np.ndarray]:
    """A file with two blocks of a transcript in slots 4 and 1."""
    file, rows = open_file(folder), memory(3)
    file.write(content(2), ids(4, 1), rows, ids(0, 2))
    return file, rows


def flip(folder: Path, offset: int) -> None:
    with open(folder / BLOCKS, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def parted(folder: Path) -> SlotFile:
    return open_file(folder, near_bytes=NEAR_BYTES)


def parts(rows: int) -> tuple[np.ndarray, np.ndarray]:
    both = memory(rows)
    return both[:, :MAIN_BYTES].copy(), both[:, MAIN_BYTES:].copy()
