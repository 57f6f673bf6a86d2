"""Ranks that read the same files say the same of them; another header is another model."""

from pathlib import Path

import pytest

from runtime.process.rank_files import files_digest


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"head" + b"x" * 100)
    (path / "README.md").write_text("nothing to do with it")
    return path


def test_a_model_without_files_has_none() -> None:
    assert files_digest("random:qwen3-tiny") == ""


def test_equal_folders_are_told_alike_whatever_else_is_there(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "a"), folder(tmp_path / "b")
    (other / "README.md").write_text("more")
    assert files_digest(str(one)) == files_digest(str(other)) != ""


@pytest.mark.parametrize("change", ["head", "size", "config", "shard"])
def test_a_change_is_told(tmp_path: Path, change: str) -> None:
    place = folder(tmp_path / "a")
    before = files_digest(str(place))
    weights = place / "model.safetensors"
    if change == "head":
        weights.write_bytes(b"HEAD" + b"x" * 100)
    elif change == "size":
        weights.write_bytes(b"head" + b"x" * 101)
    elif change == "config":
        (place / "config.json").write_text('{"a": 1}')
    else:
        (place / "more.safetensors").write_bytes(b"")
    assert files_digest(str(place)) != before
