"""What is saved of a damaged journal is what was written; what is not is named."""

import contextlib
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.ledger import TurnUsage
from sessions.journal.adoption import Loader, link_up
from sessions.journal.errors import JournalError, JournalInUse
from sessions.journal.listing import ListAsked
from sessions.journal.records import COMPACTION, RESIDENCY, session_account
from sessions.journal.recovery import recover
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import assert_same_chain, record
from tests.support.usage_reckoning import asked, drawn
from tests.unit.sessions.journal.test_journal_sqlite import copied, damaged, filled, opened


def test_of_a_whole_journal_everything_is_saved(tmp_path: Path) -> None:
    made = filled(tmp_path / "j")
    report = recover(tmp_path / "j", tmp_path / "new")
    assert (report.turns, report.sessions, report.lost) == (30, 3, [])
    journal = SqliteJournal(tmp_path / "new", fingerprint=b"f")
    for turn in made:
        loaded = Loader(journal, fingerprint=b"f").load("t", turn.response_id)
        assert loaded is not None
        assert_same_chain(link_up(loaded.turns, lambda _: None), turn.entry)
    assert sum(session.account.cost for session in journal.sessions()) == 30 * made[0].cost
    journal.close()


def test_items_are_found_by_their_ids_in_what_was_saved(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1", item_id="i")])
    journal.close()
    recover(tmp_path / "j", tmp_path / "new")
    journal = SqliteJournal(tmp_path / "new", fingerprint=b"f")
    assert list(Loader(journal, fingerprint=b"f").items("t", ["i"], 10_000)) == ["i"]
    journal.close()


@pytest.mark.tail
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_a_damaged_one_what_is_saved_is_exact_and_the_rest_is_named(
    tmp_path: Path, seed: int
) -> None:
    made = {turn.response_id: turn for turn in filled(tmp_path / "j")}
    chance = random.Random(seed)
    whole = (tmp_path / "j").read_bytes()
    saved = 0
    for place in range(15):
        (tmp_path / "j").write_bytes(damaged(whole, chance))
        target = tmp_path / f"new{place}"
        try:
            report = recover(tmp_path / "j", target)
        except JournalError:
            continue
        journal = SqliteJournal(target, fingerprint=b"f")
        kept = [turn for name in ("s0", "s1", "s2") for turn in journal.session_turns("t", name)]
        assert len(kept) == report.turns
        assert len(kept) == len(made) or report.lost
        for row in kept:
            loaded = Loader(journal, fingerprint=b"f").load("t", row.response_id)
            assert loaded is not None
            assert_same_chain(link_up(loaded.turns, lambda _: None), made[row.response_id].entry)
        saved += len(kept)
        journal.close()
    print(f"seed={seed} saved={saved}")
    assert saved


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    filled(tmp_path / "j", 1)
    with pytest.raises(JournalError, match="exists"):
        recover(tmp_path / "j", tmp_path / "j")


def test_what_a_session_was_charged_beside_its_turns_is_saved_and_counts_as_none(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    beside = [
        replace(record(status, said=False), status=status) for status in (RESIDENCY, COMPACTION)
    ]
    journal.append(beside)
    journal.close()
    report = recover(tmp_path / "j", tmp_path / "new")
    assert (report.turns, report.sessions, report.gone, report.lost) == (1, 1, 0, [])
    with contextlib.closing(SqliteJournal(tmp_path / "new", fingerprint=b"f")) as saved:
        assert len(saved.session_turns("t", "s")) == 3
        assert saved.account("t", session_account("s")).turns == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_journal_that_a_server_has_is_refused_in_a_line_that_says_what_to_do(
    tmp_path: Path, shared: bool
) -> None:
    journal = opened(tmp_path / "j", owner="a", shared=shared)
    journal.append([record("r1", epoch=1 if shared else 0)])
    with pytest.raises(JournalInUse, match="stop it") as refused:
        recover(tmp_path / "j", tmp_path / "new")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "new").exists()
    journal.close()
    assert recover(tmp_path / "j", tmp_path / "new").turns == 1


def test_commits_that_the_log_has_lost_with_its_end_are_named(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ends = []
    for n in range(10):
        journal.append([record(f"r{n}")])
        ends.append(Path(f"{tmp_path / 'j'}-wal").stat().st_size)
    image = copied(tmp_path / "j", tmp_path / "image")
    journal.close()
    log = Path(f"{image}-wal")
    for kept, end in enumerate(ends[::-1]):
        log.write_bytes(log.read_bytes()[:end])
        report = recover(image, tmp_path / f"new{kept}")
        assert report.turns == 10 - kept
        assert report.lost == ([f"the last {kept} of 10 commits"] if kept else [])


def test_a_mark_that_says_nothing_of_this_file_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "j", 2)
    filled(tmp_path / "k", 2)
    mark = tmp_path / "j.mark"
    mark.write_bytes((tmp_path / "k.mark").read_bytes())
    assert ["another" in each for each in recover(tmp_path / "j", tmp_path / "a").lost] == [True]
    mark.write_bytes(bytes(1024))
    assert ["unknown" in each for each in recover(tmp_path / "j", tmp_path / "b").lost] == [True]
    mark.unlink()  # an older copy that was put there on purpose
    assert recover(tmp_path / "j", tmp_path / "c").lost == []


def test_accounts_that_are_there_twice_are_added_up_and_named(tmp_path: Path) -> None:
    """An index hid the first, so that the second began at zero."""
    filled(tmp_path / "j", 6)
    with sqlite3.connect(tmp_path / "j") as database:
        (sql,) = database.execute("SELECT sql FROM sqlite_schema WHERE name = 'account'").fetchone()
        database.execute("CREATE TABLE once AS SELECT * FROM account")
        database.execute("DROP TABLE account")
        database.execute(sql.replace("PRIMARY KEY (tenant, name)", "CHECK (true)"))
        for _ in range(2):
            database.execute("INSERT INTO account SELECT * FROM once WHERE name = 'session/s0'")
        database.execute("INSERT INTO account SELECT * FROM once WHERE name <> 'session/s0'")
        assert database.execute("SELECT count(*) FROM account").fetchone() == (4,)
    database.close()
    report = recover(tmp_path / "j", tmp_path / "new")
    assert ["twice" in line for line in report.lost] == [True]
    journal = opened(tmp_path / "new")
    spent = [journal.account("t", session_account(f"s{n}")).cost for n in range(2)]
    assert spent[0] == 2 * spent[1]
    journal.close()


def test_where_the_count_itself_is_lost_the_report_says_how_many_there_were(tmp_path: Path) -> None:
    filled(tmp_path / "j", 2)
    with sqlite3.connect(tmp_path / "j") as database:
        database.execute("DELETE FROM journal")
    database.close()
    (line,) = recover(tmp_path / "j", tmp_path / "new").lost
    assert "of 2" in line


def test_a_session_whose_row_is_lost_was_active_when_its_last_turn_ended(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    kv = replace(
        record("kv", said=False, created_s=900.0), status=RESIDENCY, reason=None, usage=TurnUsage()
    )
    journal.append([record("r1", created_s=100.0), record("r2", created_s=200.0), kv])
    journal.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as database, database:
        database.execute("DELETE FROM session")
    recover(tmp_path / "j", tmp_path / "new")
    with contextlib.closing(SqliteJournal(tmp_path / "new", fingerprint=b"f")) as found:
        assert [each.updated_s for each in found.sessions()] == [200.0]


def test_usage_labels_and_what_lists_are_sorted_by_are_saved(tmp_path: Path) -> None:
    source, target = tmp_path / "j", tmp_path / "new"
    journal = SqliteJournal(source, fingerprint=b"f")
    rng = random.Random(7)
    records = [drawn(rng, number) for number in range(30)]
    labelled = b'{"labels":{"team":"red"}}'
    journal.append([*records[:29], replace(records[29], options=labelled)])
    queries = [asked(), asked("tool"), asked("label", label="l")]
    lists = [ListAsked(order="cost"), ListAsked(order="hit"), ListAsked(search="team:red")]
    told = [journal.usage(each, None, 999) for each in queries]
    listed = [journal.listed(each, None, 99) for each in lists]
    journal.close()
    assert recover(source, target).lost == []
    again = SqliteJournal(target, fingerprint=b"f")
    assert [again.usage(each, None, 999) for each in queries] == told
    places = [[each.place for each in again.listed(each_, None, 99)[0]] for each_ in lists]
    assert places == [[each.place for each in found] for found, _ in listed]
    assert len(places[2]) == 1
    again.close()
