"""Buckets in the journal give what one bucket would, whoever draws, and by the database's clock."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.journal.draws import draw
from sessions.journal.sqlite import SqliteJournal
from sessions.quotas import Draw, Drawn


def wanted(amount: float, *, kind: str = "tokens", limit: int = 60, debt: float = 0.0) -> Draw:
    return Draw(cluster="c", kind=kind, limit=limit, amount=amount, debt=debt)


def give(journal: SqliteJournal, now_ms: int, of: Draw, tenant: str = "t") -> Drawn:
    with journal.writing() as cursor:
        return draw(journal, cursor, tenant, now_ms, of)


def journal_at(folder: Path) -> SqliteJournal:
    return SqliteJournal(folder / "j", fingerprint=b"f", owner="a", shared=True)


def test_a_bucket_is_full_at_first_fills_evenly_and_gives_no_more_than_there_is(
    tmp_path: Path,
) -> None:
    journal = journal_at(tmp_path)
    assert give(journal, 1000, wanted(50)).amount == 50
    assert give(journal, 1000, wanted(50)).amount == 10
    nothing = give(journal, 1000, wanted(50))
    assert (nothing.amount, nothing.wait_s) == (0, 1)
    assert give(journal, 3000, wanted(50)).amount == 2
    assert give(journal, 10**9, wanted(100)).amount == 60
    assert give(journal, 5, wanted(1)).amount == 0  # the clock was set back
    journal.close()


def test_turns_are_given_whole_and_debts_whatever_there_is(tmp_path: Path) -> None:
    journal = journal_at(tmp_path)
    assert give(journal, 0, wanted(60, kind="turns")).amount == 60
    assert give(journal, 1500, wanted(5, kind="turns")).amount == 1
    assert give(journal, 2000, wanted(5, kind="turns")).amount == 1
    owed = give(journal, 0, wanted(0, debt=90))
    assert (owed.amount, owed.left, owed.wait_s) == (0, -30, 0)
    assert give(journal, 0, wanted(5)).wait_s == 31
    journal.close()


def test_tenants_clusters_and_kinds_have_buckets_of_their_own(tmp_path: Path) -> None:
    journal = journal_at(tmp_path)
    other = Draw(cluster="other", kind="tokens", limit=60, amount=60)
    for of, tenant in ((wanted(60), "t"), (other, "t"), (wanted(60), "u")):
        assert give(journal, 0, of, tenant).amount == 60
    assert give(journal, 0, wanted(60, kind="turns")).amount == 60
    assert give(journal, 0, wanted(1)).amount == 0
    journal.close()


DRAWS = st.lists(
    st.tuples(st.integers(0, 5000), st.floats(0, 80), st.sampled_from([0.0, 0.0, 7.5, 200.0])),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(draws=DRAWS, limit=st.integers(1, 600))
def test_whatever_is_drawn_is_within_what_a_bucket_held_and_gained(
    tmp_path_factory: object, draws: list[tuple[int, float, float]], limit: int
) -> None:
    journal = journal_at(tmp_path_factory.mktemp("draws"))  # type: ignore[attr-defined]
    level, now_ms, at_ms, new = float(limit), 0, 0, True
    for pause_ms, amount, debt in draws:
        now_ms += pause_ms
        level = level if new else min(limit, level + (now_ms - at_ms) * limit / 60_000)
        at_ms, new = now_ms, False
        level -= debt
        expected = max(min(amount, level), 0.0)
        level -= expected
        found = give(journal, now_ms, wanted(amount, limit=limit, debt=debt))
        assert abs(found.amount - expected) < 1e-3
        assert abs(found.left - level) < 1e-3
    journal.close()
