"""What is saved of a damaged journal is what was written; what is not is named."""

import random
from pathlib import Path

import pytest

from sessions.journal.adoption import Loader, link_up
from sessions.journal.errors import JournalError
from sessions.journal.recovery import recover
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import assert_same_chain
from tests.unit.test_journal_sqlite import damaged, filled


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
