"""Responses by their id over HTTP: shown, deleted, cancelled, their input listed.

What a tenant stored (``store: true``) or has running can be had; what is another tenant's, or
was never stored, is not found, and a client cannot tell which. What is only in the journal is
fetched first. Knows no socket.
"""

from http import HTTPStatus

import orjson

from sessions.durable.item_ids import listed_ids, read_items
from sessions.durable.response_table import StoredResponse
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.journal.errors import JournalError
from sessions.turns.following import to_be_asked
from sessions.turns.recollection import journal_error
from sessions.turns.wanted import Wanted
from sessions.wire.hub import Hub
from sessions.wire.kept_conversations import KeptConversations
from tools_api import errors
from tools_api.dialects.conversations import item_list
from tools_api.events import ResumeTurn, encode, parse_resume, response_of

MAX_LISTED = 100
LISTED = 20
"""Items of a page, if the client does not say how many."""
_TAKES_EVENTS = (
    "This key is read-only, and the response runs: its events go to one client. "
    "Ask without 'stream' until it has ended."
)


class StoredResponses:
    """Handlers of ``/v1/responses/{id}`` and what is below it."""

    def __init__(self, *, hub: Hub, store: Store) -> None:
        self._hub = hub
        self._store = store
        self._conversations = KeptConversations(hub.journal)

    def _tenant(self, call: Call) -> Tenant:
        return self._store.tenant(call.principal.tenant)

    async def show_stored(self, call: Call) -> HttpResponse:
        """``GET``: the response object, of one that runs as it stands, of one that failed as its
        last event had it."""
        shown = await self._shown(call)
        if shown is None:
            raise errors.no_such_response(call.argument)
        return json_response(shown)

    async def _shown(self, call: Call) -> bytes | None:
        await self._find(call)
        tenant, response_id = self._tenant(call), call.argument
        stored = tenant.responses.get(response_id)
        if stored is not None:
            return stored.wire
        running = self._hub.running(tenant.name, response_id)
        if running is not None:
            return None if running[1].plan.private else encode(running[1].snapshot())
        return await self._as_it_failed(tenant, response_id)

    async def _as_it_failed(self, tenant: Tenant, response_id: str) -> bytes | None:
        """The response of a turn that left nothing to continue, also where its server died."""
        journal, logs = self._hub.journal, self._store.logs
        known = logs.by_response(tenant.name, response_id)
        if journal is not None and to_be_asked(known):
            try:
                recalled = await journal.recall(tenant, Wanted(ended=response_id))
            except JournalError as error:
                raise journal_error(error) from error
            journal.remember(tenant, recalled)
            if known is not None and recalled.ended is None:
                tenant.delete_response(response_id)
        log = logs.by_response(tenant.name, response_id)
        if log is None or not log.ended:
            return None
        (last,) = log.events_from(log.end - 1)
        return response_of(last)

    async def _find(self, call: Call) -> None:
        """Have the response in memory, unless the journal says that it was deleted."""
        journal, tenant, response_id = self._hub.journal, self._tenant(call), call.argument
        if journal is None or self._hub.running(tenant.name, response_id) is not None:
            return
        try:
            if tenant.responses.get(response_id) is None:
                await journal.find(tenant, response_id)
            elif not await journal.stands(tenant.name, response_id):
                tenant.delete_response(response_id)
        except JournalError as error:
            raise journal_error(error) from error

    async def delete(self, call: Call) -> HttpResponse:
        """``DELETE``, from the journal as well: it cannot be continued any more; what continues it
        already goes on. Not where a conversation stands at it."""
        tenant, response_id, hidden = self._tenant(call), call.argument, False
        self._deny_running(call)
        await self._deny_head(call)
        if self._hub.journal is not None:
            try:
                hidden = await self._hub.journal.hide(tenant.name, response_id)
            except JournalError as error:
                raise journal_error(error) from error
        if not (tenant.delete_response(response_id) or hidden):
            raise errors.no_such_response(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, call: Call) -> HttpResponse:
        """``POST .../cancel``: the response as it ended, on whichever connection it ran; one in the
        background may have ended before."""
        terminal = self._hub.cancel(call.principal.tenant, call.argument)
        if terminal is not None:
            return json_response(response_of(await terminal))
        ended = await self._shown(call)
        if ended is None or not orjson.loads(ended)["background"]:
            raise errors.response_not_found(call.argument)
        return json_response(ended)

    def deny_taking(self, call: Call) -> None:
        """Whoever follows a turn that runs gets its events instead of others, and may end it by
        leaving: that is not for keys that only look. Raises ApiError."""
        tenant = call.principal.tenant
        if call.principal.read_only and self._hub.running(tenant, call.argument) is not None:
            raise http_error(HTTPStatus.FORBIDDEN, _TAKES_EVENTS)

    def _deny_running(self, call: Call) -> None:
        """Also one whose end waits for the journal: it would be kept after it was deleted."""
        if self._hub.running(call.principal.tenant, call.argument) is not None:
            raise errors.invalid_value("response_id", "the response runs; cancel it first")

    async def _deny_head(self, call: Call) -> None:
        await self._find(call)
        tenant, response_id = self._tenant(call), call.argument
        stored = tenant.responses.get(response_id)
        if stored is None:
            return
        conversation = await self._conversations.get(tenant, stored.session.name)
        if conversation is not None and conversation.head_id == response_id:
            why = "a conversation stands at it; take items out of that, or delete it"
            raise errors.invalid_value("response_id", why)

    async def find(self, call: Call) -> StoredResponse:
        """The response that the path names, in memory.

        Raises:
            ApiError: it is not there, or the journal cannot be asked.
        """
        await self._find(call)
        stored = self._tenant(call).responses.get(call.argument)
        if stored is None:
            raise errors.no_such_response(call.argument)
        return stored

    async def input_items(self, call: Call) -> HttpResponse:
        """``GET .../input_items``: all that the model read as items, the newest first or, with
        ``order=asc``, the oldest."""
        stored = await self.find(call)
        items = read_items(stored.entry)
        ids = listed_ids(items, stored.id)  # by which a later request may refer to them
        if choice_of(call, "order", ("desc", "asc")) == "desc":
            items.reverse()
            ids.reverse()
        after, limit = call.request.query("after"), limit_of(call)
        return json_response(item_list(items, ids=ids, after=after, limit=limit))


def asked_again(call: Call) -> ResumeTurn | None:
    """``GET`` with ``stream=true``: the events behind ``starting_after`` are wanted.

    Raises:
        ApiError: ``starting_after`` is not a number.
    """
    if choice_of(call, "stream", ("false", "true")) == "false":
        return None
    fields = {"response_id": call.argument}
    after = call.request.query("starting_after")
    if after is None:
        return parse_resume(fields, None)
    if len(after) > 18 or not after.isdecimal():
        raise errors.invalid_value("starting_after", "not a number of an event")
    return parse_resume(fields | {"after_sequence": int(after)}, None)


def limit_of(call: Call) -> int:
    """Items of a page. Raises ApiError."""
    text = call.request.query("limit")
    if text is None:
        return LISTED
    if len(text) > 4 or not text.isdecimal() or not 1 <= int(text) <= MAX_LISTED:
        raise errors.invalid_value("limit", f"not a number from 1 to {MAX_LISTED}")
    return int(text)


def choice_of(call: Call, name: str, known: tuple[str, ...]) -> str:
    """A query parameter that is one of ``known``; the first of them if it is absent. Raises
    ApiError."""
    chosen = call.request.query(name) or known[0]
    if chosen not in known:
        raise errors.invalid_value(name, f"not one of {', '.join(known)}")
    return chosen
