"""Orders to write and to read slots: each ends, with its number and how it went."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove
from runtime.offload.disk_orders import KVStore
from tests.support.executors import AtOnce
from tests.support.slot_files import (
    BLOCK_BYTES,
    MAIN_BYTES,
    NEAR_BYTES,
    SLOT,
    content,
    filled,
    flip,
    ids,
    memory,
    open_file,
    parted,
    parts,
)


def nothing() -> None: ...


def order(source: Tier, target: Tier, sources: np.ndarray, targets: np.ndarray) -> BlockMove:
    return BlockMove(
        number=7,
        source=source,
        target=target,
        source_blocks=sources,
        target_blocks=targets,
        content=content(len(sources)) if target == Tier.DISK else None,
    )


def test_orders_end_with_their_number_and_count_bytes(tmp_path: Path) -> None:
    store, rows = KVStore(open_file(tmp_path), AtOnce()), memory(3)
    waited: list[int] = []
    down = order(Tier.HOST, Tier.DISK, ids(2, 0), ids(5, 3))
    store.write(down, rows, ids(2, 0), lambda: waited.append(1))
    assert waited == [1]
    assert list(store.take_over()) == [(7, True)]
    kept = rows.copy()
    rows[:] = 0
    read = order(Tier.DISK, Tier.HOST, ids(5, 3), ids(0, 1))
    store.read(read, rows, ids(0, 1), nothing, lambda: waited.append(2))
    assert waited == [1, 2]
    assert list(store.take_over()) == [(7, True)]
    assert np.array_equal(rows[:2], kept[[2, 0]])
    assert store.bytes_written == store.bytes_read == 2 * BLOCK_BYTES


def test_a_damaged_block_fails_its_order_and_is_counted(tmp_path: Path) -> None:
    store, rows = KVStore(open_file(tmp_path), AtOnce()), memory(2)
    store.write(order(Tier.HOST, Tier.DISK, ids(0, 1), ids(0, 1)), rows, ids(0, 1), nothing)
    flip(tmp_path, SLOT + 2500)
    list(store.take_over())
    sealed: list[int] = []
    read = order(Tier.DISK, Tier.HOST, ids(0, 1), ids(0, 1))
    store.read(read, rows, ids(0, 1), nothing, lambda: sealed.append(1))
    assert sealed == []
    assert list(store.take_over()) == [(7, False)]
    assert store.damaged_blocks == 1


def test_a_full_disk_fails_the_order_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rows = filled(tmp_path)
    store = KVStore(file, AtOnce())

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        down = order(Tier.HOST, Tier.DISK, ids(0), ids(2))
        store.write(down, rows, ids(0), nothing)
    assert list(store.take_over()) == [(7, False)]
    back = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    file.read(4, back)
    assert np.array_equal(back, rows[0])


def test_orders_carry_rows_of_windows_where_there_are_such(tmp_path: Path) -> None:
    store, (main, near) = KVStore(parted(tmp_path), AtOnce()), parts(3)
    went = order(Tier.HOST, Tier.DISK, ids(0, 2), ids(5, 3))
    store.write(went, main, ids(0, 2), lambda: None, near=(near, ids(2, -1)))
    back, beside = np.zeros_like(main), np.zeros_like(near)
    done: list[bool] = []
    came = order(Tier.DISK, Tier.HOST, ids(5, 3), ids(1, 0))
    store.read(
        came, back, ids(1, 0), lambda: None, lambda: done.append(True), near=(beside, ids(0, -1))
    )
    assert [ok for _, ok in store.take_over()] == [True, True]
    assert done == [True]
    assert np.array_equal(back[[1, 0]], main[[0, 2]])
    assert np.array_equal(beside[0], near[2])
    assert store.bytes_read == store.bytes_written == 2 * MAIN_BYTES + NEAR_BYTES
