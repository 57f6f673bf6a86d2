"""Sums by every bucket and group, against a reckoning that is too simple to be wrong."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.journal.sqlite import SqliteJournal
from sessions.journal.usage_reading import UsageAsked, UsageRow, count_buckets, month_starts
from tests.support.usage_reckoning import HOUR_S, START_S, asked, drawn, reckoned, sum_of


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def all_rows(journal: SqliteJournal, query: UsageAsked, most: int) -> list[UsageRow]:
    """Page by page."""
    found, after = list[UsageRow](), None
    while True:
        some, _ = journal.usage(query, after, most)
        if not some:
            return found
        found += some
        after = some[-1].place


@pytest.mark.parametrize("seed", range(4))
def test_sums_by_every_group_and_bucket_are_those_of_the_records(
    journal: SqliteJournal, seed: int
) -> None:
    rng = random.Random(seed)
    records = [drawn(rng, number) for number in range(120)]
    left = list(records)
    while left:
        count = rng.randrange(1, 20)
        assert all(journal.append(left[:count]))
        del left[:count]
    for group in ("", "tenant", "key", "model", "tool", "label"):
        for bucket in ("1h", "1d", "1mo"):
            first = START_S // HOUR_S + rng.randrange(300)
            query = asked(
                group,
                bucket=bucket,
                label="l" if group == "label" else "",
                tenant=rng.choice((None, "a")),
                first_hour=first,
                end_hour=first + rng.randrange(1, 2000),
            )
            wanted = reckoned(records, query)
            for most in (7, 10_000):
                found = all_rows(journal, query, most)
                assert [row.place for row in found] == sorted(wanted)
                assert {row.place: row.sums for row in found} == wanted
            total = sum_of(wanted.values())
            assert journal.usage(query, None, 1)[1] == total


def test_buckets_are_counted_before_they_are_made() -> None:
    day = 24
    assert count_buckets(asked(bucket="1h", first_hour=5, end_hour=29)) == 24
    assert count_buckets(asked(bucket="1d", first_hour=5, end_hour=29)) == 2
    assert count_buckets(asked(bucket="1mo", first_hour=0, end_hour=31 * day)) == 1
    assert count_buckets(asked(bucket="1mo", first_hour=0, end_hour=31 * day + 1)) == 2
    assert month_starts(31 * day - 1, 60 * day) == [0, 31 * day, 59 * day]
