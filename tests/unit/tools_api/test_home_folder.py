"""A user's home folder is told of every user."""

from pathlib import Path

import pytest

from tools_api.home_folder import home_folder


def test_a_user_whom_the_system_does_not_know_is_at_home_in_the_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in containers, whose runtime sets HOME=/ for such a user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_folder() == tmp_path

    def unknown(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("HOME")
    assert home_folder() == Path("/")
