"""Content of each view of the page, as named parts of JSON, for one principal's eyes.

A view never changes anything. What many pages ask for alike is made once a second: parts are
kept by who may see them and what was asked. Names of sessions and tenants are data here; a
part's name is made of them as JSON, so that no two can meet.

Always true: nothing of a tenant is in the parts made for another that is no operator.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from sessions.durable.budgets import held_budget
from sessions.durable.session import Session
from sessions.pages.buckets import TurnBucket
from sessions.pages.dashboard import Dashboard
from sessions.pages.event_stream import Parts
from sessions.pages.history import LEVELS as IN_MEMORY
from sessions.pages.past import LEVELS, NOTHING, Curves, PastCurves
from sessions.pages.recorder import WHOLE
from sessions.pages.rows import budget_row, live_row, logged_row, miss_rows
from sessions.pages.said import turn_words
from sessions.pages.session_list import Found, ListQuery, find, grouped
from sessions.pages.tenant_rows import TenantRows
from sessions.pages.turn_log import SessionLog
from sessions.quotas import Quotas
from sessions.tenants import Principal

MAX_TURNS_OF_PAGE = 200
MAX_TENANT_ROWS = 200
KEPT_S = 0.9
"""Parts that are no older serve again."""
LIST_KEPT_S = 5.0
MANY_SESSIONS = 1000
"""To look at so few takes no time worth saving."""
MAX_KEPT = 256
MAX_WORDS = 4096
"""Turns whose words are kept."""
KEPT_CURVES_S = 60.0
"""Curves of a week or a month that are no older serve again."""
ALL = ListQuery()
_SPARK_BUCKETS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which view of the dashboard is wanted, and of which session."""

    view: str
    """``sessions``, ``session``, ``curves``, ``cache`` or ``tenants``."""
    query: ListQuery = ALL
    tenant: str = ""
    session: str = ""
    level: str = "hour"


