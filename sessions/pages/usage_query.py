"""The query of ``GET /v1/usage``, read and checked: what makes no sense is refused by its name.

Times are UTC, on full hours: usage is known by the hour. Knows no journal.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sessions.durable.usage_keys import MAX_VALUE_CHARS
from sessions.http.message import HttpRequest
from sessions.journal.usage_reading import Bucket, Group, UsageAsked, count_buckets
from sessions.tenants import Principal
from tools_api import errors

MAX_BUCKETS = 10_000
"""Buckets of one stretch: a year by the hour."""
ROWS, MAX_ROWS = 1000, 10_000
"""Rows of a page, where its client does not say how many, and at most."""
MAX_CURSOR_CHARS = 2048
LAST_YEAR = 9000
DEFAULT_DAYS = 30
_HOUR_S = 3600
_BUCKETS: dict[str, Bucket] = {"1h": "1h", "1d": "1d", "1mo": "1mo"}
_GROUPS: dict[str, Group] = {
    "": "",
    "tenant": "tenant",
    "key": "key",
    "model": "model",
    "tool": "tool",
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:Z|\+00:00)?)?", re.ASCII)
_KNOWN = frozenset({"from", "to", "bucket", "group_by", "tenant", "format", "limit", "cursor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """A checked query for usage."""

    asked: UsageAsked
    format: Literal["json", "csv"]
    rows: int
    """Rows of the page, at most."""
    cursor: str
    """Sealed; empty: the first page."""

    @property
    def group_by(self) -> str:
        """The keys by which usage is grouped, as they were asked for; empty: no groups."""
        return f"label:{self.asked.label}" if self.asked.group == "label" else self.asked.group


def read_usage_query(request: HttpRequest, principal: Principal, now_s: float) -> UsageQuery:
    """The query of a request.

    Args:
        principal: who asks: an operator for all tenants or one, others for their own.
        now_s: seconds since the epoch.

    Raises:
        ApiError: a parameter is unknown, or has a value that it cannot have.
    """
    for name in request.parameters():
        if name not in _KNOWN:
            raise errors.invalid_value(name, f"unknown; known: {', '.join(sorted(_KNOWN))}")
    first_hour, end_hour = _stretch(request, now_s)
    bucket = _BUCKETS.get(request.query("bucket") or "1d")
    if bucket is None:
        raise errors.invalid_value("bucket", f"not one of {', '.join(_BUCKETS)}")
    group, label = _group(request.query("group_by") or "")
    asked = UsageAsked(
        first_hour=first_hour,
        end_hour=end_hour,
        bucket=bucket,
        group=group,
        label=label,
        tenant=_tenant(request, principal),
    )
    buckets = count_buckets(asked)
    if buckets > MAX_BUCKETS:
        raise errors.invalid_value(
            "bucket",
            f"the range has {buckets} of {bucket}, more than {MAX_BUCKETS}; take wider ones",
        )
    return UsageQuery(
        asked=asked, format=_format(request), rows=_rows(request), cursor=_cursor(request)
    )


def _stretch(request: HttpRequest, now_s: float) -> tuple[int, int]:
    """First hour, and the one behind the last."""
    end_hour = int(now_s) // _HOUR_S + 1
    end = request.query("to")
    if end is not None:
        end_hour = _hour("to", end)
    first_hour = max((end_hour - 1) // 24 - DEFAULT_DAYS, 0) * 24
    first = request.query("from")
    if first is not None:
        first_hour = _hour("from", first)
    if first_hour >= end_hour:
        raise errors.invalid_value("from", "not before 'to'")
    return first_hour, end_hour


def _hour(name: str, text: str) -> int:
    """Hours since the epoch, of seconds since then or of a time like ``2026-11-01T14:00Z``."""
    wanted = "seconds since the epoch, or a UTC time as 2026-11-01 or 2026-11-01T14:00Z"
    if text.isascii() and text.isdecimal() and len(text) <= 12:
        seconds = int(text)
    else:
        seconds = _seconds(name, text, wanted)
    if not 0 <= seconds < (LAST_YEAR - 1970) * 366 * 86_400:
        raise errors.invalid_value(name, f"not {wanted}")
    if seconds % _HOUR_S:
        raise errors.invalid_value(name, "not on a full hour of UTC: usage is known by the hour")
    return seconds // _HOUR_S


def _seconds(name: str, text: str, wanted: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise errors.invalid_value(name, f"not {wanted}")
    try:
        at = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}").replace(tzinfo=UTC)
    except ValueError:
        raise errors.invalid_value(name, f"not {wanted}") from None
    return int(at.timestamp())


def _group(text: str) -> tuple[Group, str]:
    """The group, and the name of the label that it is."""
    if text in _GROUPS:
        return _GROUPS[text], ""
    kind, _, label = text.partition(":")
    if kind == "label" and label and len(label) <= MAX_VALUE_CHARS and label.isprintable():
        return "label", label
    raise errors.invalid_value("group_by", "not one of tenant, key, model, label:NAME, tool")


def _tenant(request: HttpRequest, principal: Principal) -> str | None:
    asked = request.query("tenant")
    if principal.operator:
        return asked or None
    if asked not in (None, "", principal.tenant):
        raise errors.invalid_value("tenant", "this key shows its own tenant alone")
    return principal.tenant


def _format(request: HttpRequest) -> Literal["json", "csv"]:
    accepted = (request.header("Accept") or "").partition(",")[0].partition(";")[0].strip().lower()
    asked = request.query("format") or ("csv" if accepted == "text/csv" else "json")
    if asked == "json":
        return "json"
    if asked == "csv":
        return "csv"
    raise errors.invalid_value("format", "not one of json, csv")


def _rows(request: HttpRequest) -> int:
    text = request.query("limit") or str(ROWS)
    if (
        not text.isascii()
        or not text.isdecimal()
        or len(text) > 6
        or not 1 <= int(text) <= MAX_ROWS
    ):
        raise errors.invalid_value("limit", f"not a number from 1 to {MAX_ROWS}")
    return int(text)


def _cursor(request: HttpRequest) -> str:
    text = request.query("cursor") or ""
    if len(text) > MAX_CURSOR_CHARS:
        raise errors.invalid_value("cursor", "longer than any that this server makes")
    return text
