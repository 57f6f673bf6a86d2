"""The query of ``/sessions.json?list=1``, read and checked: what makes no sense is refused by its
name.

Knows neither a journal nor the sessions that are live.
"""

from dataclasses import dataclass
from typing import Any

from sessions.durable.session import SessionState
from sessions.durable.usage_keys import MAX_VALUE_CHARS, Labels
from sessions.http.message import HttpRequest
from sessions.journal.listing import ListAsked, Order
from sessions.tenants import Principal
from tools_api import errors
from tools_api.limits import DEFAULT_LIMITS

PAGE_ROWS = 50
MAX_SEARCH_CHARS = 256
MAX_CURSOR_CHARS = 4096
_ORDERS: dict[str, Order] = {"recent": "recent", "cost": "cost", "again": "again", "hit": "hit"}
_STATES = (SessionState.IDLE, SessionState.RUNNING, SessionState.WAITING_FOR_TOOLS)
_SWITCHES = ("failed", "budget", "several")
_KNOWN = frozenset(
    {"list", "q", "state", "tenant", "label", *_SWITCHES, "from", "to", "sort", "cursor"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsQuery:
    """A checked query for a page of the list of sessions."""

    asked: ListAsked
    state: SessionState | None
    """Only sessions in that state; one that is in the journal alone is idle."""
    cursor: str
    """Sealed; empty: the first page."""

    @property
    def question(self) -> list[Any]:
        """The part of the query that a cursor holds for."""
        asked = self.asked
        return [
            "list",
            asked.tenant,
            asked.search,
            [list(pair) for pair in asked.labels],
            [asked.failed, asked.bounded, asked.several],
            [asked.from_ms, asked.to_ms],
            asked.order,
            None if self.state is None else self.state.value,
        ]


def read_sessions_query(request: HttpRequest, principal: Principal) -> SessionsQuery:
    """The query of a request.

    Args:
        principal: who asks: an operator for all tenants or one, others for their own.

    Raises:
        ApiError: a parameter is unknown, or has a value that it cannot have.
    """
    for name in request.parameters():
        if name not in _KNOWN:
            raise errors.invalid_value(name, f"unknown; known: {', '.join(sorted(_KNOWN))}")
    order = _ORDERS.get(request.query("sort") or "recent")
    if order is None:
        raise errors.invalid_value("sort", f"not one of {', '.join(_ORDERS)}")
    search = request.query("q") or ""
    if len(search) > MAX_SEARCH_CHARS or "\x00" in search:
        raise errors.invalid_value("q", f"longer than {MAX_SEARCH_CHARS} characters, or with NUL")
    asked = ListAsked(
        tenant=_tenant(request, principal),
        search=search.casefold(),
        labels=_labels(request),
        failed=_switch(request, "failed"),
        bounded=_switch(request, "budget"),
        several=_switch(request, "several"),
        from_ms=_ms(request, "from"),
        to_ms=_ms(request, "to"),
        order=order,
    )
    cursor = request.query("cursor") or ""
    if len(cursor) > MAX_CURSOR_CHARS:
        raise errors.invalid_value("cursor", "longer than any that this server makes")
    return SessionsQuery(asked=asked, state=_state(request), cursor=cursor)


def _tenant(request: HttpRequest, principal: Principal) -> str | None:
    asked = request.query("tenant") or None
    if principal.operator:
        if asked is not None and "\x00" in asked:
            raise errors.invalid_value("tenant", "there is no such name")
        return asked
    if asked not in (None, principal.tenant):
        raise errors.invalid_value("tenant", "this key shows its own tenant alone")
    return principal.tenant


def _labels(request: HttpRequest) -> Labels:
    """Each ``label`` is NAME:VALUE; all of them have to hold."""
    given = request.queries("label")
    if len(given) > DEFAULT_LIMITS.max_labels:
        raise errors.invalid_value("label", f"more than {DEFAULT_LIMITS.max_labels}")
    found = set[tuple[str, str]]()
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name or len(text) > 2 * MAX_VALUE_CHARS or "\x00" in text:
            raise errors.invalid_value("label", "not NAME:VALUE")
        found.add((name, value))
    return tuple(sorted(found))


def _switch(request: HttpRequest, name: str) -> bool:
    text = request.query(name) or "0"
    if text not in ("0", "1"):
        raise errors.invalid_value(name, "not 0 or 1")
    return text == "1"


def _ms(request: HttpRequest, name: str) -> int | None:
    """Milliseconds since the epoch, of seconds."""
    text = request.query(name)
    if text is None or not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise errors.invalid_value(name, "not seconds since the epoch")
    return int(text) * 1000


def _state(request: HttpRequest) -> SessionState | None:
    text = request.query("state") or ""
    found = next((state for state in _STATES if state.value == text), None)
    if text and found is None:
        known = ", ".join(state.value for state in _STATES)
        raise errors.invalid_value("state", f"not one of {known}")
    return found
