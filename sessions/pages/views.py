"""What each view of the page shows, as named parts of JSON, for one principal's eyes.

A view never changes anything. What many pages ask for alike is made once a second: parts are
kept by who may see them and what was asked. Names of sessions and tenants are data here; a
part's name is made of them as JSON, so that no two can meet.

Always true: nothing of a tenant is in the parts made for another that is no operator.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from sessions.durable.session import Session, SessionState
from sessions.pages.dashboard import Dashboard
from sessions.pages.event_stream import Parts
from sessions.pages.history import LEVELS, TurnBucket
from sessions.pages.rows import live_row, logged_row, miss_rows
from sessions.pages.session_list import Found, ListQuery, find, grouped
from sessions.pages.turn_log import SessionLog
from sessions.tenants import Principal

MAX_TURNS_OF_PAGE = 200
MAX_TENANT_ROWS = 200
KEPT_S = 0.9
"""Parts that are no older serve again."""
LIST_KEPT_S = 5.0
MANY_SESSIONS = 1000
"""To look at so few takes no time worth saving."""
MAX_KEPT = 256
ALL = ListQuery()
_SPARK_BUCKETS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which view, and of what."""

    view: str
    """``sessions``, ``session``, ``curves``, ``cache`` or ``tenants``."""
    query: ListQuery = ALL
    tenant: str = ""
    session: str = ""
    level: str = "hour"


