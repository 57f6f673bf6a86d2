"""Folders that are made once and are whole."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.model.config import LoadError
from runtime.model.tokenizer_folders import kept_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_equal_sources_are_made_once_and_others_apart() -> None:
    made: list[int] = []

    def make() -> Mapping[str, bytes]:
        made.append(1)
        return {"a": b"1"}

    first = kept_folder("x", {"s": b"1"}, make)
    assert kept_folder("x", {"s": b"1"}, make) == first
    assert (first / "a").read_bytes() == b"1"
    others = [{"s": b"2"}, {"t": b"1"}, {"s": b"", "1": b""}, {"s": b"1", "t": b""}]
    folders = {kept_folder("x", sources, make) for sources in others}
    assert len(folders | {first}) == 5
    assert len(made) == 5


def test_what_fails_half_way_leaves_nothing(cache: Path) -> None:
    def fails() -> Mapping[str, bytes]:
        raise LoadError("damaged")

    with pytest.raises(LoadError, match="damaged"):
        kept_folder("x", {"s": b"1"}, fails)
    with pytest.raises(LoadError, match="No such file"):
        kept_folder("x", {"s": b"1"}, lambda: {"a": b"1", "no/such": b"2"})
    assert not [path for path in cache.rglob("*") if path.is_file() or path.name.startswith("x-")]
    assert kept_folder("x", {"s": b"1"}, lambda: {"a": b"1"}).is_dir()
