"""A request in a conversation, as one that continues what was said there.

The conversation's head takes the place of ``previous_response_id``, what was added behind it is
the beginning of the input. Pure; knows neither the journal nor who may see the conversation.

Always true: each item of the input has an id from here on, under which the conversation lists it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessions.durable.conversations import (
    Conversation,
    ConversationRead,
    identified,
    ids_of,
    read_of,
)
from sessions.durable.item_ids import own_items
from sessions.durable.transcript import Entry, chain
from sessions.turns.references import digested
from tools_api.call_order import in_call_order
from tools_api.items import Item
from tools_api.json_fields import join
from tools_api.requests import CreateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversing:
    """A request with all of its input."""

    request: CreateRequest
    digests: tuple[bytes, ...] | None
    """``roll`` of each prefix of its input, if they are known."""
    num_bytes: int
    """Bytes of its frame and of what was added to its conversation."""
    read: ConversationRead | None = None
    """The part of its conversation that the turn reads; None: it is in no conversation."""


def conversing(
    request: CreateRequest,
    conversation: Conversation,
    head: Entry | None,
    new_id: Callable[[str], str],
    num_bytes: int,
) -> Conversing:
    """The request that reads all of the conversation; of long texts this takes long.

    Args:
        head: the entry of the conversation's head.

    Raises:
        ApiError: calls and outputs of what was added and of the input do not fit together.
    """
    named = any(item.id for item in request.input)
    taken = ids_of(conversation, head) if named else frozenset[str]()
    own = identified(request.input, new_id, taken)
    added = len(conversation.items)
    ordered = in_call_order(
        (*conversation.items, *own),
        complete=request.generate,
        where=lambda index: join("input", max(index - added, 0), "call_id"),
    )
    update = {
        "input": ordered.items,
        "previous_response_id": conversation.head_id,
        "warnings": request.warnings + ordered.warnings(),
    }
    whole = digested(request.model_copy(update=update))
    return Conversing(
        request=whole.request,
        digests=whole.digests,
        num_bytes=num_bytes,
        read=read_of(conversation),
    )


def same_items(entry: Entry, items: Sequence[Item]) -> bool:
    """Whether a history is that of ``entry`` by the ids of its items too: a conversation goes on
    from no other one, or its items would change their ids."""
    said = [item for link in reversed(list(chain(entry))) for item in own_items(link)]
    return [item.id for item in said] == [item.id for item in items]
