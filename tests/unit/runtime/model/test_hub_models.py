"""Names of models of a hub, and what is written down of those that were fetched."""

import json
from pathlib import Path

import pytest

from runtime.model.config import LoadError
from runtime.model.hub_models import HubName, HubRecords, hub_folder, is_hub_name

COMMITS = ["a" * 40, "b" * 40]


def folder_with(place: Path, **sizes: int) -> Path:
    place.mkdir(parents=True)
    for name, size in sizes.items():
        (place / name).write_bytes(b"x" * size)
    return place


@pytest.mark.parametrize("prefix", ["", "hub:"])
def test_a_name_has_a_revision_or_the_usual_one(prefix: str) -> None:
    assert str(HubName.parse(f"{prefix}some-body/small_1.5")) == "hub:some-body/small_1.5@main"
    assert HubName.parse(f"{prefix}a/b@refs/pr/3").revision == "refs/pr/3"


@pytest.mark.parametrize(
    "name",
    ["", "a", "a/b/c", "/b", "a/", "../b", "a/..", "a b/c", "a/b@", "a/b@../c", "a/b@-x", "a/b\n"],
)
def test_what_is_no_name_is_refused_with_the_form_it_has_to_have(name: str) -> None:
    with pytest.raises(LoadError, match="ORG/NAME"):
        HubName.parse(name)


def test_only_a_prefix_makes_a_name_one_of_a_hub() -> None:
    assert is_hub_name("hub:a/b")
    assert not is_hub_name("a/b")


def test_a_model_is_found_by_branch_and_by_commit_until_it_is_fetched_again(
    tmp_path: Path,
) -> None:
    records, name = HubRecords(tmp_path / "records"), HubName.parse("a/b")
    assert records.find(name) is None
    for commit in COMMITS:
        folder = folder_with(tmp_path / commit, weights=3)
        records.keep(name, commit, folder, {"weights": 3})
        found = records.find(name)
        assert found is not None
        assert (found.folder, found.name) == (folder, name.at(commit))
    first = records.find(name.at(COMMITS[0]))
    assert first is not None
    assert first.folder == tmp_path / COMMITS[0]
    assert records.find(HubName.parse("a/c")) is None


@pytest.mark.parametrize("spoil", ["missing", "shorter", "longer"])
def test_a_model_that_is_not_whole_any_more_is_not_here(tmp_path: Path, spoil: str) -> None:
    records, name = HubRecords(tmp_path / "records"), HubName.parse("a/b")
    folder = folder_with(tmp_path / "model", weights=3, config=2)
    records.keep(name, COMMITS[0], folder, {"weights": 3, "config": 2})
    if spoil == "missing":
        (folder / "weights").unlink()
    else:
        (folder / "weights").write_bytes(b"x" * (2 if spoil == "shorter" else 4))
    assert records.find(name) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"format": 2}', b"[" * 100_000, b'{"commits": 7}'],
)
def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    records, name = HubRecords(tmp_path / "records"), HubName.parse("a/b")
    folder = folder_with(tmp_path / "model", weights=3)
    records.keep(name, COMMITS[0], folder, {"weights": 3})
    (path,) = records.folder.iterdir()
    path.write_bytes(content)
    assert records.find(name) is None
    records.keep(name, COMMITS[0], folder, {"weights": 3})
    assert records.find(name) is not None


def test_a_record_of_another_model_or_of_no_commit_counts_as_none(tmp_path: Path) -> None:
    records, name = HubRecords(tmp_path / "records"), HubName.parse("a/b")
    records.keep(name, COMMITS[0], folder_with(tmp_path / "model"), {})
    (path,) = records.folder.iterdir()
    true = json.loads(path.read_text())
    path.write_text(json.dumps(true | {"repository": "a/c"}))
    assert records.find(name) is None
    path.write_text(json.dumps(true | {"commits": {"main": {"folder": "/", "files": {}}}}))
    assert records.find(name) is None


def test_a_model_that_was_not_fetched_is_named_with_the_command_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LoadError, match="keepwarm pull a/b@main"):
        hub_folder("hub:a/b")
    folder = folder_with(tmp_path / "model")
    HubRecords().keep(HubName.parse("a/b"), COMMITS[0], folder, {})
    assert hub_folder("hub:a/b") == folder
