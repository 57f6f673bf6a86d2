"""Files that options name and that are none to be read: refused in a line, whatever they are."""

import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.model.sources import BYTE_TOKENIZER
from sessions.command.compaction_key import seal_for
from sessions.command.journal_options import JournalOptions, fingerprint
from sessions.command.prices import read_price_file
from sessions.command.settings import OptionError, config_path, read_config
from sessions.journal.mark import read_mark
from sessions.tenants import KeyFileError
from sessions.tenants_file import read_tenants_file

KINDS = ("folder", "device", "link to itself", "holes", "grows", "nothing")
IDLE = "a pipe that nobody writes into"


@contextmanager
def made(kind: str, path: Path) -> Iterator[None]:
    """A path that names something of that kind, while the block runs."""
    match kind:
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "link to itself":
            path.symlink_to(path.name)
        case "holes":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case _ if kind == IDLE:
            os.mkfifo(path)
        case "grows":
            with _endless(path):
                yield
                return
    yield


@contextmanager
def _endless(path: Path) -> Iterator[None]:
    """A pipe into which somebody writes as long as anybody reads."""
    os.mkfifo(path)

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 65_536)
            except BrokenPipeError:
                return

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def key(path: Path) -> object:
    options = JournalOptions(
        place=":memory:",
        shared=False,
        retokenise=False,
        keep_s=0.0,
        state_folder=path.parent,
        compaction_key=str(path),
    )
    return seal_for(options, b"", "m")


READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "--price-file": (read_price_file, OptionError),
    "--tenants-file": (read_tenants_file, KeyFileError),
    "--config": (lambda path: read_config(path, {}), OptionError),
    "--compaction-key": (key, OptionError),
}


CASES = [(option, kind) for kind in (*KINDS, IDLE) for option in READERS]
CASES.remove(("--config", IDLE))  # has to be a regular file


def test_a_configuration_file_is_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "given")
    with pytest.raises(OptionError, match="given: no regular file"):
        config_path(str(tmp_path / "given"), {})


@pytest.mark.parametrize(("option", "kind"), CASES)
def test_what_cannot_be_read_is_told_in_a_line_and_costs_little(
    option: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.folder_files.PIPE_WAIT_S", 10.0 if kind == "grows" else 0.01)
    read, fault = READERS[option]
    path = tmp_path / "given"
    tracemalloc.start()
    began = time.process_time()
    with made(kind, path), pytest.raises(fault) as told:
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - began < 5.0
    assert peak < 32 << 20
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizers_file_beyond_its_bounds_is_told_before_a_journal_is_opened(
    kind: str, tmp_path: Path
) -> None:
    """A pipe is the loader's to wait for, and says nothing of a journal."""
    for file in BYTE_TOKENIZER.iterdir():
        (tmp_path / file.name).symlink_to(file)

    class Source:
        model_type = "qwen3"
        vocab_size = 259
        tokenizer_folder = str(tmp_path)

    fingerprint(Source())
    name = tmp_path / "special_tokens_map.json"
    name.unlink(missing_ok=True)
    if kind == "holes":
        with (
            made(kind, name),
            pytest.raises(OptionError, match=r"special_tokens_map\.json: larger"),
        ):
            fingerprint(Source())
    elif kind != "grows":
        with made(kind, name):
            assert fingerprint(Source())


@pytest.mark.parametrize("kind", ["device", "holes", "nothing"])
def test_of_a_mark_no_more_is_read_than_a_mark_has(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path / "j.db.mark"):
        tracemalloc.start()
        assert read_mark(tmp_path / "j.db.mark") is None
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


def test_a_mark_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j.db.mark")
    assert read_mark(tmp_path / "j.db.mark") is None
