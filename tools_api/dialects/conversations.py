"""Bodies of ``/v1/conversations`` and what is below it, and the objects that answer.

A body is read as the input of a ``response.create`` that nobody makes: items are checked where a
turn's are, and stay in the order in which they came. Whose a conversation is, and what it holds, is
the session's business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tools_api import errors
from tools_api.dialects.dialect import DialectRequest
from tools_api.dialects.dialect_fields import FieldNames, known_fields, own_names
from tools_api.dialects.responses_http import Responses
from tools_api.errors import ApiError
from tools_api.items import Compaction, Item
from tools_api.requests import ITEMS_ALONE, CreateRequest

NAMES = FieldNames(rules=((r"input(.*)", r"items\1"),))


class ConversationBodies(Responses):
    """The bodies of one path. Its writer writes nothing: no turn comes of them."""

    def __init__(self, *, known: tuple[str, ...], needed: str | None = None) -> None:
        """``needed``: the field among them that has to be there."""
        self._known = frozenset(known)
        self._needed = needed

    def read(self, body: Any) -> DialectRequest:
        """See ``Dialect``."""
        with own_names():
            fields = known_fields(body, self._known, {})
            if self._needed is not None and self._needed not in fields:
                raise errors.missing_parameter(self._needed)
            items = fields.get("items", [])
            if not isinstance(items, list):
                raise errors.invalid_type("items", "an array", items)
        create = {"input": items, "generate": False, ITEMS_ALONE: True}
        if "metadata" in fields:
            create["metadata"] = fields["metadata"]
        asked = super().read(create)
        return DialectRequest(create=asked.create, streamed=False, writer=asked.writer)


NEW = ConversationBodies(known=("items", "metadata"))
UPDATE = ConversationBodies(known=("metadata",), needed="metadata")
ITEMS = ConversationBodies(known=("items",), needed="items")


def items_and_metadata(
    read: CreateRequest | ApiError,
) -> tuple[tuple[Item, ...], dict[str, str]]:
    """The content of a body that was read.

    Raises:
        ApiError: it is refused; also for a reference, which stands for what others hold.
    """
    if isinstance(read, ApiError):
        raise NAMES.error(read)
    if read.references:
        path = NAMES.of(read.references[0].path)
        raise errors.unsupported_parameter(path, "send the item itself, not a reference to it")
    if read.compacts != "no":
        raise errors.unsupported_parameter("items", "a compaction_trigger is for a turn")
    return read.input, read.metadata


def conversation_object(id_: str, created_s: int, metadata: Mapping[str, str]) -> dict[str, Any]:
    """``created_s``: seconds since the epoch."""
    return {
        "id": id_,
        "object": "conversation",
        "created_at": created_s,
        "metadata": dict(metadata),
    }


def deleted_object(id_: str) -> dict[str, Any]:
    """The answer to ``DELETE``."""
    return {"id": id_, "object": "conversation.deleted", "deleted": True}


def item_object(item: Item) -> dict[str, Any]:
    """An item as a conversation lists it: with a status, which those of clients lack."""
    if isinstance(item, Compaction):
        return item.to_wire()
    return {"status": "completed"} | item.to_wire()


def item_list(
    items: Sequence[Item],
    *,
    ids: Sequence[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """A page of a list, as clients that turn pages read it; only its own items are written.

    Args:
        ids: the ids under which the items are listed; None: each has its own.
        after: the id of the item before the page; None: it is the first.
        limit: so many items at most; None: all.

    Raises:
        ApiError: no item has the id ``after``.
    """
    listed = [item.id for item in items] if ids is None else list(ids)
    if after is not None and after not in listed:
        raise errors.invalid_value("after", f"no item has the id {errors.quoted(after)}")
    first = 0 if after is None else listed.index(after) + 1
    end = len(items) if limit is None else first + limit
    here = listed[first:end]
    return {
        "object": "list",
        "data": [
            item_object(item) | {"id": id_}
            for item, id_ in zip(items[first:end], here, strict=True)
        ],
        "first_id": here[0] if here else None,
        "last_id": here[-1] if here else None,
        "has_more": end < len(items),
    }
