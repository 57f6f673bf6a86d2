"""The journal's file: its locks, its mark, what it says when it cannot be used, and damage."""

import contextlib
import itertools
import os
import random
import resource
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessions.durable.ledger import TurnUsage
from sessions.durable.transcript import chain_ids
from sessions.journal import file_connections, retention
from sessions.journal import sqlite as sqlite_module
from sessions.journal.adoption import Loader, link_up
from sessions.journal.encoding import decode_turn
from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalOtherVersion,
    JournalUnavailable,
)
from sessions.journal.file_check import FileCheck
from sessions.journal.file_state import read_only
from sessions.journal.mark import read_mark
from sessions.journal.records import (
    RESIDENCY,
    SessionRecord,
    StoredTurn,
    TurnRecord,
    session_account,
)
from sessions.journal.recovery import recover
from sessions.journal.samples import MINUTE_S, Sample
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import VERSION
from tests.support.journals import record, reservation

LOG_BYTES = 256 * 1024


def opened(path: Path, **options: object) -> SqliteJournal:
    return SqliteJournal(path, fingerprint=b"f", **options)  # type: ignore[arg-type]


def copied(path: Path, to: Path) -> Path:
    """The files of a journal as they are now: what a machine that stops leaves."""
    to.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, to / file.name)
    return to / path.name


def filled(path: Path, turns: int = 30) -> list[TurnRecord]:
    """Three chains, each turn a commit; the journal is left open by its caller's copy."""
    journal = opened(path)
    made: list[TurnRecord] = []
    for n in range(turns):
        parent = made[n - 3] if n >= 3 else None
        turn = record(f"r{n}", parent=parent, session=f"s{n % 3}", size=300)
        assert journal.append([turn]) == [True]
        made.append(turn)
    journal.close()
    return made


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    journal.close()


def test_a_second_server_is_told_in_a_line_which_options_help(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    with pytest.raises(JournalInUse) as refused:
        opened(tmp_path / "j")
    message = str(refused.value)
    assert "\n" not in message
    assert "--journal" in message
    assert "--journal-shared" in message
    with pytest.raises(JournalInUse):
        opened(tmp_path / "j", shared=True, owner="b")
    journal.close()
    first = opened(tmp_path / "j", shared=True, owner="a")
    second = opened(tmp_path / "j", shared=True, owner="b")
    first.close()
    second.close()


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_a_file_of_another_version_is_refused_and_left_as_it_is(
    version: int, tmp_path: Path
) -> None:
    filled(tmp_path / "j", 1)
    with sqlite3.connect(tmp_path / "j") as database:
        database.execute(f"PRAGMA user_version={version}")
    database.close()
    before = (tmp_path / "j").read_bytes()
    said = f"tables of version {version}, and this program reads version {VERSION} alone"
    with pytest.raises(JournalOtherVersion, match=said):
        opened(tmp_path / "j")
    with pytest.raises(JournalOtherVersion, match=said):
        read_only(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == before


def test_a_damaged_sample_is_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path / "j")
    kept = [Sample(width_s=MINUTE_S, number=n, tenant="", body=b"x") for n in (1, 2)]
    journal.keep_samples(kept)
    with journal.writing() as cursor:
        cursor.execute("UPDATE curve SET body = ? WHERE number = ?", (b"y", 1))
    assert journal.samples("", MINUTE_S, 0, own=True) == kept[1:]
    assert "damaged" in caplog.text
    journal.close()


def test_what_was_written_is_there_after_a_stop_without_closing(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    turn = record("r1")
    journal.append([turn])
    image = copied(tmp_path / "j", tmp_path / "image")
    journal.close()
    again = opened(image)
    assert again.turn("t", "r1") is not None
    again.close()


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.9])
def test_a_log_that_was_cut_short_is_noticed_at_once(tmp_path: Path, keep: float) -> None:
    journal = opened(tmp_path / "j")
    for n in range(10):
        journal.append([record(f"r{n}")])
    image = copied(tmp_path / "j", tmp_path / "image")
    journal.close()
    log = Path(f"{image}-wal")
    data = log.read_bytes()
    log.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    with pytest.raises(JournalDamaged, match="recover"):
        opened(image)


