"""Conversations over HTTP: made, shown, changed, deleted, their items listed, added, taken out.

What is another tenant's is not found. Items are added and taken out whether turns run or not: what
is added stands behind what a running turn says, and a turn that reads what is taken out fails.
Knows no socket.

Always true: a change that was answered is in the journal, if there is one; none is made of what
others have changed meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from sessions.durable.conversations import (
    Conversation,
    all_items,
    identified,
    ids_of,
    item_of,
    with_added,
    without_item,
)
from sessions.durable.tenant import Tenant
from sessions.durable.transcript import Entry
from sessions.http.exchange import Call
from sessions.http.front_door import Access, Route
from sessions.http.message import HttpResponse, json_response
from sessions.turns.service import Service
from sessions.wire.http_dialects import (
    ADDED_ITEMS,
    CHANGED_CONVERSATION,
    NEW_CONVERSATION,
    ReadBody,
    Served,
)
from sessions.wire.http_responses import choice_of, limit_of
from sessions.wire.hub import Hub
from sessions.wire.kept_conversations import KeptConversations
from tools_api import errors
from tools_api.dialects.conversations import (
    conversation_object,
    deleted_object,
    item_list,
    item_object,
    items_and_metadata,
)
from tools_api.errors import ApiError
from tools_api.items import Item
from tools_api.requests import CreateRequest

MOST_TRIES = 16
"""How often a change is made anew because of another one."""
Change = Callable[[Conversation, Entry | None], Conversation]
"""Makes a changed conversation of one and the entry of its head. May raise ApiError."""


class HttpConversations:
    """Handlers of ``/v1/conversations`` and what is below it."""

    def __init__(
        self, *, hub: Hub, service: Service, read: Callable[[Served, Call], Awaitable[ReadBody]]
    ) -> None:
        """``read``: reads a request's body, in its tenant's turn."""
        self._service = service
        self._kept = KeptConversations(hub.journal)
        self._read = read

    def _tenant(self, call: Call) -> Tenant:
        return self._service.store.tenant(call.principal.tenant)

    def routes(self) -> list[Route]:
        """The routes of conversations."""
        one = CHANGED_CONVERSATION.path
        handlers = {
            NEW_CONVERSATION.path: {"POST": self._make},
            one: {"GET": self._show, "POST": self._change_metadata, "DELETE": self._delete},
            ADDED_ITEMS.path: {"GET": self._list, "POST": self._add},
            ADDED_ITEMS.path + "/{id}": {"GET": self._show_item, "DELETE": self._take_out},
        }
        return [
            Route(path=path, access=Access.TENANT, calls=calls) for path, calls in handlers.items()
        ]

    # The conversation

    async def _make(self, call: Call) -> HttpResponse:
        items, metadata = await self._body(NEW_CONVERSATION, call)
        conversation = Conversation(
            id=self._service.new_id("conv"),
            created_s=int(self._service.wall_clock()),
            metadata=metadata,
        )
        if items:
            conversation = with_added(conversation, items, self._service.limits)
        if not await self._kept.put(self._tenant(call), conversation, version=None):
            raise errors.internal_error()  # ids are drawn from more than will ever be
        return _shown(conversation)

    async def _show(self, call: Call) -> HttpResponse:
        return _shown(await self._find(call, call.argument))

    async def _change_metadata(self, call: Call) -> HttpResponse:
        _, metadata = await self._body(CHANGED_CONVERSATION, call)
        return _shown(
            await self._change(
                call,
                call.argument,
                lambda found, _: found.changed(metadata=metadata),
                reads_head=False,
            )
        )

    async def _delete(self, call: Call) -> HttpResponse:
        id_ = call.argument
        if not await self._kept.delete(self._tenant(call), id_):
            raise errors.no_such_conversation(id_)
        return json_response(deleted_object(id_))

    # Its items

    async def _list(self, call: Call) -> HttpResponse:
        limit, after = limit_of(call), call.request.query("after")
        newest_first = choice_of(call, "order", ("desc", "asc")) == "desc"
        items = await self._items(call, call.argument)
        if newest_first:
            items = items[::-1]
        return json_response(item_list(items, after=after, limit=limit))

    async def _show_item(self, call: Call) -> HttpResponse:
        id_, item_id = _named(call)
        item = item_of(await self._items(call, id_), item_id)
        if item is None:
            raise errors.no_such_conversation_item(item_id)
        return json_response(item_object(item))

    async def _add(self, call: Call) -> HttpResponse:
        items, _ = await self._body(ADDED_ITEMS, call)
        limits, new_id, added = self._service.limits, self._service.new_id, items
        read_now = self._tenant(call).read_now

        def behind(found: Conversation, head: Entry | None) -> Conversation:
            nonlocal added
            taken = ids_of(found, head) | read_now.get(found.id, frozenset())
            added = identified(items, new_id, taken)
            return with_added(found, added, limits)

        await self._change(call, call.argument, behind, reads_head=True)
        return json_response(item_list(added))

    async def _take_out(self, call: Call) -> HttpResponse:
        id_, item_id = _named(call)
        limits = self._service.limits

        def without(found: Conversation, head: Entry | None) -> Conversation:
            changed = without_item(found, head, item_id, limits)
            if changed is None:
                raise errors.no_such_conversation_item(item_id)
            return changed

        return _shown(await self._change(call, id_, without, reads_head=True))

    # Reading and writing

    async def _body(self, served: Served, call: Call) -> tuple[tuple[Item, ...], dict[str, str]]:
        """The items of a body, each with an id, and its metadata."""
        found = await self._read(served, call)
        content = found.read.content
        assert isinstance(content, CreateRequest | ApiError)
        items, metadata = items_and_metadata(content)
        return identified(items, self._service.new_id), metadata

    async def _find(self, call: Call, id_: str) -> Conversation:
        found = await self._kept.get(self._tenant(call), id_)
        if found is None:
            raise errors.no_such_conversation(id_)
        return found

    async def _items(self, call: Call, id_: str) -> tuple[Item, ...]:
        conversation = await self._find(call, id_)
        return all_items(conversation, await self._kept.head(self._tenant(call), conversation))

    async def _change(
        self, call: Call, id_: str, change: Change, *, reads_head: bool
    ) -> Conversation:
        """Change the conversation, anew where others have changed it meanwhile."""
        tenant = self._tenant(call)
        for _ in range(MOST_TRIES):
            found = await self._find(call, id_)
            head = await self._kept.head(tenant, found) if reads_head else None
            changed = change(found, head)
            if await self._kept.put(tenant, changed, version=found.version):
                return changed
            await asyncio.sleep(0)
        raise errors.conversation_locked()


def _named(call: Call) -> tuple[str, str]:
    """The ids of the conversation and of the item in a path; the second may be a client's, with
    characters that a path has only as escapes."""
    id_, _, item_id = call.argument.partition("/")
    return id_, unquote(item_id)


def _shown(conversation: Conversation) -> HttpResponse:
    return json_response(
        conversation_object(conversation.id, conversation.created_s, conversation.metadata)
    )
