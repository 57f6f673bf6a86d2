"""The answer of ``/v1/usage``: sums, pages, and a table that no spreadsheet computes."""

import csv
import io
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessions.durable.usage_keys import UsageKeys
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.usage_reading import UsageAsked
from sessions.pages.usage_query import UsageQuery
from sessions.pages.usage_report import cell, table, usage_page
from tests.support.journals import record
from tools_api.errors import ApiError

DAY = 24
EVIL = ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|"/c calc"!A1', "  =1", "\uff1d1", 'a"b,c', "<b>#&=%"]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def query(group: str = "label", label: str = "team", rows: int = 1000, **more: Any) -> UsageQuery:
    fields: dict[str, Any] = {"first_hour": 0, "end_hour": 40 * DAY, "bucket": "1d"} | more
    cursor = fields.pop("cursor", "")
    asked = UsageAsked(group=group, label=label if group == "label" else "", **fields)  # type: ignore[arg-type]
    return UsageQuery(asked=asked, format="json", rows=rows, cursor=cursor)


def filled(journal: SqliteJournal, count: int = 60) -> int:
    """Turns under all kinds of labels; returns what they cost."""
    rng, cost = random.Random(0), 0
    turns = []
    for number in range(count):
        labels = (("team", rng.choice(EVIL)),) if rng.random() < 0.8 else ()
        spent = rng.randrange(10**9)
        turn = record(f"r{number}", created_s=rng.randrange(40 * 86_400))
        turns.append(replace(turn, cost=spent, keys=UsageKeys(labels=labels, key="k")))
        cost += spent
    assert all(journal.append(turns))
    return cost


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_pages_add_up_to_the_ledger_to_the_nano_dollar(journal: SqliteJournal, rows: int) -> None:
    cost = filled(journal)
    body = usage_page(journal, query(rows=rows))
    found = list(body["data"])
    while body["next_cursor"] is not None:
        body = usage_page(journal, query(rows=rows, cursor=body["next_cursor"]))
        assert 0 < len(body["data"]) <= rows
        found += body["data"]
    assert sum(row["cost_nano"] for row in found) == body["total"]["cost_nano"] == cost
    assert {row["value"] for row in found} == {*EVIL, None}
    places = [(row["start"], row["value"] or "") for row in found]
    assert places == sorted(set(places))


def test_a_cursor_of_another_tenant_or_query_is_refused(journal: SqliteJournal) -> None:
    filled(journal)
    cursor = usage_page(journal, query(rows=1, tenant="t"))["next_cursor"]
    for other in (
        query(rows=1, tenant="u", cursor=cursor),
        query(rows=1, cursor=cursor),
        query("key", rows=1, tenant="t", cursor=cursor),
        query(rows=1, tenant="t", end_hour=9, cursor=cursor),
    ):
        with pytest.raises(ApiError) as refused:
            usage_page(journal, other)
        assert refused.value.param == "cursor"


def test_a_label_that_nothing_has_is_refused_by_its_name(journal: SqliteJournal) -> None:
    filled(journal)
    for asked in (query(label="taem"), query(tenant="u")):
        with pytest.raises(ApiError, match="label") as refused:
            usage_page(journal, asked)
        assert refused.value.param == "group_by"


def test_no_cell_of_a_table_is_computed_by_a_spreadsheet(journal: SqliteJournal) -> None:
    cost = filled(journal)
    body = usage_page(journal, query())
    rows = list(csv.DictReader(io.StringIO(table(body), newline="")))
    assert len(rows) == len(body["data"])
    assert sum(int(row["cost_nano"]) for row in rows) == cost
    for row, told in zip(rows, body["data"], strict=True):
        assert not any(
            text.strip().startswith(("=", "+", "-", "@", "\uff1d")) for text in row.values()
        )
        assert row["value"].removeprefix("'") == (told["value"] or "")
        assert row["cost"] == f"{told['cost_nano'] / 1e9:.9f}"


def test_cells_of_numbers_are_numbers() -> None:
    assert [cell(value) for value in (None, 0, 12, 0.5, "x")] == ["", "0", "12", "0.500000000", "x"]
