"""One list of sessions, those that are live and those that the journal alone has; and one session
with its tree and its bounds.

``/sessions.json?list=1`` and ``/sessions.json?session=NAME``. What is sorted and searched is the
journal's: settled turns. What is live is told over it: state, what budgets hold. A session whose
first turn has not ended is no row of the journal yet: it stands before the others where the latest
come first, else behind them.

Always true: a tenant sees its own sessions; no session is on a page twice.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from sessions.durable.budgets import held_budget, held_budgets
from sessions.durable.ledger import dollars
from sessions.durable.session import Session, SessionState
from sessions.durable.store import Store
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.journal.kept_budgets import budgets_kept
from sessions.journal.listing import ListAsked, ListedSession, ListPlace
from sessions.journal.records import SessionRecord, SpendTotal, options_kept
from sessions.pages.archive import Beside, unread
from sessions.pages.list_query import PAGE_ROWS, SessionsQuery, read_sessions_query
from sessions.pages.live_listing import LogOf, bounded, live_places, live_tree
from sessions.pages.rows import budget_row, tokens
from sessions.pages.turn_log import SessionLog
from sessions.pages.usage_cursor import CursorSeal
from sessions.tenants import Principal
from tools_api import errors

log = logging.getLogger(__name__)

MAX_TREE = 500
"""Sessions of a tree that are shown."""
MAX_NEW = 50
"""Sessions on a page that the journal does not have yet."""
_DETAIL = frozenset({"session", "tenant"})
Key = tuple[str, str]
"""Tenant and name of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """The live sessions that a query is about, as they were when it came."""

    busy: frozenset[Key]
    """Sessions that run a turn or wait for tools."""
    wanted: tuple[Key, ...] | None
    """Sessions of the state that is asked for; None: any, or idle."""
    new: tuple[Key, ...]
    """Sessions that have settled no turn, the latest first."""


