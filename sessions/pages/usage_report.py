"""``GET /v1/usage``: who used what, by hour, day or month, as JSON and as a table.

The answer adds up: its ``total`` is over all of the stretch, whatever page it is on. Money stands
there in dollars and, to the last digit, in nano-dollars. In CSV no cell begins with what a
spreadsheet takes for a formula.
"""

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from sessions.durable.ledger import block_seconds, dollars
from sessions.durable.usage_keys import NONE, OTHER
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.journal.errors import JournalError
from sessions.journal.usage import UsageSums
from sessions.journal.usage_reading import UsageAsked, UsagePlace, UsageRow
from sessions.pages.archive import Beside, unread
from sessions.pages.usage_cursor import CursorSeal
from sessions.pages.usage_query import UsageQuery, read_usage_query
from tools_api import errors

CURSOR_HEADER = "X-Next-Cursor"
"""The next page's cursor, of a CSV."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A cell that begins so is computed by some spreadsheet."""


class UsageJournal(Protocol):
    """The questions to a journal."""

    def usage(
        self, asked: UsageAsked, after: UsagePlace | None, most: int
    ) -> tuple[list[UsageRow], UsageSums]:
        """Sums of usage, as ``Journal.usage`` has them."""
        ...

    def usage_labels(self, tenant: str | None) -> list[str]:
        """As ``Journal.usage_labels``."""
        ...

    def cursor_secret(self) -> bytes:
        """As ``Journal.cursor_secret``."""
        ...


class UsageReport:
    """Handler of ``/v1/usage``."""

    def __init__(
        self, journal: UsageJournal | None, beside: Beside, *, wall_clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._beside = beside
        self._wall_clock = wall_clock

    async def show(self, call: Call) -> HttpResponse:
        """``GET``: a page of sums.

        Raises:
            ApiError: there is no journal, it cannot be read, or a parameter makes no sense.
        """
        journal = self._journal
        if journal is None:
            raise http_error(HTTPStatus.NOT_FOUND, "This server keeps no journal.")
        query = read_usage_query(call.request, call.principal, self._wall_clock())
        try:
            body = await self._beside(call.principal.tenant, partial(usage_page, journal, query))
        except JournalError as error:
            raise unread(error, "usage") from None
        return _csv_response(body) if query.format == "csv" else json_response(body)


def usage_page(journal: UsageJournal, query: UsageQuery) -> dict[str, Any]:
    """The page of a query. Raises ApiError: its cursor is none of this query's, or nothing has a
    label of that name."""
    asked = query.asked
    seal, question = CursorSeal(journal.cursor_secret()), _question(query)
    after = None
    if query.cursor:
        after = UsagePlace(*seal.opened(question, query.cursor))
    if asked.group == "label" and asked.label not in journal.usage_labels(asked.tenant):
        raise errors.invalid_value(
            "group_by", f"no usage is known under a label {errors.quoted(asked.label)}"
        )
    rows, total = journal.usage(asked, after, query.rows + 1)
    shown = rows[: query.rows]
    more = len(rows) > len(shown)
    return {
        "object": "usage",
        "from": _time(asked.first_hour),
        "to": _time(asked.end_hour),
        "bucket": asked.bucket,
        "group_by": query.group_by or None,
        "tenant": asked.tenant,
        "data": [_row(row, grouped=bool(asked.group)) for row in shown],
        "total": _sums(total),
        "next_cursor": seal.sealed(question, list(shown[-1].place)) if more else None,
    }


def _question(query: UsageQuery) -> list[Any]:
    asked = query.asked
    stretch = [asked.first_hour, asked.end_hour, asked.bucket]
    return ["usage", *stretch, query.group_by, asked.tenant]


def _row(row: UsageRow, *, grouped: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"start": _time(row.place.hour)}
    if grouped:
        shown |= named_value(row.place.value)
    return shown | _sums(row.sums)


def named_value(value: str) -> dict[str, Any]:
    """A value of a group, and whether it is one: ``none`` has no such thing, ``other`` is all of
    those beyond the most that are told apart."""
    if value == NONE:
        return {"value": None, "kind": "none"}
    return {"value": None, "kind": "other"} if value == OTHER else {"value": value, "kind": "value"}


def _sums(sums: UsageSums) -> dict[str, Any]:
    return {
        "turns": sums.turns,
        "failed": sums.failed,
        "calls": sums.calls,
        "input_tokens": sums.input_tokens,
        "cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "reasoning_tokens": sums.reasoning_tokens,
        "forced_tokens": sums.forced_tokens,
        "block_seconds": block_seconds(sums.residency),
        "cost": dollars(sums.cost),
        "cost_nano": sums.cost,
        "saved": dollars(sums.saved),
        "saved_nano": sums.saved,
    }


def _time(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# As a table


def cell(value: Any) -> str:
    """A cell of a CSV that no spreadsheet computes. Numbers are none of a client's words; dollars
    are written out."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9f}"
    text = str(value)
    if isinstance(value, str) and text.lstrip(" ").startswith(_FORMULAS):
        return f"'{text}"
    return text


def table(body: dict[str, Any]) -> str:
    """The rows of a page as CSV (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    grouped = ["value", "kind"] if body["group_by"] is not None else []
    columns = ["start", *grouped, *body["total"]]
    writer.writerow(columns)
    for row in body["data"]:
        writer.writerow([cell(row[name]) for name in columns])
    return out.getvalue()


def _csv_response(body: dict[str, Any]) -> HttpResponse:
    cursor = body["next_cursor"]
    return HttpResponse(
        status=HTTPStatus.OK,
        content_type="text/csv; charset=utf-8",
        body=table(body).encode(),
        headers=(
            ("Content-Disposition", 'attachment; filename="usage.csv"'),
            *([] if cursor is None else [(CURSOR_HEADER, cursor)]),
        ),
    )
