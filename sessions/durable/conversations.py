"""Conversations: where each stands, and the items that its client has added behind that.

A conversation is a session with a name of the server's and a list of items. What its turns said is
in the chain of its head, the newest of these turns; what a client adds waits behind it until a turn
reads it. An item that is taken out of the chain makes that a list again: the next turn goes on from
what is left, which is another history. Pure but for the table of a server without a journal.

Always true: each change has a version of its own; a turn that has ended moves the conversation
only if all that it read still stands in it.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from sessions.durable.item_ids import (
    known_items,
    listed_ids,
    own_items,
    place_of,
    prefix_of,
)
from sessions.durable.transcript import Entry, chain
from sessions.durable.weights import item_bytes
from tools_api import errors
from tools_api.items import Item
from tools_api.limits import Limits

MOST_CHANGES = 64
"""Of so many a conversation keeps the marks: more are not made while one is asked for again."""
_ROW_BYTES = 512
"""Size of a conversation without items, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation of a tenant."""

    id: str
    """The conversation's id, which is also its session's name."""
    created_s: int
    """When it was made, in seconds since the epoch."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    head_id: str | None = None
    """The response whose chain it is so far; None: it has none, or one that was edited."""
    items: tuple[Item, ...] = ()
    """Behind that chain, each with an id; no turn has read them there."""
    edits: int = 0
    """How often something was taken out that a turn may be reading."""
    version: int = 1
    """The version, one more with each change."""
    changes: tuple[str, ...] = field(default=(), compare=False)
    """Marks of its last changes by clients, the newest last: by its own one that was made is known
    whose answer was lost."""

    def changed(self, metadata: Mapping[str, str]) -> "Conversation":
        """The conversation with other metadata."""
        return replace(self, metadata=metadata, version=self.version + 1)

    def marked(self, mark: str) -> "Conversation":
        """The conversation as that change leaves it."""
        return replace(self, changes=(*self.changes, mark)[-MOST_CHANGES:])

    @property
    def size_bytes(self) -> int:
        """The conversation's size in memory, roughly; what its turns said is not counted."""
        metadata = sum(len(key) + len(value) for key, value in self.metadata.items())
        return _ROW_BYTES + metadata + sum(map(item_bytes, self.items))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRead:
    """The part of a conversation that a turn reads."""

    id: str
    edits: int
    added: int
    """How many of the conversation's ``items`` it reads, from the first."""


def read_of(conversation: Conversation) -> ConversationRead:
    """The part of a conversation that a turn reads which begins now: all of it."""
    added = len(conversation.items)
    return ConversationRead(id=conversation.id, edits=conversation.edits, added=added)


def moved(
    conversation: Conversation, read: ConversationRead, response_id: str, entry: Entry
) -> Conversation | None:
    """The conversation once the turn that read it has ended; what was added meanwhile stands behind
    it, under other ids than the items of ``entry``, the turn's, have. None: something that the turn
    read was taken out."""
    if conversation.edits != read.edits:
        return None
    numbers, suffix = itertools.count(), response_id.partition("_")[2]
    left = identified(
        conversation.items[read.added :],
        lambda prefix: f"{prefix}_behind{next(numbers)}_{suffix}",
        ids_among(own_items(entry)),
    )
    return replace(conversation, head_id=response_id, items=left, version=conversation.version + 1)


def with_added(conversation: Conversation, items: Sequence[Item], limits: Limits) -> Conversation:
    """The conversation with items behind the others.

    Raises:
        ApiError: they are too many together with those that no turn has read.
    """
    whole = (*conversation.items, *items)
    if len(whole) > limits.max_input_items:
        raise errors.invalid_value(
            "items", f"more than {limits.max_input_items} would wait for a turn"
        )
    if sum(map(item_bytes, whole)) > limits.max_frame_bytes:
        raise errors.invalid_value(
            "items", f"more than {limits.max_frame_bytes} bytes would wait for a turn"
        )
    return replace(conversation, items=whole, version=conversation.version + 1)


def without_item(
    conversation: Conversation, head: Entry | None, item_id: str, limits: Limits
) -> Conversation | None:
    """The conversation without that item; None: it has none of that id. ``head``: the entry of its
    head. Raises as ``with_added``."""
    whole = all_items(conversation, head)
    place = _place_of(whole, item_id)
    if place is None:
        return None
    left = (*whole[:place], *whole[place + 1 :])
    said = len(whole) - len(conversation.items)
    edits = conversation.edits + 1
    if place >= said:
        version = conversation.version + 1
        return replace(conversation, items=left[said:], edits=edits, version=version)
    alone = replace(conversation, head_id=None, items=(), edits=edits)
    return with_added(alone, left, limits)


