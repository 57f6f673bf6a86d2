"""Usage by the hour, tenant, key, model and tool, in a journal's database.

A record's usage is added to the sums of its hour in the transaction that writes it; days and months
are added up from hours when somebody asks. A turn belongs to the hour of its end, what was charged
beside turns to the hour in which its account got it. Rows stay when the turns go. They carry no
checksum: they are added to where they lie. ``HourlyUsage`` writes, ``usage_reading`` reads.

A turn that read outputs of several calls is counted for their tools in equal parts, count by count;
what does not divide goes to the first. A session's labels are counted beside that, each for itself.

Always true: over all rows of any stretch of time the sums are those of the records, to the
nano-dollar; of each kind no more than ``MOST_VALUES`` values of a tenant are told apart.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from operator import add
from typing import NamedTuple, Protocol

from sessions.durable.usage_keys import NONE, OTHER
from sessions.journal.records import TurnRecord
from sessions.journal.tables import Cursor, marks, slices

HOUR_MS = 3_600_000
MOST_VALUES = 1000
"""Values of a label, of tools and of models that are told apart for a tenant; names of labels."""
MODEL, TOOL, LABEL_NAME = "model", "tool", "label"
_REMEMBERED = 100_000


class UsageSums(NamedTuple):
    """Sums over turns, or parts of them. Made for every turn, hence a tuple."""

    turns: int = 0
    failed: int = 0
    """The part of them that failed."""
    calls: int = 0
    """Calls of tools whose outputs were read."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    forced_tokens: int = 0
    residency: int = 0
    """Residency, in block-microseconds."""
    cost: int = 0
    """Cost, in nano-dollars."""
    saved: int = 0
    """Cost that was saved by the cache, in nano-dollars."""

    def plus(self, other: "UsageSums") -> "UsageSums":
        return UsageSums._make(map(add, self, other))


COUNTS = ", ".join(UsageSums._fields)
HOURS = "hour, tenant, key, model, tool"
LABELLED = "hour, tenant, name, value"
Place = tuple[int, str, str, str, str]
"""Values of the columns ``HOURS``: where a sum lies."""


class KnownValues(Protocol):
    """The values that a store remembers between two transactions, and its lock on a name."""

    usage_values: set[tuple[str, str, str]]
    """Tenant, kind and value of those that have a row."""

    def lock_name(self, cursor: Cursor, kind: str, tenant: str, name: str) -> None:
        """As ``SqlTables.lock_name``."""
        ...


def sums_of(record: TurnRecord) -> UsageSums:
    """The sums that a turn's record adds, by where they lie."""
    usage, is_turn = record.usage, record.is_turn
    return UsageSums(
        int(is_turn),
        int(is_turn and record.status == "failed"),
        len(record.keys.tools),
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.forced_tokens,
        usage.residency,
        record.cost,
        record.saved,
    )


def parts_of(sums: UsageSums, calls: int) -> tuple[UsageSums, UsageSums]:
    """The part of the first of so many calls, and that of each other one."""
    each = UsageSums(*(count // calls for count in sums))
    first = UsageSums(*(count - part * (calls - 1) for count, part in zip(sums, each, strict=True)))
    return first, each


class HourlyUsage:
    """The sums that one transaction adds."""

    def __init__(self, values: KnownValues, cursor: Cursor) -> None:
        self._values = values
        self._cursor = cursor
        self._hours: dict[Place, UsageSums] = {}
        self._labelled: dict[tuple[int, str, str, str], UsageSums] = {}
        self._new_values: set[tuple[str, str, str]] = set()

    def add(self, record: TurnRecord, at_ms: int) -> None:
        """Count a record that is written. ``at_ms``: when its account got it."""
        hour, tenant, keys = at_ms // HOUR_MS, record.tenant, record.keys
        sums = sums_of(record)
        model = self._told_apart(tenant, MODEL, keys.model)
        for tool, part in self._by_tool(tenant, keys.tools, sums):
            place = (hour, tenant, keys.key, model, tool)
            before = self._hours.get(place)
            self._hours[place] = part if before is None else before.plus(part)
        for name, value in keys.labels:
            kept = self._told_apart(tenant, LABEL_NAME, name)
            if kept is OTHER:
                continue  # what is asked for by that name is not there
            where = (hour, tenant, kept, self._told_apart(tenant, f"{LABEL_NAME}:{name}", value))
            known = self._labelled.get(where)
            self._labelled[where] = sums if known is None else known.plus(sums)

    def write(self) -> None:
        """Add the sums to what is there, in one order of rows whoever writes."""
        hours = [(*place, *self._hours[place]) for place in sorted(self._hours)]
        self._put("usage_hour", HOURS, hours)
        if self._labelled:
            labelled = [(*place, *self._labelled[place]) for place in sorted(self._labelled)]
            self._put("usage_label", LABELLED, labelled)
        self._hours, self._labelled = {}, {}

    def remember(self) -> None:
        """The transaction is committed."""
        known = self._values.usage_values
        if len(known) > _REMEMBERED:
            known.clear()
        known |= self._new_values

    def _by_tool(
        self, tenant: str, tools: tuple[str, ...], sums: UsageSums
    ) -> Iterator[tuple[str, UsageSums]]:
        if len(tools) <= 1:  # most turns, for which nothing is divided
            yield self._told_apart(tenant, TOOL, tools[0]) if tools else NONE, sums
            return
        first, each = parts_of(sums._replace(calls=0), len(tools))
        for number, tool in enumerate(tools):
            part = each if number else first
            yield self._told_apart(tenant, TOOL, tool), part._replace(calls=1)

    def _told_apart(self, tenant: str, kind: str, value: str) -> str:
        """The value, or ``OTHER`` where the most of them are told apart already."""
        place = (tenant, kind, value)
        if (
            value in (NONE, OTHER)
            or place in self._values.usage_values
            or place in self._new_values
        ):
            return value
        if self._has(tenant, kind, value) or self._makes(tenant, kind, value):
            self._new_values.add(place)
            return value
        return OTHER

    def _has(self, tenant: str, kind: str, value: str) -> bool:
        sql = "SELECT 1 FROM usage_value WHERE tenant = ? AND kind = ? AND value = ?"
        return self._cursor.execute(sql, (tenant, kind, value)).fetchone() is not None

    def _makes(self, tenant: str, kind: str, value: str) -> bool:
        self._values.lock_name(self._cursor, "usage", tenant, kind)
        if self._has(tenant, kind, value):  # somebody has made it before it was locked
            return True
        sql = "SELECT count(*) FROM usage_value WHERE tenant = ? AND kind = ?"
        (count,) = self._cursor.execute(sql, (tenant, kind)).fetchone()
        if count >= MOST_VALUES:
            return False
        sql = "INSERT INTO usage_value (tenant, kind, value) VALUES (?, ?, ?)"
        self._cursor.execute(sql, (tenant, kind, value))
        return True

    def _put(self, table: str, key: str, found: Sequence[tuple[int | str, ...]]) -> None:
        for some in slices(found):
            sql = _adding(table, key, len(some))
            self._cursor.execute(sql, [value for row in some for value in row])


@cache
def _adding(table: str, key: str, count: int) -> str:
    """The statement that adds so many rows to those of the same key."""
    columns = f"{key}, {COUNTS}"
    changes = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in UsageSums._fields)
    rows = ", ".join([f"({marks(len(columns.split(', ')))})"] * count)
    return (
        f"INSERT INTO {table} ({columns}) VALUES {rows} ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )
