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


def test_a_file_is_found_where_a_server_of_the_same_name_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves the ``~`` in ``--journal=~/j`` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "j").touch()
    assert one_place("~/j") == tmp_path / "j"
    with pytest.raises(click.ClickException, match="~/k: no such file"):
        places("~/k")


def test_the_home_of_somebody_unknown_is_a_name_like_any_other() -> None:
    """As a shell has it; ``Path.expanduser`` would raise."""
    with pytest.raises(click.ClickException, match="~nobody-here/j: no such file"):
        places("~nobody-here/j")


def test_what_is_no_file_is_told_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=f"{tmp_path}: a folder, and no file"):
        places(str(tmp_path))
    with pytest.raises(click.ClickException, match=r"x+: "):
        places("x" * 300)
