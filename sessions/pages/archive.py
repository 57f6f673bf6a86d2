"""Turns of the journal, for the page: also what memory has forgotten.

Read beside the event loop, page by page, only when somebody asks. A tenant is shown its own; of
turns their accounts are told here, their items at ``/dashboard/items/{id}``. However much there is,
no more is read than can be shown, and the answer's ``more`` says that older ones were left out.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from sessions.durable.ledger import TurnUsage, dollars
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.journal.encoding import decode_header, decode_links, decode_turn
from sessions.journal.errors import JournalError, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import StoredTurn
from sessions.pages.rows import tokens
from sessions.pages.said import turn_words
from tools_api import errors
from tools_api.errors import ApiError

log = logging.getLogger(__name__)

MAX_TURNS_SHOWN = 200

Beside = Callable[[str, Callable[[], dict[str, Any]]], Awaitable[dict[str, Any]]]
"""Makes a call on the journal beside the event loop, when it is the tenant's turn."""


def unread(error: Exception, what: str) -> ApiError:
    """What whoever asked for ``what`` is told where the journal could not be read. Of a journal out
    of reach the log says when that begins and ends, and no more with each look."""
    if isinstance(error, JournalUnavailable):
        log.debug("%s cannot be read reason=%s", what, error)
    else:
        log.error("%s cannot be read", what, exc_info=error)
    return errors.overloaded("the journal cannot be read just now", retry_after_s=1.0)


class Archive:
    """Handler of ``/dashboard/journal``."""

    def __init__(self, journal: Journal | None, beside: Beside) -> None:
        self._journal = journal
        self._beside = beside

    async def show(self, call: Call) -> HttpResponse:
        """``GET``: with ``name`` a session's turns, with ``items`` what was said in a turn of the
        own tenant.

        Raises:
            ApiError: there is no journal, it cannot be read, or a parameter makes no sense.
        """
        journal = self._journal
        if journal is None:
            raise http_error(HTTPStatus.NOT_FOUND, "This server keeps no journal.")
        principal, name = call.principal, call.request.query("name")
        response_id = call.request.query("items")
        if response_id is not None:
            work = partial(turn_items, journal, principal.tenant, response_id)
        elif name is not None:
            asked = call.request.query("tenant") or principal.tenant
            tenant = asked if principal.operator else principal.tenant
            own = tenant == principal.tenant
            work = partial(session_turns, journal, tenant, name, own=own)
        else:
            raise errors.missing_parameter("name")
        try:
            return json_response(await self._beside(principal.tenant, work))
        except (JournalError, ApiError) as error:
            raise unread(error, "a session's journal") from None


def session_turns(journal: Journal, tenant: str, name: str, *, own: bool) -> dict[str, Any]:
    """The newest turns of a session, the latest first; ``own``: with what was said in them."""
    total, found = journal.last_turns(tenant, name, MAX_TURNS_SHOWN)
    rows = [_turn(row, own=own) for row in found]
    return {"total": total, "page": 0, "rows": rows, "more": total > len(found)}


def turn_items(journal: Journal, tenant: str, response_id: str) -> dict[str, Any]:
    """The items of a turn, as ``/dashboard/items/{id}`` has them; ``kept`` False: nothing is."""
    row = journal.turn(tenant, response_id)
    links = () if row is None else decode_links(row)
    if not links:
        return {"kept": False}
    link = links[-1]
    header = decode_header(journal.header(link.header))
    return {
        "kept": True,
        "response": response_id,
        "instructions": header.instructions,
        "tools": [tool.name for tool in header.tools],
        "input": [item.to_wire() for item in link.input_items],
        "output": [item.to_wire() for item in link.output_items],
    }


def _turn(row: StoredTurn, *, own: bool) -> dict[str, Any]:
    body = decode_turn(row)
    words = None
    if own and body.links and not row.deleted:
        own_link = body.links[-1]
        words = turn_words(own_link.input_items, own_link.output_items)
    return {
        "turn": body.number,
        "response": row.response_id,
        "parent": row.parent_id,
        "status": body.status,
        "reason": body.reason,
        "reasoning_tokens": body.usage.reasoning_tokens,
        "active_at": row.created_s,
        "said": words,
        **_spent(body.usage, body.cost, body.saved),
    }


def _spent(usage: TurnUsage, cost: int, saved: int) -> dict[str, Any]:
    return tokens(usage) | {"cost": dollars(cost), "saved": dollars(saved)}
