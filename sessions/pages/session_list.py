"""Which sessions a page of the list shows: searched, filtered, sorted, cut into pages.

Looks at sessions only; what is shown of those that remain is made by others, so that a list
costs what it shows. Query parameters that make no sense are refused by name.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sessions.durable.session import Session, SessionState
from sessions.http.message import HttpRequest
from sessions.pages.turn_log import SessionLog
from tools_api import errors

PAGE_ROWS = 50
MAX_PAGE = 199
"""The last page that can be asked for, from 0."""
MAX_SEARCH_CHARS = 256

LogOf = Callable[[Session], SessionLog | None]
_STATES = frozenset(state.value for state in SessionState)
_SORTS = ("recent", "cost", "input", "output", "missed", "hit", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """The query for a page of the list."""

    search: str = ""
    """Part of a session's name, in any case."""
    state: str = ""
    tenant: str = ""
    budget: bool = False
    """Only sessions with a budget, of their own or of a tree that they are in."""
    several: bool = False
    """Only sessions of more than one turn."""
    failed: bool = False
    """Only sessions with a turn that failed."""
    sort: str = "recent"
    page: int = 0

    @property
    def plain(self) -> bool:
        """Whether all sessions are asked for, the newest first."""
        left_out = self.search or self.state or self.tenant
        return self.sort == "recent" and not (
            left_out or self.budget or self.several or self.failed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of the list of live sessions."""

    total: int
    """Number of live sessions that pass the filters."""
    matching: int
    """Number of sessions that the query is about."""
    sessions: list[Session]

    @property
    def pages(self) -> int:
        """Number of pages that can be asked for."""
        return min(-(-self.matching // PAGE_ROWS), MAX_PAGE + 1)


def read_query(request: HttpRequest) -> ListQuery:
    """The query of a request.

    Raises:
        ApiError: a parameter has a value that it cannot have.
    """
    search = (request.query("q") or "")[:MAX_SEARCH_CHARS]
    state = _choice(request, "state", _STATES | {""}, "")
    page = request.query("page") or "0"
    if not page.isascii() or not page.isdecimal() or len(page) > 4 or int(page) > MAX_PAGE:
        raise errors.invalid_value("page", f"not a number from 0 to {MAX_PAGE}")
    return ListQuery(
        search=search.casefold(),
        state=state,
        tenant=request.query("tenant") or "",
        budget=request.query("budget") == "1",
        several=request.query("several") == "1",
        failed=request.query("failed") == "1",
        sort=_choice(request, "sort", frozenset(_SORTS), "recent"),
        page=int(page),
    )


def find(
    query: ListQuery,
    total: int,
    newest: Iterator[Session],
    unordered: Iterable[Session],
    log_of: LogOf,
) -> Found:
    """The page of the list. Costs what it shows if the query is plain, else a look at each.

    Args:
        total: how many sessions may be seen.
        newest: these, most recently active first.
        unordered: these in any order.
    """
    first = query.page * PAGE_ROWS
    if query.plain:
        page = list(itertools.islice(newest, first, first + PAGE_ROWS))
        return Found(total=total, matching=total, sessions=page)
    kept = list(_filtered(query, unordered, log_of))
    key = _sort_key(query.sort, log_of)
    shown = heapq.nlargest(first + PAGE_ROWS, kept, key=key)
    return Found(total=total, matching=len(kept), sessions=shown[first:])


def grouped(sessions: list[Session]) -> list[Session]:
    """The sessions, each behind the nearest one among them that it is a part of."""
    here = _by_name(sessions)
    below: dict[int, list[Session]] = {}
    roots: list[Session] = []
    for each in sessions:
        above = _nearest(each, here)
        (roots if above is None else below.setdefault(id(above), [])).append(each)
    ordered: dict[int, Session] = {}
    waiting = [*reversed(sessions), *reversed(roots)]  # what names go round in has no root
    while waiting:
        each = waiting.pop()
        if id(each) not in ordered:
            ordered[id(each)] = each
            waiting += reversed(below.get(id(each), []))
    return list(ordered.values())


def _by_name(sessions: list[Session]) -> dict[tuple[str, str], Session]:
    return {(each.tenant, each.name): each for each in sessions}


def _nearest(session: Session, here: dict[tuple[str, str], Session]) -> Session | None:
    """The nearest of those that it is a part of; by name, for one that was dropped may be back."""
    line = (here.get((each.tenant, each.name)) for each in session.parents())
    return next((each for each in line if each is not None and each is not session), None)


def _filtered(query: ListQuery, newest: Iterable[Session], log_of: LogOf) -> Iterator[Session]:
    """The sessions that pass the filters; cheap questions are asked first."""
    if query.tenant:
        newest = (each for each in newest if each.tenant == query.tenant)
    if query.several:
        newest = (each for each in newest if each.turns_begun > 1)
    if query.search:
        newest = (each for each in newest if query.search in each.name.casefold())
    if query.state:
        newest = (each for each in newest if each.state.value == query.state)
    if query.budget:
        newest = (each for each in newest if _bounded(each))
    if query.failed:
        newest = (each for each in newest if _failed(log_of(each)))
    yield from newest


def _bounded(session: Session) -> bool:
    trees = (each.ledger.tree for each in (session, *session.parents()))
    return any(each.budget.bounds() for each in (session.ledger.account, *trees))


def _failed(log: SessionLog | None) -> bool:
    return log is not None and log.failed > 0


def _sort_key(sort: str, log_of: LogOf) -> Callable[[Session], float]:
    match sort:
        case "recent":
            return lambda each: each.last_active_s
        case "cost":
            return lambda each: each.ledger.cost
        case "input":
            return lambda each: each.ledger.usage.input_tokens
        case "output":
            return lambda each: each.ledger.usage.output_tokens
        case "turns":
            return lambda each: each.ledger.turns
        case "hit":
            return _worst_hit
    return lambda each: _avoidable(log_of(each))


def _worst_hit(session: Session) -> float:
    """Larger for a lower hit ratio; those that asked nothing come last."""
    usage = session.ledger.usage
    return 1 - usage.cached_tokens / usage.input_tokens if usage.input_tokens else -1.0


def _avoidable(log: SessionLog | None) -> int:
    return 0 if log is None else log.avoidable_tokens


def _choice(request: HttpRequest, name: str, known: frozenset[str], default: str) -> str:
    chosen = request.query(name) or default
    if chosen not in known:
        raise errors.invalid_value(name, f"not one of {', '.join(sorted(filter(None, known)))}")
    return chosen
