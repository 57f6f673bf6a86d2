"""KV on disk: what was written comes back after a restart, or is known to be lost."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash

from radix_cache.keys import chain_keys
from runtime.offload.disk import (
    BLOCKS,
    MARK,
    MARK_BYTES,
    DamagedSlot,
    SlotFile,
    StoreError,
)
from tests.support.slot_files import (
    BLOCK_BYTES,
    BLOCK_SIZE,
    MAIN_BYTES,
    NEAR_BYTES,
    ROOT,
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


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    file, rows = filled(tmp_path)
    for slot, row in ((4, 0), (1, 2)):
        back = np.zeros(BLOCK_BYTES, dtype=np.uint8)
        file.read(slot, back)
        assert np.array_equal(back, rows[row])


def test_a_restart_finds_runs_with_tenant_place_key_and_tokens(tmp_path: Path) -> None:
    filled(tmp_path)[0].close()
    file = open_file(tmp_path)
    second, first = list(file.stored())
    keys = chain_keys(ROOT, content(2).tokens, BLOCK_SIZE)
    assert [run.blocks.tolist() for run in (first, second)] == [[4], [1]]
    assert [run.content.position for run in (first, second)] == [0, 1]
    assert [run.content.parent_key for run in (first, second)] == [ROOT, keys[0]]
    assert {run.content.tenant for run in (first, second)} == {"t"}
    tokens = np.concatenate([first.content.tokens, second.content.tokens])
    assert np.array_equal(tokens, content(2).tokens)
    back = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    file.read(1, back)
    assert np.array_equal(back, memory(3)[2])


@pytest.mark.parametrize("offset", [8, 100, 600, 2047, 2048, 2048 + BLOCK_BYTES - 1])
def test_a_flipped_bit_is_noticed_when_the_slot_is_read(tmp_path: Path, offset: int) -> None:
    file, _ = filled(tmp_path)
    flip(tmp_path, 4 * SLOT + offset)
    with pytest.raises(DamagedSlot):
        file.read(4, np.zeros(BLOCK_BYTES, dtype=np.uint8))
    file.read(1, np.zeros(BLOCK_BYTES, dtype=np.uint8))


def test_a_damaged_header_is_not_found_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path)[0].close()
    flip(tmp_path, 4 * SLOT + 100)
    assert [run.blocks.tolist() for run in open_file(tmp_path).stored()] == [[1]]


@pytest.mark.parametrize(
    ("name", "said_bytes"), [(b"\xff\xfe", 2), (b"t", 60_000)], ids=["no text", "no end"]
)
def test_a_slot_with_a_name_that_is_none_is_skipped_and_the_rest_found(
    tmp_path: Path, name: bytes, said_bytes: int
) -> None:
    """Its checksums are right: a header that was written wrongly, or by somebody else."""
    file, _ = filled(tmp_path)
    file.close()
    with open(tmp_path / BLOCKS, "r+b") as damaged:
        damaged.seek(4 * SLOT)
        header = bytearray(damaged.read(2048))
        start = struct.calcsize("<8sIHH16s16s16s")
        header[14:16] = said_bytes.to_bytes(2, "little")
        header[start : start + len(name)] = name
        header[-16:] = xxhash.xxh3_128_digest(bytes(header[:-16]))
        damaged.seek(4 * SLOT)
        damaged.write(header)
    file = open_file(tmp_path)
    assert [run.blocks.tolist() for run in file.stored()] == [[1]]


def test_a_slot_with_other_tokens_than_those_asked_for_is_damaged(tmp_path: Path) -> None:
    """A whole, unharmed slot in the wrong place."""
    file, _ = filled(tmp_path)
    with open(tmp_path / BLOCKS, "r+b") as raw:
        raw.seek(1 * SLOT)
        other = raw.read(SLOT)
        raw.seek(4 * SLOT)
        raw.write(other)
    with pytest.raises(DamagedSlot, match="other tokens"):
        file.read(4, np.zeros(BLOCK_BYTES, dtype=np.uint8))


def test_a_smaller_file_keeps_what_fits(tmp_path: Path) -> None:
    filled(tmp_path)[0].close()
    file = open_file(tmp_path, num_blocks=3)
    assert [run.blocks.tolist() for run in file.stored()] == [[1]]
    assert os.path.getsize(tmp_path / BLOCKS) == 3 * SLOT


@pytest.mark.parametrize(
    "changes", [{"identity": "another"}, {"block_size": 8}, {"block_bytes": 1001}]
)
def test_the_kv_of_another_model_is_refused_and_kept(tmp_path: Path, changes: dict) -> None:
    filled(tmp_path)[0].close()
    with pytest.raises(StoreError, match="another model or another layout"):
        open_file(tmp_path, **changes)
    assert len(list(open_file(tmp_path).stored())) == 2


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(StoreError, match="holds other files"):
        open_file(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", [MARK, BLOCKS])
def test_a_link_in_the_folder_is_not_followed(name: str, tmp_path: Path) -> None:
    """What it points to would be written over."""
    folder, victim = tmp_path / "kv", tmp_path / "victim"
    open_file(folder).close()
    victim.write_text("dear")
    (folder / name).unlink()
    (folder / name).symlink_to(victim)
    with pytest.raises(StoreError, match=r"symbolic links"):
        open_file(folder)
    assert victim.read_text() == "dear"


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match="may be written by others"):
        open_file(tmp_path)


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        open_file(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        open_file(tmp_path / "file" / "cache")


def test_one_engine_at_a_time_has_the_folder(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    with pytest.raises(StoreError, match="used by another engine"):
        open_file(tmp_path)
    file.close()
    open_file(tmp_path).close()


def test_a_disk_without_room_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="MiB are free"):
        open_file(tmp_path, num_blocks=1 << 40)
    open_file(tmp_path).close()


def test_the_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    open_file(tmp_path / "new" / "folder")
    assert os.stat(tmp_path / "new" / "folder").st_mode & 0o077 == 0
    for name in (MARK, BLOCKS):
        assert os.stat(tmp_path / "new" / "folder" / name).st_mode & 0o077 == 0


# Rows of layers with a window


def test_a_slot_holds_rows_of_windows_where_its_block_has_them(tmp_path: Path) -> None:
    file, (main, near) = parted(tmp_path), parts(3)
    written = file.write(content(2), ids(4, 1), main, ids(0, 2), (near, ids(-1, 1)))
    assert written == 2 * MAIN_BYTES + NEAR_BYTES
    _holds(file, main, near)
    file.close()
    again = parted(tmp_path)
    found = {int(run.blocks[0]): run.near for run in again.stored()}
    assert {slot: each.tolist() for slot, each in found.items() if each is not None} == {
        4: [False],
        1: [True],
    }
    _holds(again, main, near)


def _holds(file: SlotFile, main: np.ndarray, near: np.ndarray) -> None:
    row, beside = np.zeros(MAIN_BYTES, np.uint8), np.zeros(NEAR_BYTES, np.uint8)
    assert file.read(4, row) == MAIN_BYTES
    assert np.array_equal(row, main[0])
    assert file.read(1, row, beside) == BLOCK_BYTES
    assert np.array_equal(row, main[2])
    assert np.array_equal(beside, near[1])
    with pytest.raises(DamagedSlot, match="has no rows of layers with a window"):
        file.read(4, row, beside)


def test_a_slot_is_read_by_whoever_is_told_what_it_holds(tmp_path: Path) -> None:
    """As ranks are told after a restart, who look at no header before."""
    file, (main, near) = parted(tmp_path), parts(3)
    file.write(content(2), ids(4, 1), main, ids(0, 2), (near, ids(-1, 1)))
    marks = {block: file.mark(block) for block in (4, 1)}
    assert file.mark(3) == b""
    file.close()
    again = parted(tmp_path)
    with pytest.raises(DamagedSlot, match="other tokens"):
        again.read(1, main[0].copy())
    for block, mark in marks.items():
        assert len(mark) == MARK_BYTES
        again.expect(block, mark)
    _holds(again, main, near)
    again.expect(4, marks[1])
    with pytest.raises(DamagedSlot, match="other tokens"):
        again.read(4, main[0].copy())
    again.close()


def test_rows_that_are_not_wanted_are_looked_at_nevertheless(tmp_path: Path) -> None:
    """There is one checksum for all that a slot holds."""
    file, (main, near) = parted(tmp_path), parts(3)
    file.write(content(2), ids(4, 1), main, ids(0, 2), (near, ids(0, 1)))
    row = np.zeros(MAIN_BYTES, np.uint8)
    file.read(4, row)
    assert np.array_equal(row, main[0])
    flip(tmp_path, 4 * SLOT + 2048 + MAIN_BYTES + 5)
    with pytest.raises(DamagedSlot, match="other bytes"):
        file.read(4, row)


def test_a_block_without_such_rows_takes_the_place_of_one_with_them(tmp_path: Path) -> None:
    file, (main, near) = parted(tmp_path), parts(3)
    file.write(content(1), ids(2), main, ids(0), (near, ids(0)))
    file.write(content(1), ids(2), main, ids(1), (near, ids(-1)))
    row = np.zeros(MAIN_BYTES, np.uint8)
    file.read(2, row)
    assert np.array_equal(row, main[1])
    file.close()
    (run,) = list(parted(tmp_path).stored())
    assert run.near is not None
    assert not run.near[0]


@pytest.mark.parametrize("first", [0, NEAR_BYTES])
def test_a_folder_where_rows_lie_otherwise_is_refused(tmp_path: Path, first: int) -> None:
    open_file(tmp_path, near_bytes=first).close()
    with pytest.raises(StoreError, match="another model or another layout"):
        open_file(tmp_path, near_bytes=NEAR_BYTES - first)
    open_file(tmp_path, near_bytes=first).close()
