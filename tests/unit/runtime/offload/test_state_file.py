"""States on disk: what is read is what was written, or is not there."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from radix_cache.snapshots import SnapshotKind, StateContent, StoredState
from runtime.offload.disk import DamagedSlot, StoreError
from runtime.offload.state_file import STATES, StateFile, state_slot_bytes

ROW = 5000
SLOT = state_slot_bytes(ROW)


def opened(folder: Path, *, slots: int = 4, layout: str = "m") -> StateFile:
    return StateFile(folder, num_slots=slots, row_bytes=ROW, layout=layout)


def content(number: int, *, tenant: str = "red", tail: int = 3) -> StateContent:
    return StateContent(
        tenant=tenant,
        kind=SnapshotKind.HEADER if number % 2 else SnapshotKind.END,
        blocks=number,
        key=bytes([number]) * 16,
        tail=np.arange(tail, dtype=np.int32),
    )


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, ROW)).astype(np.uint8)


def ids(one: int) -> np.ndarray:
    return np.array([one], dtype=np.int32)


def filled(folder: Path) -> np.ndarray:
    file, memory = opened(folder), rows(1)
    for slot in range(3):
        file.write(content(slot), ids(slot), memory, ids(slot))
    file.close()
    return memory


def told(stored: StoredState) -> tuple[object, ...]:
    it = stored.content
    return stored.slot, it.tenant, it.kind, it.blocks, it.key, it.tail.tolist()


def test_another_process_finds_what_was_written_and_reads_its_bytes(tmp_path: Path) -> None:
    memory, file = filled(tmp_path), opened(tmp_path)
    found = [told(each) for each in file.stored()]
    assert found == [told(StoredState(content=content(slot), slot=slot)) for slot in range(3)]
    for slot in range(3):
        row = np.empty(ROW, dtype=np.uint8)
        file.read(slot, row)
        assert row.tolist() == memory[slot].tolist()
    file.close()


@pytest.mark.parametrize("place", [0, 10, 40, 100, 2040, 2048, 2048 + ROW - 1])
def test_a_flipped_bit_is_a_state_that_is_not_there(tmp_path: Path, place: int) -> None:
    filled(tmp_path)
    with open(tmp_path / STATES, "r+b") as file:
        file.seek(SLOT + place)
        byte = file.read(1)[0]
        file.seek(SLOT + place)
        file.write(bytes([byte ^ 4]))
    again = opened(tmp_path)
    found = [each.slot for each in again.stored()]
    row = np.empty(ROW, dtype=np.uint8)
    if 1 in found:
        with pytest.raises(DamagedSlot):
            again.read(1, row)
    assert {0, 2} <= set(found)
    again.close()


@pytest.mark.parametrize("size", [0, 100, SLOT + 2048, 3 * SLOT - 5000])
def test_a_file_that_was_cut_has_lost_what_was_behind(tmp_path: Path, size: int) -> None:
    filled(tmp_path)
    os.truncate(tmp_path / STATES, size)
    file = opened(tmp_path)
    whole = 0
    for each in file.stored():
        row = np.empty(ROW, dtype=np.uint8)
        try:
            file.read(each.slot, row)
            whole += 1
        except DamagedSlot:
            assert size < (each.slot + 1) * SLOT
    assert whole == size // SLOT
    file.close()


def test_a_file_that_is_cut_while_it_is_open_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    file, memory = opened(tmp_path), rows(2)
    file.write(content(1), ids(1), memory, ids(0))
    os.truncate(tmp_path / STATES, SLOT + 3000)
    with pytest.raises(DamagedSlot):
        file.read(1, np.empty(ROW, dtype=np.uint8))
    file.close()


def test_states_of_another_layout_are_told_in_one_line_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    with caplog.at_level(logging.WARNING):
        file = opened(tmp_path, layout="another model")
        assert list(file.stored()) == []
    assert [record.getMessage() for record in caplog.records] == [
        "disk cache: states of another model or layout not used=3"
    ]
    file.write(content(0), ids(0), rows(3), ids(0))
    assert [each.slot for each in file.stored()] == [0]
    file.close()


def test_a_slot_that_holds_another_state_by_now_is_not_read(tmp_path: Path) -> None:
    filled(tmp_path)
    file = opened(tmp_path)
    list(file.stored())
    other = opened(tmp_path)
    other.write(content(9), ids(1), rows(3), ids(0))
    with pytest.raises(DamagedSlot):
        file.read(1, np.empty(ROW, dtype=np.uint8))
    file.close()
    other.close()


def test_a_name_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    file = opened(tmp_path)
    with pytest.raises(OSError, match="a tenant's name of 3000 bytes"):
        file.write(content(1, tenant="n" * 3000), ids(0), rows(1), ids(0))
    assert list(file.stored()) == []
    file.close()


def test_a_disk_without_room_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="MiB are free"):
        opened(tmp_path, slots=1 << 40)
