"""Responses by their id over HTTP: shown, deleted, cancelled, their input listed.

What a tenant stored (``store: true``) or has running can be had; what is another tenant's, or
was never stored, is not found, and a client cannot tell which. What is only in the journal is
fetched first. Knows no socket.
"""

from typing import Any

from sessions.durable.item_ids import Place, listed_id, read_items
from sessions.durable.response_table import StoredResponse
from sessions.durable.store import Store
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, json_response
from sessions.journal.errors import JournalError
from sessions.turns.recollection import journal_error
from sessions.wire.hub import Hub
from tools_api import errors
from tools_api.events import ResumeTurn, encode, parse_resume, response_of

MAX_LISTED = 100
LISTED = 20
"""Items of a page, if the client does not say how many."""


class StoredResponses:
    """Handlers of ``/v1/responses/{id}`` and what is below it."""

    def __init__(self, *, hub: Hub, store: Store) -> None:
        self._hub = hub
        self._store = store

    async def show_stored(self, call: Call) -> HttpResponse:
        """``GET``: the response object, of one that runs as it stands."""
        await self._find(call)
        tenant, response_id = call.principal.tenant, call.argument
        stored = self._store.tenant_responses(tenant).get(response_id)
        if stored is not None:
            return json_response(stored.wire)
        running = self._hub.running(tenant, response_id)
        if running is None or running[1].plan.private:
            raise errors.no_such_response(response_id)
        return json_response(encode(running[1].snapshot()))

    async def _find(self, call: Call) -> None:
        """Have the response in memory, unless the journal says that it was deleted."""
        journal, tenant, response_id = self._hub.journal, call.principal.tenant, call.argument
        if journal is None or self._hub.running(tenant, response_id) is not None:
            return
        try:
            if self._store.tenant_responses(tenant).get(response_id) is None:
                await journal.find(tenant, response_id)
            elif not await journal.stands(tenant, response_id):
                self._store.delete_response(tenant, response_id)
        except JournalError as error:
            raise journal_error(error) from error

    async def delete(self, call: Call) -> HttpResponse:
        """``DELETE``, from the journal as well: it cannot be continued any more; what continues it
        already goes on."""
        tenant, response_id, hidden = call.principal.tenant, call.argument, False
        if self._hub.journal is not None:
            self._deny_running(call)
            try:
                hidden = await self._hub.journal.hide(tenant, response_id)
            except JournalError as error:
                raise journal_error(error) from error
        if not (self._store.delete_response(tenant, response_id) or hidden):
            self._deny_running(call)
            raise errors.no_such_response(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, call: Call) -> HttpResponse:
        """``POST .../cancel``: the response as it ended, on whichever connection it ran."""
        terminal = self._hub.cancel(call.principal.tenant, call.argument)
        if terminal is None:
            raise errors.response_not_found(call.argument)
        return json_response(response_of(await terminal))

    def _deny_running(self, call: Call) -> None:
        """Also one whose end waits for the journal: it would be kept after it was deleted."""
        if self._hub.running(call.principal.tenant, call.argument) is not None:
            raise errors.invalid_value("response_id", "the response runs; cancel it first")

    async def find(self, call: Call) -> StoredResponse:
        """The response that the path names, in memory.

        Raises:
            ApiError: it is not there, or the journal cannot be asked.
        """
        await self._find(call)
        stored = self._store.tenant_responses(call.principal.tenant).get(call.argument)
        if stored is None:
            raise errors.no_such_response(call.argument)
        return stored

    async def input_items(self, call: Call) -> HttpResponse:
        """``GET .../input_items``: all that the model read as items, the newest first or, with
        ``order=asc``, the oldest."""
        items = _input_items(await self.find(call))
        if _choice(call, "order", ("desc", "asc")) == "desc":
            items.reverse()
        return json_response(_page(items, after=call.request.query("after"), limit=_limit(call)))


def _input_items(stored: StoredResponse) -> list[dict[str, Any]]:
    """With an id each, by which a later request may refer to it."""
    return [
        item.to_wire() | {"id": listed_id(item, Place(stored.id, number))}
        for number, item in enumerate(read_items(stored.entry))
    ]


def _page(items: list[dict[str, Any]], *, after: str | None, limit: int) -> dict[str, Any]:
    """A page of a list, as clients that turn pages read it."""
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise errors.invalid_value("after", f"no item has the id {errors.quoted(after)}")
    first = 0 if after is None else ids.index(after) + 1
    page = items[first : first + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + limit < len(items),
    }


def asked_again(call: Call) -> ResumeTurn | None:
    """``GET`` with ``stream=true``: the events behind ``starting_after`` are wanted.

    Raises:
        ApiError: ``starting_after`` is not a number.
    """
    if _choice(call, "stream", ("false", "true")) == "false":
        return None
    fields = {"response_id": call.argument}
    after = call.request.query("starting_after")
    if after is None:
        return parse_resume(fields, None)
    if len(after) > 18 or not after.isdecimal():
        raise errors.invalid_value("starting_after", "not a number of an event")
    return parse_resume(fields | {"after_sequence": int(after)}, None)


def _limit(call: Call) -> int:
    text = call.request.query("limit")
    if text is None:
        return LISTED
    if len(text) > 4 or not text.isdecimal() or not 1 <= int(text) <= MAX_LISTED:
        raise errors.invalid_value("limit", f"not a number from 1 to {MAX_LISTED}")
    return int(text)


def _choice(call: Call, name: str, known: tuple[str, ...]) -> str:
    """A query parameter that is one of ``known``; the first of them if it is absent."""
    chosen = call.request.query(name) or known[0]
    if chosen not in known:
        raise errors.invalid_value(name, f"not one of {', '.join(known)}")
    return chosen
