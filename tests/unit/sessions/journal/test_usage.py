"""Usage by the hour against a reckoning that is too simple to be wrong."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.ledger import TurnUsage
from sessions.durable.usage_keys import OTHER, UsageKeys
from sessions.journal import usage
from sessions.journal.records import RESIDENCY, TENANT_ACCOUNT, TurnRecord
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.usage import UsageSums, parts_of
from sessions.journal.usage_reading import (
    UsageAsked,
    UsagePlace,
    UsageRow,
    count_buckets,
    month_starts,
)
from tests.support.journals import record, reservation
from tests.support.usage_reckoning import EMPTY, HOUR_S, reckoned, sum_of

START_S = 1_767_000_000  # 2025-12-29: months and a year end behind it


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def drawn(rng: random.Random, number: int) -> TurnRecord:
    """A random ended turn, or a charge beside turns."""
    tenant = rng.choice("ab")
    made = record(
        f"r{number}",
        tenant=tenant,
        session=f"s{rng.randrange(5)}",
        said=rng.random() < 0.8,
        created_s=START_S + rng.randrange(100 * 24 * HOUR_S) + rng.random(),
        accounts=(TENANT_ACCOUNT,),
    )
    output = rng.randrange(500)
    used = TurnUsage(
        input_tokens=rng.randrange(1000, 2000),
        cached_tokens=rng.randrange(1000),
        output_tokens=output,
        reasoning_tokens=rng.randrange(output + 1),
        forced_tokens=rng.randrange(output + 1),
        residency=rng.randrange(10**9),
    )
    labels = tuple((name, rng.choice(("x", "ü#&=%", "<b>"))) for name in "lm" if rng.random() < 0.5)
    keys = UsageKeys(
        key=rng.choice(("k1", "k2")),
        model=rng.choice(("m", "n")),
        labels=labels,
        tools=tuple(rng.choices(("grep", "ls", "make"), k=rng.randrange(4))),
    )
    made = replace(made, usage=used, cost=rng.randrange(10**12), saved=rng.randrange(10**9))
    if rng.random() < 0.1:
        made = replace(made, status=RESIDENCY, links=(), base_id=None, reason=None, terminal=b"")
        keys = keys.without_tools()
    return replace(made, keys=keys)


def asked(group: str = "", **more: object) -> UsageAsked:
    first = START_S // HOUR_S
    fields: dict[str, object] = {"first_hour": first, "end_hour": first + 101 * 24, "bucket": "1mo"}
    return UsageAsked(group=group, **(fields | more))  # type: ignore[arg-type]


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


def test_sums_equal_the_accounts_of_the_tenants(journal: SqliteJournal) -> None:
    rng = random.Random(1)
    journal.append([drawn(rng, number) for number in range(80)])
    for tenant, account in journal.accounts_named(TENANT_ACCOUNT).items():
        _, total = journal.usage(asked(tenant=tenant), None, 1)
        assert (total.turns, total.cost, total.saved) == (
            account.turns,
            account.cost,
            account.saved,
        )
        assert total.input_tokens == account.usage.input_tokens
        assert total.residency == account.usage.residency


def test_a_turn_that_is_written_twice_is_counted_once(journal: SqliteJournal) -> None:
    turn = record("r", created_s=START_S)
    assert journal.append([turn]) == [True]
    assert journal.append([turn]) == [True]
    assert journal.usage(asked(), None, 1)[1].turns == 1


def test_what_a_transaction_that_failed_counted_is_not_there(journal: SqliteJournal) -> None:
    good = replace(record("r", created_s=START_S), keys=UsageKeys(tools=("grep",)))
    bad = replace(record("r2", created_s=START_S), base_id="gone")
    with pytest.raises(Exception, match="deleted"):
        journal.append([good, bad])
    assert journal.usage(asked(), None, 1)[1] == EMPTY
    assert journal.append([good]) == [True]
    rows, _ = journal.usage(asked("tool"), None, 9)
    assert [row.place.value for row in rows] == ["grep"]


def test_retention_takes_turns_and_leaves_their_usage(journal: SqliteJournal) -> None:
    journal.append([record("r", created_s=START_S)])
    before = journal.usage(asked(), None, 1)
    assert journal.expire(START_S + 10) == 1
    assert journal.session("t", "s") is None
    assert journal.usage(asked(), None, 1) == before
    assert before[1].turns == 1


def test_a_turn_whose_server_died_is_counted_in_the_hour_in_which_it_was_settled(
    tmp_path: Path,
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    held = replace(reservation("r"), keys=UsageKeys(key="k", tools=("grep", "ls")))
    journal.reserve([held])
    later = 4000 * HOUR_S
    journal.now_sql = f"SELECT {later * 1000 + 5}"
    assert len(journal.settle_left()) == 1
    query = UsageAsked(first_hour=4000, end_hour=4001, bucket="1h", group="key")
    ((place, sums),), _ = journal.usage(query, None, 9)
    assert place == UsagePlace(4000, "k")
    assert (sums.turns, sums.failed, sums.calls, sums.cost) == (1, 1, 2, held.cost)
    tools, _ = journal.usage(replace(query, group="tool"), None, 9)
    assert [(row.place.value, row.sums.calls) for row in tools] == [("grep", 1), ("ls", 1)]
    assert sum(row.sums.cost for row in tools) == held.cost
    journal.close()


@pytest.mark.parametrize("calls", [1, 2, 3, 7, 64])
def test_parts_for_calls_add_up_and_the_rest_is_the_firsts(calls: int) -> None:
    sums = UsageSums(*(10**k + k for k in range(11)))
    first, each = parts_of(sums, calls)
    assert sum_of([first, *[each] * (calls - 1)]) == sums
    assert all(0 <= a - b < calls for a, b in zip(first, each, strict=True))


def test_values_beyond_the_most_are_counted_together(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_VALUES", 3)
    for number in range(6):
        keys = UsageKeys(labels=(("user", f"u{number}"),), tools=(f"t{number}",))
        turn = replace(record(f"r{number}", created_s=START_S), keys=keys)
        journal.append([turn])
        journal.usage_values.clear()  # as after a restart
    for query in (asked("label", label="user"), asked("tool")):
        found = {row.place.value: row.sums.turns for row in journal.usage(query, None, 99)[0]}
        first = "u" if query.group == "label" else "t"
        assert found == {f"{first}0": 1, f"{first}1": 1, f"{first}2": 1, OTHER: 3}


def test_names_of_labels_are_bounded(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_VALUES", 2)
    for number in range(4):
        keys = UsageKeys(labels=((f"n{number}", "x"),))
        journal.append([replace(record(f"r{number}", created_s=START_S), keys=keys)])
    assert journal.usage_labels("t") == ["n0", "n1"]
    assert journal.usage_labels("another") == []
    assert journal.usage(asked(), None, 1)[1].turns == 4


def test_buckets_are_counted_before_they_are_made() -> None:
    day = 24
    assert count_buckets(asked(bucket="1h", first_hour=5, end_hour=29)) == 24
    assert count_buckets(asked(bucket="1d", first_hour=5, end_hour=29)) == 2
    assert count_buckets(asked(bucket="1mo", first_hour=0, end_hour=31 * day)) == 1
    assert count_buckets(asked(bucket="1mo", first_hour=0, end_hour=31 * day + 1)) == 2
    assert month_starts(31 * day - 1, 60 * day) == [0, 31 * day, 59 * day]
