"""The list of sessions of a server that keeps no journal: those that are live.

The same filters, orders and places as the journal's (``sessions.journal.listing``), worked out by a
look at each session. Failures and tokens computed again are those that this server remembers.

Always true: what is listed is a session of the tenants that may be seen, once.
"""

from collections.abc import Callable, Iterable

from sessions.durable.session import Session
from sessions.journal.listing import ListAsked, ListPlace, missing_part
from sessions.pages.list_query import SessionsQuery
from sessions.pages.turn_log import SessionLog

LogOf = Callable[[str, str], SessionLog | None]
_NOTHING = SessionLog()


def bounded(session: Session) -> bool:
    """Whether it has a budget, of its own or of a tree that it is in."""
    trees = (each.ledger.tree for each in (session, *session.parents()))
    return any(each.budget.bounds() for each in (session.ledger.account, *trees))


def live_places(
    query: SessionsQuery,
    sessions: Iterable[Session],
    used_ms: Callable[[Session], int],
    log_of: LogOf,
) -> list[ListPlace]:
    """Places of those that the query is about, in its order.

    Args:
        used_ms: milliseconds since the epoch of a session's last use.
    """
    found = list[ListPlace]()
    for each in sessions:
        log, at_ms = log_of(each.tenant, each.name) or _NOTHING, used_ms(each)
        if query.state in (None, each.state) and _asked_for(query.asked, each, log, at_ms):
            key = _key(query.asked, each, log, at_ms)
            found.append(ListPlace(key, each.tenant, each.name))
    return sorted(found, key=lambda place: place.sorted_by)


def _asked_for(asked: ListAsked, session: Session, log: SessionLog, at_ms: int) -> bool:
    late = asked.to_ms is not None and at_ms >= asked.to_ms
    if at_ms < (asked.from_ms or 0) or late or (asked.failed and not log.failed):
        return False
    if (asked.several and session.turns_begun < 2) or (asked.bounded and not bounded(session)):
        return False
    return asked.found_in(session.name, session.labels)


def _key(asked: ListAsked, session: Session, log: SessionLog, at_ms: int) -> int:
    usage = session.ledger.usage
    return {
        "recent": at_ms,
        "cost": session.ledger.cost,
        "again": log.avoidable_tokens,
        "hit": missing_part(usage.cached_tokens, usage.input_tokens),
    }[asked.order]


def live_tree(top: Session, sessions: Iterable[Session], most: int) -> list[tuple[int, Session]]:
    """A session and those below it, so many at most, and how deep each stands."""
    below: dict[Session, list[Session]] = {}
    for each in sorted(sessions, key=lambda each: (each.last_active_s, each.name)):
        if each.parent is not None:
            below.setdefault(each.parent, []).append(each)
    found, waiting = list[tuple[int, Session]](), [(0, top)]
    while waiting and len(found) < most:
        depth, each = waiting.pop()
        found.append((depth, each))
        waiting += [(depth + 1, child) for child in below.get(each, ())]
    return found
