"""Files of a model's folder: regular, within their size, and JSON that is worth parsing."""

import os
import threading
from pathlib import Path

import pytest

from runtime.folder_files import JsonBounds, UnfitFile, read_json, read_within

BOUNDS = JsonBounds(most_bytes=40, most_values=5, most_levels=2)


def test_a_file_is_read_up_to_its_bound_and_not_beyond(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 40)
    assert read_within(path, 40) == b"x" * 40
    with pytest.raises(UnfitFile, match="f: larger than 39 bytes"):
        read_within(path, 39)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"{}")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert read_json(tmp_path / "link", BOUNDS) == b"{}"


def test_a_file_of_holes_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnfitFile, match="larger than"):
        read_json(path, BOUNDS)


@pytest.mark.parametrize("kind", ["folder", "device", "loop"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    match kind:
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path)
    with pytest.raises(UnfitFile, match=f"{path}: "):
        read_within(path, 40)


def test_a_missing_file_is_for_the_caller_to_judge(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "f", BOUNDS)


@pytest.mark.parametrize("text", [b"[1,2,3,4,5,6]", b"[[[]]]", b'["a","b","c","d","e","f"]'])
def test_json_beyond_its_bounds_is_refused_before_it_is_parsed(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(text)
    with pytest.raises(UnfitFile, match="f: not JSON within bounds: "):
        read_json(tmp_path / "f", BOUNDS)


def test_a_pipe_is_read_to_its_end_and_waited_for_no_longer_than_is_said(tmp_path: Path) -> None:
    path = tmp_path / "f"
    os.mkfifo(path)
    said = "f: a pipe whose writer did not end within 0.01 s"
    with pytest.raises(UnfitFile, match=said):
        read_within(path, 40, wait_s=0.01)  # nobody is there
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"half")
    with pytest.raises(UnfitFile, match=said):
        read_within(path, 40, wait_s=0.01)
    os.close(writer)
    os.close(reader)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(4):
                file.write(b"x" * 10)

    for most, fits in ((40, True), (39, False)):
        thread = threading.Thread(target=write)
        thread.start()
        if fits:
            assert read_within(path, most, wait_s=10.0) == b"x" * 40
        else:
            with pytest.raises(UnfitFile, match="larger than 39 bytes"):
                read_within(path, most, wait_s=10.0)
        thread.join()
