"""Which words name a file, a database, or nowhere."""

import sys
from pathlib import Path

import pytest

from sessions.journal.errors import JournalError, JournalUnavailable
from sessions.journal.places import MEMORY, in_postgres, open_postgres, state_folder


@pytest.mark.parametrize(
    ("place", "is_database"),
    [
        ("postgresql://host/x", True),
        ("postgres:///x?host=/tmp", True),
        (MEMORY, False),
        ("postgresql", False),
        ("/var/lib/postgresql://x", False),
        ("", False),
    ],
)
def test_a_database_is_named_by_its_address(place: str, is_database: bool) -> None:
    assert in_postgres(place) == is_database


def test_the_state_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/keepwarm")
    monkeypatch.setenv("HOME", "/home/me")
    assert state_folder({}) == Path("/home/me/.local/state/keepwarm")


def test_a_database_without_its_driver_or_out_of_reach_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(JournalUnavailable) as refused:
        open_postgres("postgresql://127.0.0.1:1/none", fingerprint=b"", owner="")
    assert "\n" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "sessions.journal.postgres")
    with pytest.raises(JournalError, match=r"pip install 'keepwarm\[postgres\]'"):
        open_postgres("postgresql:///x", fingerprint=b"", owner="")