class SessionsListing:
    """Handlers of two forms of ``/sessions.json``."""

    def __init__(
        self,
        *,
        store: Store,
        journal: Journal | None,
        beside: Beside,
        log_of: LogOf,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """``log_of``: a session's turns as this server remembers them."""
        self._store = store
        self._log_of = log_of
        self._secret = secrets.token_bytes(16)
        self._journal = journal
        self._beside = beside
        self._clock = clock
        self._wall_clock = wall_clock

    async def show_list(self, call: Call) -> HttpResponse:
        """A page of the list.

        Raises:
            ApiError: a parameter makes no sense; the journal cannot be read.
        """
        query = read_sessions_query(call.request, call.principal)
        if self._journal is None:
            return json_response(self._live_page(query))
        live = self._look(query)
        work = partial(listed_page, self._journal, query, live, servers=call.principal.operator)
        return json_response(self._with_live(await self._read(call.principal, work)))

    async def show_one(self, call: Call) -> HttpResponse:
        """One session, its tree and its bounds.

        Raises:
            ApiError: there is none of that name; or as ``show_list``.
        """
        for name in call.request.parameters():
            if name not in _DETAIL:
                raise errors.invalid_value(name, f"unknown; known: {', '.join(sorted(_DETAIL))}")
        principal, name = call.principal, call.request.query("session") or ""
        asked = call.request.query("tenant") or principal.tenant
        tenant = asked if principal.operator else principal.tenant
        known = self._store.tenant(tenant).known_session(name)
        if self._journal is None:
            body = self._live_detail(known)
        else:
            work = partial(session_detail, self._journal, tenant, name)
            body = await self._read(principal, work)
            known = self._store.tenant(tenant).known_session(name)
        if not body["rows"] and known is not None:
            body["rows"] = [{"depth": 0} | self._new_row(known)]
        if not body["rows"]:
            raise http_error(HTTPStatus.NOT_FOUND, "There is no session of that name.")
        body = self._with_live(body)
        top = body["rows"][0]
        bounds = top["budgets"]
        if known is None:
            of_tenant = held_budget("tenant", tenant, self._store.tenant(tenant).account)
            bounds = [*bounds, *([] if of_tenant is None else [budget_row(of_tenant)])]
        rows = [_tree_row(row, top["tree"]["cost_nano"]) for row in body["rows"]]
        shown = {"session": top, "parents": body["parents"], "bounds": bounds}
        return json_response(shown | {"tree": {"rows": rows, "more": body["more"], **top["tree"]}})

    async def _read(
        self, principal: Principal, work: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        try:
            return await self._beside(principal.tenant, work)
        except JournalError as error:
            raise unread(error, "the list of sessions") from None

    # Without a journal

    def _live_page(self, query: SessionsQuery) -> dict[str, Any]:
        seal, sessions = CursorSeal(self._secret), self._store.any_sessions(query.asked.tenant)
        places = live_places(query, sessions, self._used_ms, self._log_of)
        behind = places
        if query.cursor:
            after = ListPlace(*seal.opened(query.question, query.cursor))
            behind = [each for each in places if each.sorted_by > after.sorted_by]
        shown = behind[:PAGE_ROWS]
        found = [self._store.tenant(each.tenant).known_session(each.name) for each in shown]
        more = len(behind) > len(shown)
        return {
            "rows": [self._new_row(each) for each in found if each is not None],
            "matching": len(places),
            "next_cursor": seal.sealed(query.question, list(shown[-1])) if more else None,
        }

    def _live_detail(self, known: Session | None) -> dict[str, Any]:
        if known is None:
            return {"rows": [], "parents": [], "more": False}
        found = live_tree(known, self._store.any_sessions(known.tenant), MAX_TREE + 1)
        return {
            "rows": [{"depth": depth} | self._new_row(each) for depth, each in found[:MAX_TREE]],
            "parents": [each.name for each in known.parents()],
            "more": len(found) > MAX_TREE,
        }

    def _used_ms(self, session: Session) -> int:
        age_s = self._clock() - session.last_active_s
        return round((self._wall_clock() - age_s) * 1000)

    # What is live

    def _look(self, query: SessionsQuery) -> _Live:
        sessions = list(self._store.any_sessions(query.asked.tenant))
        busy = {_key(each): each for each in sessions if each.state is not SessionState.IDLE}
        new = [each for each in sessions if not each.ledger.turns and _about(query, each)]
        new.sort(key=lambda each: (-each.last_active_s, each.tenant, each.name))
        wanted = None
        if query.state not in (None, SessionState.IDLE):
            wanted = tuple(key for key, each in busy.items() if each.state is query.state)
        return _Live(busy=frozenset(busy), wanted=wanted, new=tuple(map(_key, new[:MAX_NEW])))

    def _with_live(self, body: dict[str, Any]) -> dict[str, Any]:
        """The rows, with what is live told over them; those that are new made."""
        rows = []
        for row in body["rows"]:
            known = self._store.tenant(row["tenant"]).known_session(row["session"])
            if known is not None:
                new = "turns" not in row
                rows.append(row | (self._new_row(known) if new else self._over(known)))
            elif "turns" in row:
                rows.append(row)
        return body | {"rows": rows}

    def _over(self, session: Session) -> dict[str, Any]:
        """When it was last active its row says, by which it was sorted."""
        account = self._store.tenant(session.tenant).account
        return {
            "live": True,
            "state": session.state.value,
            "budgets": list(map(budget_row, held_budgets(session, account))),
        }

    def _new_row(self, session: Session) -> dict[str, Any]:
        ledger = session.ledger
        log = self._log_of(session.tenant, session.name) or SessionLog()
        record = SessionRecord(
            tenant=session.tenant,
            name=session.name,
            owner="",
            epoch=0,
            head_id=None,
            head_seq=0,
            turns_begun=session.turns_begun,
            open_calls=False,
            updated_s=0.0,
            account=SpendTotal(
                turns=ledger.turns, usage=ledger.usage, cost=ledger.cost, saved=ledger.saved
            ),
            failed=log.failed,
            computed_again=log.avoidable_tokens,
        )
        tree = SpendTotal(turns=ledger.turns, cost=ledger.tree.spent.cost)
        own = {
            "labels": dict(session.labels),
            "parent": None if session.parent is None else session.parent.name,
        }
        return _row(record, tree) | own | self._over(session)


def _key(session: Session) -> Key:
    return session.tenant, session.name


def _about(query: SessionsQuery, session: Session) -> bool:
    """Whether a session that has settled no turn is asked for."""
    asked = query.asked
    if asked.failed or asked.several or asked.to_ms is not None:
        return False
    if query.state not in (None, session.state):
        return False
    if asked.bounded:
        return bounded(session) and asked.found_in(session.name, session.labels)
    return asked.found_in(session.name, session.labels)


# Of the journal


def listed_page(
    journal: Journal, query: SessionsQuery, live: _Live, *, servers: bool = False
) -> dict[str, Any]:
    """A page of rows: of sessions that the journal does not have yet name and tenant alone.

    Args:
        servers: say of each session which server of a cluster has it.

    Raises:
        ApiError: the cursor is none of this query's.
    """
    seal, asked = CursorSeal(journal.cursor_secret()), query.asked
    after = None
    if query.cursor:
        after = ListPlace(*seal.opened(query.question, query.cursor))
    found, matching = _found(journal, query, live, after)
    shown, more = found[:PAGE_ROWS], len(found) > PAGE_ROWS
    there = {each.place[1:] for each in journal.listed_among(ListAsked(), live.new)}
    new: list[dict[str, Any]] = []
    if (after is None) if asked.order == "recent" else not more:
        new = [{"tenant": t, "session": n} for t, n in live.new if (t, n) not in there]
    rows = [journal_row(journal, each) for each in shown]
    if servers and journal.ownership is not None and (at := journal.ownership.addresses()):
        for row, each in zip(rows, shown, strict=True):
            row["server"] = at.get(each.record.owner)
    return {
        "rows": [*new, *rows] if asked.order == "recent" else [*rows, *new],
        "matching": None if matching is None else matching + len(set(live.new) - there),
        "next_cursor": seal.sealed(query.question, list(shown[-1].place)) if more else None,
    }


def _found(
    journal: Journal, query: SessionsQuery, live: _Live, after: ListPlace | None
) -> tuple[list[ListedSession], int | None]:
    """The rows of a page and one more, if there is one; and how many there are in all."""
    asked = query.asked
    if live.wanted is not None:
        among = journal.listed_among(asked, live.wanted)
        behind = [each for each in among if after is None or each.place.sorted_by > after.sorted_by]
        return behind[: PAGE_ROWS + 1], len(among)
    if query.state is None:
        return journal.listed(asked, after, PAGE_ROWS + 1)
    found = list[ListedSession]()
    while len(found) <= PAGE_ROWS:
        some, _ = journal.listed(asked, after, 2 * PAGE_ROWS)
        found += [each for each in some if each.place[1:] not in live.busy]
        if len(some) < 2 * PAGE_ROWS:
            break
        after = some[-1].place
    return found[: PAGE_ROWS + 1], None


def journal_row(journal: Journal, listed: ListedSession) -> dict[str, Any]:
    """A session as the journal has it."""
    record = listed.record
    return _row(record, listed.tree) | {
        "budgets": list(map(budget_row, budgets_kept(journal, record)))
    }


def session_detail(journal: Journal, tenant: str, name: str) -> dict[str, Any]:
    """A session's rows and those below it, and the names above it."""
    found = journal.session_tree(tenant, name, MAX_TREE + 1)
    rows = [{"depth": depth} | journal_row(journal, each) for depth, each in found[:MAX_TREE]]
    parents = list[str]()
    above = rows[0]["parent"] if rows else None
    while above is not None and above not in parents:
        parents.append(above)
        record = journal.session(tenant, above)
        above = None if record is None else options_kept(record.options).parent
    return {"rows": rows, "parents": parents, "more": len(found) > MAX_TREE}


def _row(record: SessionRecord, tree: SpendTotal) -> dict[str, Any]:
    account, kept = record.account, options_kept(record.options)
    return {
        "session": record.name,
        "tenant": record.tenant,
        "live": False,
        "state": SessionState.IDLE.value,
        "turns": account.turns,
        **tokens(account.usage),
        "computed_again": record.computed_again,
        "failed": record.failed,
        "cost": dollars(account.cost),
        "cost_nano": account.cost,
        "saved": dollars(account.saved),
        "labels": dict(kept.labels),
        "parent": kept.parent,
        "active_at": record.updated_s or None,
        "budgets": [],
        "tree": {
            "turns": tree.turns,
            "cost": dollars(tree.cost),
            "cost_nano": tree.cost,
        },
    }


def _tree_row(row: dict[str, Any], whole_nano: int) -> dict[str, Any]:
    """A session of a tree; its share is of the cost of the whole."""
    names = ("depth", "session", "parent", "live", "state", "turns", "cost", "cost_nano", "failed")
    share = row["cost_nano"] / whole_nano if whole_nano else 0.0
    with_below = row["tree"]["cost_nano"]
    return {
        **{name: row[name] for name in names},
        "share": share,
        "tree_cost": dollars(with_below),
        "tree_cost_nano": with_below,
    }
