"""Where the key that signs compaction items comes from."""

import logging
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.command.compaction_key import seal_for
from sessions.command.journal_options import JournalOptions
from sessions.command.settings import OptionError
from sessions.durable.compaction import Seal
from sessions.journal.places import MEMORY
from tools_api.errors import ApiError
from tools_api.items import StandsFor


def options(folder: Path, place: str | None = None) -> JournalOptions:
    return JournalOptions(
        place=place, shared=False, retokenise=False, keep_s=1.0, state_folder=folder
    )


def understands(one: Seal, other: Seal) -> bool:
    item = one.of("t").sealed("whole", StandsFor(items=()), None)
    try:
        other.of("t").refuse_foreign(item, "input[0]")
    except ApiError:
        return False
    return True


def test_a_key_beside_the_journal_is_its_users_alone_and_outlives_the_server(
    tmp_path: Path,
) -> None:
    first, second = (seal_for(options(tmp_path), b"f" * 16, "m") for _ in range(2))
    assert understands(first, second)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not understands(first, seal_for(options(tmp_path), b"f" * 16, "another model"))


def test_a_key_that_is_named_is_taken_by_every_server_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"k" * 32)
    named = replace(options(tmp_path / "a", MEMORY), compaction_key=str(file))
    other = replace(options(tmp_path / "b", MEMORY), compaction_key=str(file))
    assert understands(seal_for(named, b"f", "m"), seal_for(other, b"f", "m"))


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_named_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(OptionError, match="--compaction-key"):
        seal_for(replace(options(tmp_path), compaction_key=str(file)), b"f", "m")


@pytest.mark.parametrize("place", [MEMORY, "postgresql://somewhere/db"])
def test_with_neither_the_key_is_the_processes_own_and_a_warning_says_so(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        seals = [seal_for(options(tmp_path, place), b"f", "m") for _ in range(2)]
    assert not understands(*seals)
    assert "end with this process" in caplog.text
    assert list(tmp_path.iterdir()) == []
