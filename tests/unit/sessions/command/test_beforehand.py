"""What a server needs beside weights is read and opened before they are loaded."""

import contextlib
import logging
import os
import socket
from pathlib import Path

import pytest

from sessions.command.beforehand import at_once, names_of, place, prepared, prices_of
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.prices import PriceError
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import OptionError, resolve
from sessions.journal.errors import JournalInUse
from sessions.journal.sqlite import SqliteJournal
from tests.support import chat_templates, judged_templates
from tests.support.judged_templates import default_model_with


def options(**typed: str) -> ServeOptions:
    typed = {"port": "0", "journal": ":memory:"} | typed
    return read_serve_options(resolve("serve", SERVE_SETTINGS, typed=typed, environment={}), {})


async def test_all_of_it_is_there_at_once_and_the_journal_is_closed_in_the_end(
    tmp_path: Path,
) -> None:
    given = options(journal=str(tmp_path / "j"))
    async with contextlib.AsyncExitStack() as cleanup:
        before = at_once(given, cleanup)
        assert before is not None
        assert before.speech.chat_format.name == "Hermes"
        with pytest.raises(JournalInUse):
            SqliteJournal(tmp_path / "j", fingerprint=before.fingerprint)
    SqliteJournal(tmp_path / "j", fingerprint=before.fingerprint).close()


async def test_what_a_loaded_model_says_of_itself_gives_the_same(tmp_path: Path) -> None:
    """So a journal is the same file, whether it could be opened early or not."""
    async with contextlib.AsyncExitStack() as cleanup:
        early = at_once(options(model="random:llama-tiny"), cleanup)
        assert early is not None
        tokenizer = early.speech.tokenizer

        class Loaded:
            model_type = "llama"
            vocab_size = tokenizer.vocab_size
            tokenizer_folder = str(Path("runtime/assets/byte_tokenizer").resolve())

        late = prepared(options(model="random:llama-tiny"), Loaded(), cleanup)
        assert late.fingerprint == early.fingerprint


async def test_a_folder_that_has_to_be_waited_for_is_prepared_later(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    async with contextlib.AsyncExitStack() as cleanup:
        assert at_once(options(model=str(tmp_path)), cleanup) is None


async def test_how_a_template_was_judged_and_what_it_cannot_say_are_lines_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, warnings in (("HERMES", 0), ("WITHOUT_CALLS", 1)):
        text = judged_templates.HERMES if name == "HERMES" else chat_templates.WITHOUT_CALLS
        folder = default_model_with(tmp_path / name, text)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            async with contextlib.AsyncExitStack() as cleanup:
                at_once(options(model=str(folder), startup_profile_folder=""), cleanup)
        warned = [each for each in caplog.records if each.name == "sessions.command.beforehand"]
        warned = [record for record in warned if record.levelno == logging.WARNING]
        assert len(warned) == warnings
        assert "chat format=" in caplog.text
    assert "requests with tools are refused: it lists tools" in caplog.text


async def test_a_journal_belongs_to_a_chat_format_that_special_tokens_do_not_choose(
    tmp_path: Path,
) -> None:
    made_of = []
    for name in ("HERMES", "QWEN3_CODER", "NEWLINE_IN_CALL"):
        folder = default_model_with(tmp_path / name, getattr(judged_templates, name))
        given = options(model=str(folder), startup_profile_folder="")
        async with contextlib.AsyncExitStack() as cleanup:
            before = at_once(given, cleanup)
        assert before is not None
        made_of.append(before.fingerprint)
    assert len(set(made_of)) == 3
    async with contextlib.AsyncExitStack() as cleanup:
        default = at_once(options(), cleanup)
    assert default is not None
    assert default.fingerprint == made_of[0]


def test_a_place_is_a_port_with_something_to_serve_there() -> None:
    with place(options()) as bound:
        number = bound.getsockname()[1]
        assert number
    for wrong, said in (
        ({"model": "/nowhere"}, "--model /nowhere: no such folder"),
        ({"max_context_tokens": "99999"}, "max_context_tokens is 99999"),
        (
            {"host_kv_mib": "1", "disk_kv_mib": "1", "disk_kv_folder": "/proc/x"},
            "--disk-kv-folder /proc/x cannot be made",
        ),
        ({"host": "host.invalid", "api_key": "a-good-key"}, "cannot listen on host.invalid"),
    ):
        with pytest.raises(OptionError, match=said):
            place(options(**wrong))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OptionError, match=r"already in use; if it is a keepwarm.* --journal"):
            place(options(port=str(taken.getsockname()[1])))


def test_a_model_is_called_by_its_source_and_by_the_name_it_is_given(tmp_path: Path) -> None:
    assert names_of(options()) == ("default", {"default"})
    given = options(model="random:llama-tiny", model_name="m")
    assert names_of(given) == ("m", {"default", "random:llama-tiny"})
    pinned = f"hub:a/b@{'c' * 40}"
    name, aliases = names_of(options(model=pinned))
    assert (name, aliases) == ("a/b", {"default", "a/b", "hub:a/b", pinned})
    prices = tmp_path / "prices"
    prices.write_text("[models.m]\ninput = 1\ncached = 1\noutput = 1\n")
    assert not prices_of(options(model_name="m", prices=str(prices))).free
    with pytest.raises(PriceError, match="no prices of the model default"):
        prices_of(options(prices=str(prices)))


async def test_a_key_of_compaction_items_that_is_none_is_told_before_weights_are_loaded(
    tmp_path: Path,
) -> None:
    given = options(journal=str(tmp_path / "j"), compaction_key=str(tmp_path / "missing"))
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(OptionError, match=r"--compaction-key .*missing: No such file"):
            at_once(given, cleanup)
    SqliteJournal(tmp_path / "j", fingerprint=b"").close()  # nobody has it any more
