"""Where the journal is, said by options, the environment or nobody."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessions.command.journal_options import (
    JournalOptions,
    fingerprint,
    journal_file,
    look_at_journal,
    open_journal,
    read_journal_options,
    with_journal,
)
from sessions.command.serve_settings import JOURNAL_SETTINGS
from sessions.command.settings import OptionError, Value, Values
from sessions.journal.errors import JournalUnavailable
from tests.support.clock import FakeClock
from tests.support.fake_engine import INFO
from tests.support.sessions_rig import make_service
from tests.support.timed_journal import TimedJournal


def read(**given: Any) -> JournalOptions:
    environment = {name: given.pop(name) for name in list(given) if name.isupper()}
    found = {
        setting.name: Value(
            value=given.get(setting.name, setting.default), origin="typed", label=setting.flag
        )
        for setting in JOURNAL_SETTINGS
    }
    return read_journal_options(Values(found), environment)


def test_without_a_word_it_is_a_file_of_the_users_for_each_tokenizer(tmp_path: Path) -> None:
    options = read(XDG_STATE_HOME=str(tmp_path))
    first, second = (journal_file(options, of) for of in (b"a" * 16, b"b" * 16))
    assert first != second
    assert first.parent == tmp_path / "keepwarm"
    assert first.parent.stat().st_mode & 0o777 == 0o700


def test_a_place_can_be_named_and_there_may_be_none() -> None:
    assert journal_file(read(journal="a"), b"") == Path("a")
    assert open_journal(read(journal=":memory:"), b"") is None


def test_what_is_nowhere_cannot_be_shared() -> None:
    with pytest.raises(OptionError, match="--journal-shared"):
        read(journal=":memory:", journal_shared=True)


def test_a_fingerprint_is_of_the_tokenizer_and_the_model_type(tmp_path: Path) -> None:
    info = replace(INFO, tokenizer_folder=str(tmp_path))
    first = fingerprint(info)
    assert fingerprint(info) == first
    assert fingerprint(replace(info, model_type="another")) != first
    (tmp_path / "tokenizer.json").write_text("{}")
    assert fingerprint(info) != first


def test_an_address_that_is_no_journals_is_refused_by_name() -> None:
    for scheme in ("mysql", "postgre", "http"):
        with pytest.raises(
            OptionError, match=f"--journal {scheme}://... is neither a file"
        ) as told:
            read(journal=f"{scheme}://me:secret@host/x")
        assert "secret" not in str(told.value)
    assert read(journal="postgresql://host/x").place == "postgresql://host/x"
    assert read(journal="~/x").place == str(Path.home() / "x")


@pytest.mark.parametrize("name", ["/nowhere/x", "x" * 300])
def test_a_rescue_folder_that_is_none_is_told_with_the_options_name(name: str) -> None:
    """The system does not look for the second name."""
    with pytest.raises(OptionError, match=f"--journal-rescue-folder {name}: "):
        read(journal_rescue_folder=name)


def test_a_state_folder_that_cannot_be_made_is_said_in_a_line() -> None:
    options = read(XDG_STATE_HOME="/proc/nowhere")
    with pytest.raises(JournalUnavailable, match=r"/keepwarm cannot be made: .*:memory"):
        open_journal(options, b"")


def test_to_look_is_to_see_what_would_be_opened_and_to_make_nothing(tmp_path: Path) -> None:
    options = read(XDG_STATE_HOME=str(tmp_path))
    assert look_at_journal(options, b"") is None
    assert list(tmp_path.iterdir()) == []
    opened = open_journal(options, b"")
    assert opened is not None
    opened.close()
    seen = look_at_journal(options, b"")
    assert seen is not None
    assert seen.sessions == 0


@pytest.mark.parametrize("behind_s", [-4e6, 0.0, 4e6])
def test_a_server_with_a_journal_tells_the_time_by_its_clock(
    tmp_path: Path, behind_s: float
) -> None:
    async def scenario() -> None:
        before = make_service(FakeClock(1000.0))
        now_s = before.wall_clock() + behind_s
        journal = TimedJournal(tmp_path / "j", lambda: round(now_s * 1000), fingerprint=b"f")
        service, desk = with_journal(journal, read(), b"f", before)
        assert desk is not None
        assert service.wall_clock() == pytest.approx(now_s, abs=0.001)
        before.store.journal_shows(now_s + 60)
        assert service.wall_clock() == pytest.approx(now_s + 60, abs=0.001)
        await desk.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
