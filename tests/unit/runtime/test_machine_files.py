"""Files about a machine: whose they are, and what of them is believed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.machine_files import MOST_BYTES, MachineFile, processor

CONTENT = {"few": "tiles", "sizes": [1, 2]}


def machine_file(folder: Path, **facts: str) -> MachineFile:
    return MachineFile(path=folder / "kind-1.json", facts={"processor": "a", **facts})


def as_it_is(content: Any) -> Any:
    return content


def test_what_was_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = machine_file(tmp_path / "made")
    assert file.read(as_it_is) is None
    file.write(CONTENT)
    assert file.read(as_it_is) == CONTENT
    assert [path.name for path in file.path.parent.iterdir()] == ["kind-1.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: json.dumps(whole).encode()[:-9],
        lambda whole: b"",
        lambda whole: b"\xff\xfe",
        lambda whole: b"[" * 60_000,
        lambda whole: b"[]",
        lambda whole: json.dumps(whole).encode() + b" " * MOST_BYTES,
        lambda whole: json.dumps(whole | {"format": 2}).encode(),
        lambda whole: json.dumps(whole | {"facts": {"processor": "b"}}).encode(),
        lambda whole: json.dumps(whole | {"facts": None}).encode(),
        lambda whole: json.dumps({"format": 1}).encode(),
    ],
)
def test_a_damaged_or_foreign_file_is_named_in_one_line_and_counts_as_nothing(
    damage: Callable[[dict[str, Any]], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = machine_file(tmp_path)
    file.write(CONTENT)
    file.path.write_bytes(damage(json.loads(file.path.read_bytes())))
    assert file.read(as_it_is) is None
    (record,) = caplog.records
    assert str(file.path) in record.message
    assert "\n" not in record.message
    file.write(CONTENT)
    assert file.read(as_it_is) == CONTENT


def test_the_size_limit_holds_exactly(tmp_path: Path) -> None:
    file = machine_file(tmp_path)
    file.write("")
    room = MOST_BYTES - len(file.path.read_bytes())
    file.write("x" * room)
    assert file.read(as_it_is) == "x" * room
    file.write("x" * (room + 1))
    assert file.read(as_it_is) is None


def test_content_that_is_not_understood_counts_as_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def understand(content: Any) -> Any:
        return content["missing"]

    machine_file(tmp_path).write(CONTENT)
    assert machine_file(tmp_path).read(understand) is None
    assert "KeyError: 'missing'" in caplog.text


def test_a_file_of_another_machine_says_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine_file(tmp_path, threads="2").write(CONTENT)
    assert machine_file(tmp_path, threads="4").read(as_it_is) is None
    assert "of another machine or model: threads differ" in caplog.text


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    machine_file(tmp_path / "file").write(CONTENT)
    (record,) = caplog.records
    assert "cannot be written" in record.message


def test_its_name_follows_the_facts_and_without_a_folder_there_is_none(tmp_path: Path) -> None:
    first = MachineFile.of(str(tmp_path), "kind", {"a": "1", "b": "2"})
    same = MachineFile.of(str(tmp_path), "kind", {"b": "2", "a": "1"})
    other = MachineFile.of(str(tmp_path), "kind", {"a": "1", "b": "3"})
    paths = [file.path for file in (first, same, other) if file is not None]
    assert len(paths) == 3
    assert paths[0] == paths[1] != paths[2]
    assert MachineFile.of("", "kind", {}) is None
    assert MachineFile.of(None, "kind", {}) is None


def test_the_processor_has_a_name() -> None:
    assert processor()
    assert processor() == processor()