class Views:
    """Makes parts."""

    def __init__(
        self,
        *,
        dashboard: Dashboard,
        wall_clock: Callable[[], float],
        num_connections: Callable[[], int],
        has_journal: bool = False,
    ) -> None:
        """
        Args:
            wall_clock: seconds since the epoch.
            num_connections: open ones of clients.
        """
        self._dashboard = dashboard
        self._epoch_s = wall_clock() - dashboard.now
        """The clock's start, as seconds since the epoch."""
        self._num_connections = num_connections
        self._has_journal = has_journal
        self._kept: dict[tuple[Principal, Wish], tuple[float, Parts]] = {}
        self._lists: dict[tuple[str | None, ListQuery], tuple[float, Found]] = {}
        self._sparks: dict[Principal, tuple[int, bytes]] = {}

    def parts(self, principal: Principal, wish: Wish) -> Parts:
        """The view as it is, at most ``KEPT_S`` old."""
        now = self._dashboard.now
        key = (principal, wish)
        found = self._kept.get(key)
        if found is not None and 0 <= now - found[0] < KEPT_S:
            return found[1]
        made = self._frame(principal, now) | self._view(principal, wish, now)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = (now, made)
        return made

    # Around every view

    def _frame(self, principal: Principal, now: float) -> dict[str, bytes]:
        board = self._dashboard
        tenants = board.visible_tenants(principal)
        totals = board.totals(tenants)
        server = board.server_facts(principal) | {
            "started_at": round(board.started_s + self._epoch_s, 1),
            "tenant": principal.tenant,
            "priced": board.store.priced,
            "journal": self._has_journal,
        }
        frame = {
            "server": orjson.dumps(server),
            "totals": orjson.dumps(totals.numbers() | {"out_of_budget": totals.out_of_budget}),
            "misses": orjson.dumps(miss_rows(totals.missed)),
            "spark": self._spark(principal, tenants, now),
        }
        if principal.operator:
            engine = board.engine_state()
            engine["connections"] = self._num_connections()
            engine["restarts"] = board.restarts
            frame["engine"] = orjson.dumps(engine)
        return frame

    def _spark(self, principal: Principal, tenants: set[str], now: float) -> bytes:
        """The last hour in minutes, made anew when a bucket of the curves ends."""
        width_s = LEVELS["hour"][0]
        number = int(now // width_s)
        found = self._sparks.get(principal)
        if found is not None and found[0] == number:
            return found[1]
        if len(self._sparks) >= MAX_KEPT:
            self._sparks.clear()
        minutes: dict[int, TurnBucket] = {}
        per_minute = int(60 / width_s)
        for at, bucket in self._dashboard.history.turns("hour", tenants, now).items():
            minutes.setdefault(at // per_minute, TurnBucket()).merge(bucket)
        newest = number // per_minute
        shown = range(newest - _SPARK_BUCKETS + 1, newest + 1)
        spark = orjson.dumps([_spark_point(minutes.get(at)) for at in shown])
        self._sparks[principal] = (number, spark)
        return spark

    # The views

    def _view(self, principal: Principal, wish: Wish, now: float) -> dict[str, bytes]:
        match wish.view:
            case "session":
                return self._session(principal, wish, now)
            case "curves":
                return self._curves(principal, wish.level, now)
            case "cache":
                return {"cache": self._dashboard.pictures.part(principal, now)}
            case "tenants":
                return self._tenants() if principal.operator else {}
        return self._sessions(principal, wish.query)

    def _sessions(self, principal: Principal, query: ListQuery) -> dict[str, bytes]:
        owner = None if principal.operator else principal.tenant
        found = self._found(owner, query)
        shown = grouped(found.sessions)
        rows = {_name("s", each.tenant, each.name): self._row(each) for each in shown}
        order = list(rows)
        counts = {"total": found.total, "matching": found.matching, "page": query.page}
        return {"list": orjson.dumps(counts), "order": orjson.dumps(order)} | rows

    def _found(self, owner: str | None, query: ListQuery) -> Found:
        """A list that takes a look at many sessions is made anew every ``LIST_KEPT_S``; what its
        rows say is always as it is."""
        store, now = self._dashboard.store, self._dashboard.now
        kept = self._lists.get((owner, query))
        if kept is not None and 0 <= now - kept[0] < LIST_KEPT_S:
            return kept[1]
        total, newest = store.live_sessions(owner)
        found = find(query, total, newest, store.any_sessions(owner), self._log_of)
        if not query.plain and total > MANY_SESSIONS:
            if len(self._lists) >= MAX_KEPT:
                self._lists.clear()
            self._lists[owner, query] = (now, found)
        return found

    def _row(self, session: Session) -> bytes:
        view = self._dashboard.store.view(session)
        at = session.last_active_s + self._epoch_s
        return orjson.dumps(live_row(view, self._log_of(session), at))

    def _log_of(self, session: Session) -> SessionLog | None:
        return self._dashboard.log.of(session.tenant, session.name)

    def _session(self, principal: Principal, wish: Wish, now: float) -> dict[str, bytes]:
        tenant = wish.tenant or principal.tenant
        if tenant != principal.tenant and not principal.operator:
            return {"session": b"null"}
        live = self._dashboard.store.known_session(tenant, wish.session)
        log = self._dashboard.log.of(tenant, wish.session)
        if live is None and log is None:
            return {"session": b"null"}
        told: dict[str, Any] = {
            "name": wish.session,
            "tenant": tenant,
            "ended": 0 if log is None else log.ended,
            "items_visible": tenant == principal.tenant,
            "misses": [] if log is None else miss_rows(log.missed),
        }
        parts = {"session": orjson.dumps(told)}
        if live is not None:
            parts["account"] = self._row(live)
        turns = [] if log is None else log.turns
        first = max(len(turns) - MAX_TURNS_OF_PAGE, 0)
        for turn in itertools.islice(turns, first, None):
            row = logged_row(turn, turn.began_s + self._epoch_s)
            parts[f"t{turn.number:012d}"] = orjson.dumps(row)
        return parts

    def _curves(self, principal: Principal, level: str, now: float) -> dict[str, bytes]:
        board = self._dashboard
        width_s, most = LEVELS[level]
        told = {"width_s": width_s, "buckets": most, "newest": int(now // width_s)}
        told |= {"epoch_s": round(self._epoch_s, 1)}
        parts = {"curve": orjson.dumps(told)}
        turns = board.history.turns(level, board.visible_tenants(principal), now)
        parts |= {f"b{at}": orjson.dumps(bucket.numbers()) for at, bucket in turns.items()}
        if principal.operator:
            machine = board.history.machine(level, now)
            parts |= {f"m{at}": orjson.dumps(bucket.numbers()) for at, bucket in machine.items()}
        return parts

    def _tenants(self) -> dict[str, bytes]:
        board = self._dashboard
        names = sorted(board.known_tenants)
        rows = {_name("n", name): self._tenant_row(name) for name in names[:MAX_TENANT_ROWS]}
        return rows | {"num_tenants": orjson.dumps(len(names))}

    def _tenant_row(self, name: str) -> bytes:
        totals = self._dashboard.totals({name})
        count, sessions = self._dashboard.store.live_sessions(name)
        return orjson.dumps(
            totals.numbers()
            | {
                "tenant": name,
                "sessions": count,
                "running": _running(itertools.islice(sessions, 1000)),
                "out_of_budget": totals.out_of_budget,
                "errors": dict(totals.errors.most_common(20)),
                "misses": miss_rows(totals.missed),
            }
        )


def _running(sessions: Iterable[Session]) -> int:
    """How many of them run a turn; those that do are among the most recently active."""
    return sum(each.state is SessionState.RUNNING for each in sessions)


def _spark_point(bucket: TurnBucket | None) -> list[Any] | None:
    if bucket is None:
        return None
    first = bucket.first_token
    return [bucket.input, bucket.cached, bucket.cost, first.percentile(0.5), first.percentile(0.95)]


def _name(kind: str, *words: str) -> str:
    return kind + orjson.dumps(words).decode()