class Views:
    """Makes the parts of the dashboard's views."""

    def __init__(
        self,
        *,
        dashboard: Dashboard,
        wall_clock: Callable[[], float],
        num_connections: Callable[[], int],
        past: PastCurves | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """
        Args:
            wall_clock: seconds since the epoch.
            num_connections: open ones of clients.
            past: what the journal has, if there is one.
            quotas: what tenants may use, where they have bounds.
        """
        self._dashboard = dashboard
        self._epoch_s = wall_clock() - dashboard.now
        """The clock's start, as seconds since the epoch."""
        self._num_connections = num_connections
        self._wall_clock = wall_clock
        self._past = past
        self._tenant_rows = TenantRows(dashboard, quotas)
        self._cluster = None if quotas is None else quotas.servers.cluster
        self._long_curves: dict[tuple[Principal, str], tuple[Curves, float, Parts]] = {}
        self._kept: dict[tuple[Principal, Wish], tuple[float, Parts]] = {}
        self._lists: dict[tuple[str | None, ListQuery], tuple[float, Found]] = {}
        self._sparks: dict[Principal, tuple[int, bytes]] = {}
        self._words: dict[tuple[str, str], dict[str, Any]] = {}

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
            "priced": board.store.priced({principal.tenant, *tenants}),
            "journal": self._past is not None,
            "cluster": self._cluster if principal.operator else None,
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
        width_s, _ = IN_MEMORY["hour"]
        number = int(now // width_s)
        found = self._sparks.get(principal)
        if found is not None and found[0] == number:
            return found[1]
        if len(self._sparks) >= MAX_KEPT:
            self._sparks.clear()
        minutes: dict[int, TurnBucket] = {}
        per_minute = int(60 / width_s)
        for at, bucket in self._in_memory(principal, "hour", tenants, now).turns.items():
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
                return self._tenants(now) if principal.operator else {}
        return self._sessions(principal, wish.query)

    def _sessions(self, principal: Principal, query: ListQuery) -> dict[str, bytes]:
        owner = None if principal.operator else principal.tenant
        found = self._found(owner, query)
        rows = {
            _name("s", each.tenant, each.name): orjson.dumps(self._row(each))
            for each in grouped(found.sessions)
        }
        counts = {"total": found.total, "matching": found.matching, "page": query.page}
        return {
            "list": orjson.dumps(counts),
            "pages": orjson.dumps(found.pages),
            "order": orjson.dumps(list(rows)),
            "tenant_budgets": self._tenant_budgets({each.tenant for each in found.sessions}),
        } | rows

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

    def _tenant_budgets(self, tenants: set[str]) -> bytes:
        """Each of those that have one, apart from their sessions' rows: it changes with every turn
        of the tenant."""
        store = self._dashboard.store
        accounts = {name: store.tenant(name).account for name in sorted(tenants)}
        held = {name: held_budget("tenant", name, each) for name, each in accounts.items()}
        return orjson.dumps({name: budget_row(each) for name, each in held.items() if each})

    def _row(self, session: Session) -> dict[str, Any]:
        view = self._dashboard.store.view(session)
        at = session.last_active_s + self._epoch_s
        return live_row(view, self._log_of(session), at)

    def _log_of(self, session: Session) -> SessionLog | None:
        return self._dashboard.log.of(session.tenant, session.name)

    def _session(self, principal: Principal, wish: Wish, now: float) -> dict[str, bytes]:
        tenant = wish.tenant or principal.tenant
        if tenant != principal.tenant and not principal.operator:
            return {"session": b"null"}
        live = self._dashboard.store.tenant(tenant).known_session(wish.session)
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
            parts["account"] = orjson.dumps(self._row(live))
            parts["tenant_budgets"] = self._tenant_budgets({tenant})
        turns = [] if log is None else log.turns
        first = max(len(turns) - MAX_TURNS_OF_PAGE, 0)
        for turn in itertools.islice(turns, first, None):
            row = logged_row(turn, turn.began_s + self._epoch_s)
            if told["items_visible"]:
                row["said"] = self._said(tenant, turn.report.response_id)
            parts[f"t{turn.number:012d}"] = orjson.dumps(row)
        return parts

    def _said(self, tenant: str, response_id: str) -> dict[str, Any] | None:
        """The words of a turn whose items are still there. They never change."""
        entry = self._dashboard.store.tenant(tenant).responses.entry(response_id)
        if entry is None:
            return None
        key = (tenant, response_id)
        if key not in self._words:
            if len(self._words) >= MAX_WORDS:
                self._words.clear()
            self._words[key] = turn_words(entry.input_items, entry.output_items)
        return self._words[key]

    def _curves(self, principal: Principal, name: str, now: float) -> dict[str, bytes]:
        if name in IN_MEMORY:
            tenants = self._dashboard.visible_tenants(principal)
            curves = self._in_memory(principal, name, tenants, now)
            return _curve_parts(curves, name, now, self._epoch_s, principal.operator)
        curves = self._kept_curves(principal, name)
        at_s = self._wall_clock() // KEPT_CURVES_S * KEPT_CURVES_S
        made = self._long_curves.get((principal, name))
        if made is None or made[0] is not curves or made[1] != at_s:
            if len(self._long_curves) >= MAX_KEPT:
                self._long_curves.clear()
            parts = _curve_parts(curves, name, at_s, 0.0, principal.operator)
            made = self._long_curves[principal, name] = (curves, at_s, parts)
        return dict(made[2])

    def _in_memory(self, principal: Principal, level: str, tenants: set[str], now: float) -> Curves:
        """The events on this server since it was started, and beside it and before elsewhere."""
        history, past = self._dashboard.history, self._kept_curves(principal, level)
        shift = round(self._epoch_s / IN_MEMORY[level][0])
        curves = Curves(
            turns=history.turns(level, tenants, now), machine=history.machine(level, now)
        )
        for at, turns in past.turns.items():
            curves.turns[at - shift] = turns.plus(curves.turns.get(at - shift))
        for at, machine in past.machine.items():
            curves.machine[at - shift] = machine.plus(curves.machine.get(at - shift))
        return curves

    def _kept_curves(self, principal: Principal, level: str) -> Curves:
        if self._past is None:
            return NOTHING
        return self._past.curves(level, WHOLE if principal.operator else principal.tenant)

    def _tenants(self, now: float) -> dict[str, bytes]:
        board, rows = self._dashboard, self._tenant_rows
        names = sorted(board.known_tenants | rows.named())
        blocks = board.pictures.tenant_blocks(now)
        shown = {_name("n", name): rows.row(name, blocks) for name in names[:MAX_TENANT_ROWS]}
        parts = {name: orjson.dumps(row) for name, row in shown.items()}
        return parts | {"num_tenants": orjson.dumps(len(names))}


def _curve_parts(
    curves: Curves, name: str, at_s: float, epoch_s: float, with_machine: bool
) -> dict[str, bytes]:
    """``at_s``: now, on the clock that began at ``epoch_s`` and by which buckets are counted."""
    level = LEVELS[name]
    newest = int(at_s // level.width_s)
    told = {"width_s": level.width_s, "buckets": level.buckets, "newest": newest}
    told |= {"epoch_s": round(epoch_s, 1)}
    parts = {"curve": orjson.dumps(told)}
    shown = range(newest - level.buckets + 1, newest + 1)
    parts |= {f"b{at}": orjson.dumps(b.numbers()) for at, b in curves.turns.items() if at in shown}
    for at, machine in curves.machine.items() if with_machine else ():
        if at in shown:
            # A server takes its sample at some time of each second.
            passed_s = level.width_s if at < newest else at_s % level.width_s + 1
            parts[f"m{at}"] = orjson.dumps(machine.numbers(passed_s))
    return parts


def _spark_point(bucket: TurnBucket | None) -> list[Any] | None:
    if bucket is None:
        return None
    first = bucket.first_token
    return [bucket.input, bucket.cached, bucket.cost, first.percentile(0.5), first.percentile(0.95)]


def _name(kind: str, *words: str) -> str:
    return kind + orjson.dumps(words).decode()
