"""Which journal a command means, and what it says where it cannot know."""

from pathlib import Path

import click
import pytest

from keepwarm.commands.journal_place import one_place, places


def test_without_a_word_it_is_the_files_of_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(click.ClickException, match="no journal yet"):
        places(None)
    folder = tmp_path / "keepwarm"
    folder.mkdir()
    files = [folder / f"journal-{name}.sqlite3" for name in ("a", "b")]
    files[0].touch()
    assert one_place(None) == files[0]
    files[1].touch()
    assert places(None) == files
    with pytest.raises(
        click.ClickException, match=f"--journal names one of {files[0]}, {files[1]}"
    ):
        one_place(None)
    assert one_place(str(files[1])) == files[1]


def test_a_file_has_to_be_there_and_a_database_need_not() -> None:
    with pytest.raises(click.ClickException, match="none: no such file"):
        places("none")
    assert places("postgresql://host/x") == ["postgresql://host/x"]