def test_the_mark_knows_of_every_commit_also_where_several_programs_write(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = opened(path)
    for n in range(4):
        journal.append([record(f"r{n}", session=f"s{n}")])
    beside = opened(path, beside=True)
    for n in range(4):
        beside.delete_session("t", f"s{n}")
    beside.close()
    for n in range(4):
        journal.append([record(f"w{n}")])
        mark = read_mark(tmp_path / "j.mark")
        assert mark is not None
        assert mark.commits == 9 + n
    journal.close()


def test_an_emptied_file_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "j", 2)
    (tmp_path / "j").write_bytes(b"")
    with pytest.raises(JournalDamaged, match="lost commits"):
        opened(tmp_path / "j")


def test_a_bit_that_turned_over_in_a_row_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "j", 3)
    data = bytearray((tmp_path / "j").read_bytes())
    at = data.index(b'"status":"completed"')
    data[at + 12] ^= 1
    (tmp_path / "j").write_bytes(data)
    journal = opened(tmp_path / "j")
    refused = 0
    for n in range(3):
        try:
            found = journal.turn("t", f"r{n}")
        except JournalDamaged:
            refused += 1
        else:
            assert found is not None
    assert refused == 1
    journal.close()


def test_a_missing_row_is_named_among_the_latest_turns_and_one_that_expired_is_not(
    tmp_path: Path,
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.append([record("r1", created_s=1.0), record("r2"), record("r3")])
    assert journal.expire(50.0) == 1
    assert journal.last_turns("t", "s", 9)[0] == 2
    with journal.writing() as cursor:
        cursor.execute("DELETE FROM turn WHERE response_id = 'r3'")
    with pytest.raises(JournalDamaged, match="lacks some"):
        journal.last_turns("t", "s", 9)
    journal.close()


def test_another_programs_lock_makes_it_unavailable_for_that_time(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    with journal.reading() as cursor:
        cursor.execute("PRAGMA busy_timeout=1")
    other = sqlite3.connect(tmp_path / "j", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="locked"):
        journal.append([record("r1")])
    other.execute("ROLLBACK")
    other.close()
    assert journal.append([record("r1")]) == [True]
    journal.close()


def limit_pages(journal: SqliteJournal, count: int) -> None:
    """For this thread's connection."""
    with journal.reading() as cursor:
        cursor.execute(f"PRAGMA max_page_count={count}")


def test_a_full_disk_refuses_the_turn_and_harms_no_earlier_one(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    first = record("r1")
    journal.append([first])
    with journal.reading() as cursor:
        (pages,) = cursor.execute("PRAGMA page_count").fetchone()
    limit_pages(journal, pages)
    with pytest.raises(JournalUnavailable, match="full"):
        journal.append([record("r2", parent=first, size=100_000)])
    assert journal.turn("t", "r1") is not None
    assert journal.turn("t", "r2") is None
    limit_pages(journal, 100_000)
    assert journal.append([record("r2", parent=first, size=100_000)]) == [True]
    journal.close()


def test_a_folder_that_does_not_exist_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="--journal"):
        opened(tmp_path / "no" / "j")


def test_a_file_that_is_no_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(JournalDamaged, match="recover"):
        opened(tmp_path / "j")


def test_a_clock_that_goes_back_moves_no_session_into_the_past(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    first = record("r1", created_s=1000.0)
    journal.append([first])
    journal.append([record("r2", parent=first, created_s=10.0)])
    session = journal.session("t", "s")
    assert session is not None
    assert (session.updated_s, session.head_id) == (1000.0, "r2")
    journal.close()


def test_nothing_of_a_deleted_session_is_left_after_vacuum(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    secret = "the launch code is 4711"
    journal.append([record("r1", answer=secret), record("r2", session="other")])
    journal.delete_session("t", "s")
    journal.vacuum()
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes(), file
    assert journal.turn("t", "r2") is not None
    journal.close()


# Looking through a file that was not closed


class CheckedJournal(SqliteJournal):
    """Its check stops in the middle until ``go``."""

    def __init__(self, path: Path, go: Callable[[], object]) -> None:
        self.begun = threading.Event()
        self.go = go
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite_module, "FileCheck", self._stepping)
            super().__init__(path, fingerprint=b"f")

    def _stepping(self, path: Path, connection: sqlite3.Connection) -> FileCheck:
        connection.set_progress_handler(self._step, 1)
        return FileCheck(path, connection)

    def _step(self) -> None:
        self.begun.set()
        self.go()


class Watched:
    """A lock. Before it is taken for so long at most, as by the upkeep, it is told."""

    def __init__(self, lock: threading.Lock, tell: Callable[[], object]) -> None:
        self._lock = lock
        self._tell = tell

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def acquire(self, timeout: float) -> bool:
        self._tell()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


def long_log(tmp_path: Path, patch: pytest.MonkeyPatch) -> tuple[SqliteJournal, Path]:
    """A journal whose log is to be moved, and the log; there is no upkeep beside it."""
    patch.setattr(file_connections, "CHECKPOINT_BYTES", LOG_BYTES)
    patch.setattr(SqliteJournal, "_keep_up", lambda _: None)
    journal = opened(tmp_path / "j")
    log_file, made = tmp_path / "j-wal", itertools.count()
    while log_file.stat().st_size <= LOG_BYTES:
        journal.append([record(f"r{next(made)}")])
    return journal, log_file


def test_a_log_begins_anew_also_where_not_all_of_it_could_be_moved_beside_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, log_file = long_log(tmp_path, monkeypatch)
    reader = sqlite3.connect(journal.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT 1 FROM turn").fetchone()
    journal.append([record("late")])  # of which the reader must not see anything
    monkeypatch.setattr(journal, "write_lock", Watched(journal.write_lock, reader.rollback))
    journal.checkpoint()
    assert log_file.stat().st_size > LOG_BYTES
    journal.append([record("next")])
    assert log_file.stat().st_size == LOG_BYTES
    assert all(journal.turn("t", each) is not None for each in ("r0", "late", "next"))
    reader.close()
    journal.close()


def test_a_log_is_moved_also_while_somebody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, log_file = long_log(tmp_path, monkeypatch)
    with journal.write_lock:
        journal.checkpoint()
    journal.append([record("next")])
    assert log_file.stat().st_size == LOG_BYTES
    journal.close()


def left_open(tmp_path: Path, turns: int = 30) -> Path:
    filled(tmp_path / "j", turns)
    journal = opened(tmp_path / "j")
    image = copied(tmp_path / "j", tmp_path / "image")
    journal.close()
    return image


def clean(path: Path) -> bool:
    mark = read_mark(path.with_name(f"{path.name}.mark"))
    assert mark is not None
    return mark.clean


def test_what_is_looked_through_is_read_written_and_kept_short_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    image, go = left_open(tmp_path), threading.Event()
    upkeep = threading.Event()
    monkeypatch.setattr(SqliteJournal, "checkpoint", lambda _: upkeep.set())
    journal = CheckedJournal(image, go.wait)
    assert journal.begun.wait(60)
    assert journal.turn("t", "r1") is not None
    assert journal.append([record("new")]) == [True]
    assert upkeep.wait(60)
    assert "whole" not in caplog.text
    assert not clean(image)
    go.set()
    journal.wait_checked()
    journal.close()
    assert "journal is whole" in caplog.text
    assert clean(image)


def test_a_server_that_stops_waits_for_no_check_and_the_next_one_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted = threading.Event()

    class Connection(sqlite3.Connection):
        def interrupt(self) -> None:
            super().interrupt()
            interrupted.set()

    image = left_open(tmp_path)
    monkeypatch.setattr("sqlite3.connect", partial(sqlite3.connect, factory=Connection))
    caplog.set_level("INFO")
    journal = CheckedJournal(image, interrupted.wait)
    assert journal.begun.wait(60)
    journal.close()
    assert not journal.is_checking
    assert not clean(image)
    assert "whole" not in caplog.text
    assert "damaged" not in caplog.text
    again = CheckedJournal(image, lambda: None)
    assert again.begun.wait(60)
    again.close()


@pytest.mark.parametrize("mark", ["not closed", "none", "damaged"])
def test_a_damaged_page_of_a_file_that_was_not_closed_is_found_beside_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    image = left_open(tmp_path)
    data = bytearray(image.read_bytes())
    data[-4096:] = bytes(4096)
    image.write_bytes(data)
    if mark == "none":
        image.with_name("j.mark").unlink()
    elif mark == "damaged":
        image.with_name("j.mark").write_bytes(bytes(1024))
    journal = opened(image)
    journal.wait_checked()
    assert journal.damage is not None
    assert "recover" in journal.damage
    assert "journal is damaged" in caplog.text
    with pytest.raises(JournalDamaged):
        journal.append([record("new")])
    with pytest.raises(JournalDamaged):
        journal.turn("t", "r1")
    journal.close()
    assert not clean(image)


def beside(path: Path, between: Callable[[], object]) -> SqliteJournal:
    """Another program's journal; ``between`` is called behind each of its transactions."""
    journal = SqliteJournal(path, fingerprint=b"", beside=True)

    def then(transaction: Callable[[], Any]) -> Callable[[], Any]:
        @contextlib.contextmanager
        def wrapped() -> Iterator[Any]:
            with transaction() as cursor:
                yield cursor
            between()

        return wrapped

    journal.reading, journal.writing = then(journal.reading), then(journal.writing)  # type: ignore[method-assign]
    return journal


def with_header(made: TurnRecord, number: int) -> TurnRecord:
    (link,) = made.links
    return replace(
        made, links=(replace(link, header=replace(link.header, ids=np.array([number]))),)
    )


def headers(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM header").fetchone()[0])


def test_turns_that_end_while_headers_are_swept_wait_for_one_slice_and_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    path, numbers, ended = tmp_path / "j", itertools.count(1), list[str]()
    journal = opened(path)
    made = [with_header(record(f"r{n}", session="gone"), n) for n in range(40)]
    made.sort(key=lambda each: journal.headers.encoded(each.links[0].header)[0])
    journal.append(made)
    journal.append([record(f"kept{n}", session="kept") for n in range(5)])
    journal.delete_session("t", "gone")

    def turn_ends() -> None:
        """Its header was in the journal, no row named it when the sweep began, and it would be
        the next to go. At first the newest row is deleted now and then, whose number the next one
        gets."""
        number = next(numbers)
        if number > 30:
            return
        if number in (3, 6):
            journal.delete_session("t", ended.pop())
        ended.append(f"x{number}")
        turn = record(ended[-1], session=ended[-1])
        assert journal.append([replace(turn, links=made[number].links)]) == [True]

    other = beside(path, turn_ends)
    other.vacuum()
    for name in ended:
        (row,) = journal.chain("t", name)
        assert journal.header(decode_turn(row).links[0].header)
    assert headers(path) <= len(ended) + 2 + 1, "what was deleted before is gone"
    other.vacuum()
    assert headers(path) == len(ended) + 1, "and what was deleted meanwhile the next time"
    other.close()
    journal.close()


def test_turns_that_end_while_a_session_is_deleted_wait_for_one_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    path, numbers = tmp_path / "j", itertools.count(1)
    journal = opened(path)
    last: TurnRecord | None = None
    for n in range(7):
        last = record(f"r{n}", parent=last)
        journal.append([last])
    fork = record("fork", parent=last, session="fork")
    journal.append([fork])
    counts: list[int] = []

    def turn_ends() -> None:
        number = next(numbers)
        assert journal.append([record(f"x{number}", session="other")]) == [True]
        counts.append(len(journal.session_turns("t", "s")))
        if counts[-1]:
            assert len(journal.chain("t", f"r{counts[-1] - 1}")) == counts[-1]

    other = beside(path, turn_ends)
    assert other.delete_session("t", "s") == ("fork",)
    assert counts == [6, 4, 2, 0]
    assert journal.session("t", "s") is None
    assert len(journal.session_turns("t", "other")) == 4
    other.close()
    journal.close()


# Damage


def check_exact(path: Path, made: list[TurnRecord]) -> str:
    """Ask for everything that was acknowledged: an exact answer or a named error."""
    try:
        journal = opened(path)
    except JournalError:
        return "refused"
    named = 0
    try:
        loader = Loader(journal, fingerprint=b"f")
        for turn in made:
            assert turn.entry is not None
            try:
                loaded = loader.load(turn.tenant, turn.response_id)
                assert loaded is not None, f"{turn.response_id} was forgotten"
                entry = link_up(loaded.turns, lambda _: None)
            except JournalError:
                named += 1
                continue
            header = turn.entry.header
            ours = chain_ids(header, turn.entry, header.ids)
            assert (chain_ids(entry.header, entry, entry.header.ids) == ours).all()
            assert entry.output_items == turn.entry.output_items
            assert loaded.head.body.cost == turn.cost
            assert loaded.head.body.terminal == turn.terminal
        for name in ("s0", "s1", "s2"):
            try:
                session = journal.session("t", name)
                journal.session_turns("t", name)
            except JournalError:
                named += 1
                continue
            assert session is not None, f"{name} was forgotten"
            mine = [turn for turn in made if turn.session == name]
            assert session.account.cost == sum(turn.cost for turn in mine)
            assert session.head_id == mine[-1].response_id
    finally:
        journal.close()
    return "named" if named else "exact"


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A bit turned over, a sector torn, or the end cut off."""
    kind, at = chance.choice(("bit", "sector", "cut", "page")), chance.randrange(len(data))
    if kind == "cut":
        return data[:at]
    changed = bytearray(data)
    if kind == "bit":
        changed[at] ^= 1 << chance.randrange(8)
        return bytes(changed)
    size = 512 if kind == "sector" else 4096
    at -= at % size
    changed[at : at + size] = bytes(len(changed[at : at + size]))
    return bytes(changed)


@pytest.mark.tail
@pytest.mark.parametrize(("which", "seed"), [("", 20), ("-wal", 21)])
def test_a_damaged_file_gives_a_named_error_or_an_exact_answer(
    tmp_path: Path, which: str, seed: int
) -> None:
    """200 places, half of them in the database and half in its log."""
    print(f"seed={seed}")
    chance = random.Random(seed)
    made = filled(tmp_path / "j")
    whole = tmp_path / "j"
    if which:
        journal = opened(tmp_path / "j")
        for n in range(10):
            parent = made[27 + n % 3]
            turn = record(f"w{n}", parent=parent, session=f"s{n % 3}", size=300)
            journal.append([turn])
            made.append(turn)
        whole = copied(tmp_path / "j", tmp_path / "whole")
        journal.close()
    seen: dict[str, int] = {}
    for place in range(100):
        image = copied(whole, tmp_path / f"image{place}")
        target = Path(f"{image}{which}")
        target.write_bytes(damaged(target.read_bytes(), chance))
        found = check_exact(image, made)
        seen[found] = seen.get(found, 0) + 1
        shutil.rmtree(image.parent)
    print(seen)
    assert seen.get("exact", 0) < 100


def index_damaged(data: bytes, chance: random.Random) -> bytes:
    """A bit of an index turned over; what is not used of its page is no part of it."""
    pages = [at for at in range(0, len(data), 4096) if data[at] in (2, 10)]
    page = chance.choice(pages)
    at = chance.choice([at for at in range(page, page + 4096) if data[at]])
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def compared(answer: object) -> object:
    """By what it says."""
    if isinstance(answer, list):
        return [compared(each) for each in answer]
    if isinstance(answer, StoredTurn):
        return answer.response_id, answer.request_id, answer.body
    if isinstance(answer, SessionRecord):
        return answer.name, answer.head_id, answer.options, answer.account
    return answer


def answers(path: Path, made: list[TurnRecord], *, sealed: bool) -> dict[str, object]:
    """All lookups; ``sealed``: those that a damaged index alone can make say nothing wrong."""
    found: dict[str, object] = {}
    try:
        journal = opened(path)
    except JournalError as error:
        return {"refused": error}

    def ask(name: str, question: Callable[[], object]) -> None:
        try:
            found[name] = compared(question())
        except JournalError as error:
            found[name] = error

    for turn in made:
        id_, request_id = turn.response_id, turn.request_id
        assert request_id is not None
        assert turn.entry is not None
        if sealed:
            ask(f"turn {id_}", partial(journal.turn, "t", id_))
            ask(f"chain {id_}", partial(journal.chain, "t", id_))
        else:
            ask(f"request {id_}", partial(journal.turn_of_request, "t", request_id))
            digest = turn.entry.digest
            ask(f"digest {id_}", partial(journal.turns_with_digest, "t", digest, 100))
    if sealed:
        for name in ("s0", "s1", "s2"):
            ask(f"session {name}", partial(journal.session, "t", name))
            ask(f"turns of {name}", partial(journal.session_turns, "t", name))
        ask("accounts", partial(journal.accounts_named, "tenant"))
        ask("settled", lambda: len(journal.settle_left()))
    else:
        ask("session without turns", partial(journal.session, "t", "empty"))
        ask("account", partial(journal.account, "t", "tenant"))
        ask("held", lambda: len(journal.reservations("t", "s0")))
    journal.close()
    return found


@pytest.mark.tail
@pytest.mark.parametrize("seed", [22])
def test_a_damaged_index_hides_little_and_looking_through_the_file_finds_it(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed={seed}")
    chance = random.Random(seed)
    journal, made = opened(tmp_path / "j"), list[TurnRecord]()
    for n in range(30):
        parent = made[n - 3] if n >= 3 else None
        turn = record(f"r{n}", parent=parent, session=f"s{n % 3}", accounts=("tenant",))
        made.append(replace(turn, request_id=f"q{n}"))
        journal.append([made[-1]])
    journal.reserve([reservation("e", session="empty")])
    journal.reserve([reservation(f"v{n}", session=f"s{n % 2}") for n in range(4)])
    journal.close()
    images = (copied(tmp_path / "j", tmp_path / f"whole{n}") for n in range(2))
    right = {sealed: answers(next(images), made, sealed=sealed) for sealed in (False, True)}
    data, hidden = (tmp_path / "j").read_bytes(), 0
    for place in range(100):
        harmed = index_damaged(data, chance)
        wrong = {}
        for sealed in (False, True):
            image = copied(tmp_path / "j", tmp_path / "image")
            image.write_bytes(harmed)
            told = answers(image, made, sealed=sealed)
            shutil.rmtree(image.parent)
            wrong[sealed] = {
                name
                for name, answer in told.items()
                if not isinstance(answer, JournalError) and answer != right[sealed][name]
            }
        assert not wrong[True], f"place {place}"
        if not wrong[False]:
            continue
        hidden += 1
        image = copied(tmp_path / "j", tmp_path / "image")
        image.write_bytes(harmed)
        saved = recover(image, tmp_path / f"saved{place}")
        assert (saved.turns, saved.lost) == (30, [])  # of the rows themselves nothing is gone
        image.with_name("j.mark").unlink()
        journal = opened(image)
        journal.wait_checked()
        assert journal.damage is not None, wrong[False]
        journal.close()
        shutil.rmtree(image.parent)
    print(f"hidden={hidden}")
    assert hidden


def test_an_account_that_an_index_hides_is_missed_before_a_second_one_is_made(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path / "j")
    first = record("r1")
    journal.append([first])
    with journal.writing() as cursor:
        cursor.execute("UPDATE account SET name = ? WHERE name = ?", ("x", session_account("s")))
    with pytest.raises(JournalDamaged, match="account"):
        journal.session("t", "s")
    with pytest.raises(JournalDamaged, match="account"):
        journal.append([record("r2", parent=first)])
    journal.close()


def test_a_commit_that_failed_is_none_that_was_lost(tmp_path: Path) -> None:
    """The disk is full at the very commit, and then the server is stopped."""
    path = tmp_path / "j"
    journal = opened(path)
    journal.append([record("r1")])
    wal = Path(f"{path}-wal")
    made, used = itertools.count(), wal.stat().st_size
    while wal.stat().st_size == used:  # it is as long as it ever was, also where it was emptied
        journal.append([record(f"before{next(made)}")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = wal.stat().st_size + 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))
    try:
        with pytest.raises(JournalUnavailable):
            journal.append([record("r2", size=30_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.close()
    journal = opened(path)
    assert journal.turn("t", "r1") is not None
    assert journal.append([record("r2", size=30_000)]) == [True]
    journal.close()


NOBODY = 65534


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As somebody whom permissions hold back, which they do not the superuser."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["j", "j.mark", "j.lock"])
def test_what_may_not_be_written_is_said_with_a_way_out_and_left_unlocked(closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are for nobody else
        folder = Path(name)
        opened(folder / "j").close()
        for path in folder.iterdir():
            path.chmod(0o666)
        (folder / closed).chmod(0o444)
        folder.chmod(0o777)
        with without_rights(), pytest.raises(JournalError, match="--journal"):
            opened(folder / "j")
        (folder / closed).chmod(0o666)
        opened(folder / "j").close()


def test_residency_that_was_changed_on_the_disk_is_noticed(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    usage = TurnUsage(input_tokens=3, residency=700)
    journal.append([replace(record("resp_1"), usage=usage)])
    journal.append(
        [replace(record("kv_1"), status=RESIDENCY, usage=TurnUsage(residency=50), links=())]
    )
    account = journal.account("t", session_account("s"))
    assert (account.turns, account.usage.residency) == (1, 750)
    for changed in (0, 751):
        with journal.writing() as cursor:
            cursor.execute("UPDATE account SET residency = ?", (changed,))
        with pytest.raises(JournalDamaged, match="does not agree"):
            journal.account("t", session_account("s"))
    journal.close()