def all_items(conversation: Conversation, head: Entry | None) -> tuple[Item, ...]:
    """The items, the oldest first, each with the id that it is listed under. ``head``: the entry of
    its head."""
    whole = _whole(conversation, head)
    ids = listed_ids(whole, conversation.head_id or "")
    return tuple(
        item if item.id == id_ else replace(item, id=id_)
        for item, id_ in zip(whole, ids, strict=True)
    )


def ids_of(conversation: Conversation, head: Entry | None) -> frozenset[str]:
    """The ids that its items have of their own. ``head``: the entry of its head."""
    return ids_among(_whole(conversation, head))


def ids_among(items: Iterable[Item]) -> frozenset[str]:
    """The ids that they have of their own."""
    return frozenset(item.id for item in items if item.id)


def _whole(conversation: Conversation, head: Entry | None) -> tuple[Item, ...]:
    known = conversation.head_id is not None and head is not None
    entries = reversed(list(chain(head if known else None)))
    said = [item for entry in entries for item in known_items(own_items(entry))]
    return (*said, *conversation.items)


def item_of(items: Sequence[Item], item_id: str) -> Item | None:
    """The newest item of that id; None: there is none."""
    place = _place_of(items, item_id)
    return None if place is None else items[place]


def _place_of(items: Sequence[Item], item_id: str) -> int | None:
    numbers = range(len(items) - 1, -1, -1)
    return next((number for number in numbers if items[number].id == item_id), None)


def identified(
    items: Sequence[Item], new_id: Callable[[str], str], taken: Set[str] = frozenset()
) -> tuple[Item, ...]:
    """The items, each with an id of its own: that of a client, unless it could be one of the places
    that items without ids are listed under, or one before has it, or a new one. ``taken``: the ids
    of the items that they stand behind."""
    ids, found = {*taken}, list[Item]()
    for item in items:
        if not item.id or item.id in ids or place_of(item.id) is not None:
            drawn = (new_id(prefix_of(item)) for _ in itertools.count())
            item = replace(item, id=next(id_ for id_ in drawn if id_ not in ids))
        ids |= {item.id} if item.id else set()
        found.append(item)
    return tuple(found)


class ConversationTable:
    """A tenant's conversations on a server without a journal; those that were used last stay."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._kept: OrderedDict[str, tuple[Conversation, float]] = OrderedDict()
        self.num_bytes = 0
        """Memory of all conversations, roughly."""

    def get(self, id_: str) -> Conversation | None:
        """Look a conversation up; it counts as used."""
        found = self._kept.get(id_)
        if found is None:
            return None
        self._keep(found[0])
        return found[0]

    def put(self, conversation: Conversation, *, version: int | None) -> bool:
        """Keep it in the place of the one of that ``version``, None: of none. False: it is another
        one that is there."""
        found = self._kept.get(conversation.id)
        if version != (None if found is None else found[0].version):
            return False
        self._keep(conversation)
        self._bound()
        return True

    def delete(self, id_: str) -> bool:
        """Delete a conversation; False: there is none of that id."""
        if id_ not in self._kept:
            return False
        self._drop(id_)
        return True

    def move(self, read: ConversationRead, response_id: str, entry: Entry) -> bool:
        """A turn has ended; False: it is to fail, as ``moved``. One that is deleted stays so."""
        found = self._kept.get(read.id)
        if found is None:
            return True
        conversation = moved(found[0], read, response_id, entry)
        if conversation is not None:
            self._keep(conversation)
        return conversation is not None

    def expire(self) -> None:
        """Drop conversations that were not used for too long."""
        oldest = self._clock() - self._limits.stored_response_ttl_s
        for id_, (_, used_s) in list(self._kept.items()):
            if used_s >= oldest:
                break
            self._drop(id_)

    def _keep(self, conversation: Conversation) -> None:
        before = self._kept.pop(conversation.id, None)
        self._kept[conversation.id] = (conversation, self._clock())
        self.num_bytes += conversation.size_bytes - (0 if before is None else before[0].size_bytes)

    def _bound(self) -> None:
        limits = self._limits
        while len(self._kept) > 1 and (
            len(self._kept) > limits.max_conversations_per_tenant
            or self.num_bytes > limits.max_conversation_bytes_per_tenant
        ):
            self._drop(next(iter(self._kept)))

    def _drop(self, id_: str) -> None:
        self.num_bytes -= self._kept.pop(id_)[0].size_bytes
