"""Where the journal is, said by options, the environment or nobody."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessions.command.journal_options import (
    JOURNAL_SETTINGS,
    JournalOptions,
    fingerprint,
    journal_file,
    open_journal,
    read_journal_options,
)
from sessions.command.settings import OptionError, Value, Values
from tests.support.fake_engine import INFO


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
