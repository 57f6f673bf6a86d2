"""Stored items that a request refers to by their ids, put where it refers to them.

Memory is asked first and the journal for the rest; what neither knows is refused by the field
that names it. Decides what may be referred to, and asks nobody itself.

Always true: a request that comes out has no references, and reads to whatever looks at it next as
if its client had sent the items; one that holds what only some may see is for those alone.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

from sessions.durable.item_ids import item_at, place_of, read_items
from sessions.durable.store import ConnectionStore
from sessions.durable.transcript import ROOT_DIGEST, roll
from sessions.durable.weights import item_bytes
from tools_api import errors
from tools_api.item_references import ItemReference, with_items
from tools_api.items import Item, Message, Reasoning
from tools_api.limits import Limits
from tools_api.request_reading import ordered_input
from tools_api.requests import CreateRequest


@dataclass(slots=True, kw_only=True)
class ReferencedItems:
    """Items by the ids that a request refers to."""

    items: dict[str, Item] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Ids that memory does not know, each once."""
    listed: dict[str, str] = field(default_factory=dict)
    """Ids that are made of a place in what a response read, and that response."""
    own: set[str] = field(default_factory=set)
    """Ids of items that are not for the whole tenant."""

    @property
    def private(self) -> bool:
        """Whether one of the items is not for the whole tenant."""
        return bool(self.own)

    def forget(self, deleted: Set[str]) -> None:
        """Miss what was deleted: items by their ids, and those listed by that of a response."""
        gone = [id_ for id_ in self.items if self.listed.get(id_, id_) in deleted]
        for id_ in gone:
            del self.items[id_]
        self.missing += gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A request with all of its input, and what a turn's plan needs of that."""

    request: CreateRequest
    digests: tuple[bytes, ...]
    """``roll`` of each prefix of ``input``, from the empty one on."""


def remembered(references: Sequence[ItemReference], visible: ConnectionStore) -> ReferencedItems:
    """The items that memory knows of it."""
    found, listed = ReferencedItems(), dict[str, list[Item]]()
    for id_ in dict.fromkeys(reference.id for reference in references):
        known = visible.item(id_)
        item, private = (None, False) if known is None else known
        place = place_of(id_)
        if item is None and place is not None:
            response = visible.response(place.response_id)
            if response is not None:
                if place.response_id not in listed:
                    listed[place.response_id] = read_items(response.entry)
                item = item_at(listed[place.response_id], place, id_)
                private = response.private
                found.listed[id_] = place.response_id
        if item is None:
            found.missing.append(id_)
        else:
            found.items[id_] = item
            if private:
                found.own.add(id_)
    return found


def refuse_many_lists(references: Sequence[ItemReference], limits: Limits) -> None:
    """Refuse ids of places in more responses than may be looked through.

    Raises:
        ApiError: with the path of the first one too many.
    """
    responses: set[str] = set()
    for reference in references:
        place = place_of(reference.id)
        if place is not None:
            responses.add(place.response_id)
            if len(responses) > limits.max_listed_responses:
                raise errors.invalid_value(
                    reference.path,
                    "the request refers to places in what more than "
                    f"{limits.max_listed_responses} responses read; send the items themselves",
                )


def with_stored(
    request: CreateRequest, found: ReferencedItems, recalled: Mapping[str, Item], limits: Limits
) -> tuple[CreateRequest, int]:
    """The request with the items that it refers to, and how many bytes those hold.

    Args:
        recalled: what the journal knew of ``found.missing``.

    Raises:
        ApiError: an item is unknown, or the items are too large together.
    """
    items: list[Item] = []
    parts = num_bytes = 0
    for reference in request.references:
        item = found.items.get(reference.id) or recalled.get(reference.id)
        if item is None:
            raise errors.item_not_found(reference.path, reference.id)
        items.append(item)
        parts += _num_parts(item)
        num_bytes += item_bytes(item)
        if num_bytes > limits.max_frame_bytes:
            raise errors.invalid_value(
                reference.path,
                f"the items that are referred to take more than {limits.max_frame_bytes} bytes "
                "together; leave some out",
            )
    parts += sum(map(_num_parts, request.input))
    if parts > limits.max_input_parts:
        raise errors.invalid_value("input", f"more than {limits.max_input_parts} content parts")
    whole, repeated = ordered_input(
        with_items(request.input, request.references, items), complete=request.generate
    )
    update = {"input": whole, "references": (), "store": request.store and not found.private}
    update |= {"warnings": request.warnings + repeated}
    return request.model_copy(update=update), num_bytes


def digested(request: CreateRequest) -> Whole:
    """The request with its digests; of long texts this takes long."""
    digests = tuple(accumulate(request.input, roll, initial=ROOT_DIGEST))
    return Whole(request=request, digests=digests)


def _num_parts(item: Item) -> int:
    match item:
        case Message():
            return len(item.content)
        case Reasoning():
            return len(item.content) + len(item.summary)
    return 1
