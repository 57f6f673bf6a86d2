"""Usage by the hour against a reckoning that is too simple to be wrong."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.usage_keys import OTHER, UsageKeys
from sessions.journal import usage
from sessions.journal.records import TENANT_ACCOUNT
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.usage import UsageSums, parts_of
from sessions.journal.usage_reading import (
    UsageAsked,
    UsagePlace,
)
from tests.support.journals import record, reservation
from tests.support.usage_reckoning import EMPTY, HOUR_S, START_S, asked, drawn, sum_of


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


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
