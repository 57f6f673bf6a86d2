"""Sums of usage over a stretch of hours, by bucket and group: what ``usage`` wrote, added up.

Buckets are hours, days and months of UTC; rows come in the order of bucket and value, so that a
page begins behind the last row of the one before.

Always true: over all groups of a bucket the sums are those of the bucket.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from sessions.durable.usage_keys import NONE
from sessions.journal.tables import Cursor
from sessions.journal.usage import COUNTS, LABEL_NAME, UsageSums

HOURS_OF_DAY = 24
Bucket = Literal["1h", "1d", "1mo"]
Group = Literal["", "tenant", "key", "model", "tool", "label"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAsked:
    """A question about usage: which sums, of whom, by what."""

    first_hour: int
    """The first hour that counts, in hours since the epoch."""
    end_hour: int
    """The first one that is not asked for."""
    bucket: Bucket
    group: Group = ""
    label: str = ""
    """The name, where labels are the group."""
    tenant: str | None = None
    """The tenant whose usage is asked for; None: that of all together."""


class UsagePlace(NamedTuple):
    """Where a row stands among those that are asked for."""

    hour: int
    """The first hour of its bucket, which may be before what is asked for."""
    value: str


class UsageRow(NamedTuple):
    """A bucket's sums of one value of the group."""

    place: UsagePlace
    sums: UsageSums


def month_starts(first_hour: int, end_hour: int) -> list[int]:
    """The first hours of the months that have hours of the stretch."""
    at = datetime.fromtimestamp(first_hour * 3600, UTC).replace(day=1, hour=0)
    starts = list[int]()
    while (hour := int(at.timestamp()) // 3600) < end_hour:
        starts.append(hour)
        at = at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1)
    return starts


def count_buckets(asked: UsageAsked) -> int:
    """How many buckets the stretch has."""
    if asked.bucket == "1mo":
        return len(month_starts(asked.first_hour, asked.end_hour))
    width = 1 if asked.bucket == "1h" else HOURS_OF_DAY
    return -(-asked.end_hour // width) - asked.first_hour // width


def read(cursor: Cursor, asked: UsageAsked, after: UsagePlace | None, most: int) -> list[UsageRow]:
    """At most so many rows behind ``after``; buckets and values without any usage have none."""
    if asked.bucket != "1mo":
        width = 1 if asked.bucket == "1h" else HOURS_OF_DAY
        return _grouped(cursor, asked, f"hour / {width}", width, after=after, most=most)
    found = list[UsageRow]()
    for start, end in _months(asked):
        if after is not None and start < after.hour:
            continue
        here = after if after is not None and start == after.hour else None
        month = replace(
            asked, first_hour=max(start, asked.first_hour), end_hour=min(end, asked.end_hour)
        )
        behind = None if here is None else UsagePlace(0, here.value)
        some = _grouped(cursor, month, "hour * 0", 1, after=behind, most=most - len(found))
        found += [UsageRow(UsagePlace(start, row.place.value), row.sums) for row in some]
        if len(found) >= most:
            break
    return found


def total(cursor: Cursor, asked: UsageAsked) -> UsageSums:
    """The sums over all of the stretch."""
    where, parameters = _where(asked)
    sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in UsageSums._fields)
    row = cursor.execute(f"SELECT {sums} FROM usage_hour WHERE {where}", parameters).fetchone()
    return UsageSums(*map(int, row))


def values_of(cursor: Cursor, tenant: str | None, kind: str) -> list[str]:
    """Values of a kind that were told apart."""
    sql = "SELECT DISTINCT value FROM usage_value WHERE kind = ?"
    parameters: tuple[str, ...] = (kind,)
    if tenant is not None:
        sql, parameters = f"{sql} AND tenant = ?", (kind, tenant)
    return sorted(value for (value,) in cursor.execute(sql, parameters).fetchall())


def label_names(cursor: Cursor, tenant: str | None) -> list[str]:
    """Names of labels by which usage can be grouped."""
    return values_of(cursor, tenant, LABEL_NAME)


def _months(asked: UsageAsked) -> Iterator[tuple[int, int]]:
    starts = month_starts(asked.first_hour, asked.end_hour)
    return zip(starts, [*starts[1:], asked.end_hour], strict=True)


def _grouped(
    cursor: Cursor,
    asked: UsageAsked,
    bucket: str,
    width: int,
    *,
    after: UsagePlace | None,
    most: int,
) -> list[UsageRow]:
    """Rows of one statement; ``bucket``: the SQL that numbers buckets of ``width`` hours."""
    source, parameters = _source(asked)
    sums = ", ".join(f"SUM({name})" for name in UsageSums._fields)
    behind = ""
    if after is not None:
        behind = f"WHERE ({bucket} > ? OR ({bucket} = ? AND value > ?))"
        number = after.hour // width
        parameters = (*parameters, number, number, after.value)
    used = " OR ".join(f"SUM({name}) <> 0" for name in ("turns", "calls", *_CHARGED))
    sql = (
        f"SELECT {bucket} AS bucket, value, {sums} FROM ({source}) AS counted {behind} "
        f"GROUP BY {bucket}, value HAVING {used} ORDER BY {bucket}, value LIMIT ?"
    )
    found = cursor.execute(sql, (*parameters, most)).fetchall()
    return [
        UsageRow(UsagePlace(int(row[0]) * width, row[1]), UsageSums(*map(int, row[2:])))
        for row in found
    ]


_CHARGED = ("input_tokens", "output_tokens", "residency", "cost")


def _source(asked: UsageAsked) -> tuple[str, tuple[Any, ...]]:
    """The rows that are added up: hour, value and counts."""
    where, parameters = _where(asked)
    if asked.group != "label":
        value = asked.group or "''"
        return f"SELECT hour, {value} AS value, {COUNTS} FROM usage_hour WHERE {where}", parameters
    labelled = f"FROM usage_label WHERE {where} AND name = ?"
    less = ", ".join(f"-{name} AS {name}" for name in UsageSums._fields)
    # What has no such label is all but what has one.
    sql = (
        f"SELECT hour, value, {COUNTS} {labelled} "
        f"UNION ALL SELECT hour, '{NONE}' AS value, {COUNTS} FROM usage_hour WHERE {where} "
        f"UNION ALL SELECT hour, '{NONE}' AS value, {less} {labelled}"
    )
    named = (*parameters, asked.label)
    return sql, (*named, *parameters, *named)


def _where(asked: UsageAsked) -> tuple[str, tuple[Any, ...]]:
    where, parameters = "hour >= ? AND hour < ?", (asked.first_hour, asked.end_hour)
    if asked.tenant is None:
        return where, parameters
    return f"{where} AND tenant = ?", (*parameters, asked.tenant)
