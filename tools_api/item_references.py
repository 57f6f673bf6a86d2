"""References to stored items: an ``input`` that names them instead of repeating them.

Clients that keep the server's answers by id (the AI SDK) send ``{"type": "item_reference", "id":
"..."}`` where another one sends the item; the published types let ``type`` be null. What is there
under an id, and who may see it, is the session's business.

Always true: ``with_items`` of what ``parse_input`` took apart has an item for every entry of the
input, in its order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tools_api.item_fields import MAX_ID
from tools_api.item_reading import ItemLimits, parse_item, parse_items, refuse_many_items
from tools_api.items import Item
from tools_api.json_fields import Fields, join, without_nulls
from tools_api.wire import refuse_unprintable


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReference:
    """An entry of an ``input`` that stands for a stored item."""

    place: int
    """Its index in the input."""
    id: str

    @property
    def path(self) -> str:
        """The request's field that names the item."""
        return join("input", self.place, "id")


def parse_input(
    raw: object, limits: ItemLimits
) -> tuple[tuple[Item, ...], tuple[ItemReference, ...]]:
    """Read ``input``: its items, and the references that stand among them.

    Raises:
        ApiError: with the path of the first fault, e.g. ``input[2].id``.
    """
    if not isinstance(raw, list):
        return parse_items(raw, "input", limits), ()
    refuse_many_items(raw, "input", limits)
    items: list[Item] = []
    references: list[ItemReference] = []
    for place, entry in enumerate(raw):
        path = join("input", place)
        if _is_reference(entry):
            id_ = Fields(entry, path).text("id", least=1, most=MAX_ID)
            refuse_unprintable(id_, join(path, "id"))
            references.append(ItemReference(place=place, id=id_))
        else:
            items.append(parse_item(entry, path, limits))
    return tuple(items), tuple(references)


def _is_reference(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    kind = entry.get("type")
    return kind == "item_reference" or (kind is None and without_nulls(entry).keys() == {"id"})


def with_items(
    items: Sequence[Item], references: Sequence[ItemReference], found: Sequence[Item]
) -> tuple[Item, ...]:
    """The whole input.

    Args:
        items: of the input, without those that it refers to.
        found: what the ``references`` stand for, one each.
    """
    own = iter(items)
    referred = {each.place: item for each, item in zip(references, found, strict=True)}
    places = range(len(items) + len(references))
    return tuple([referred[place] if place in referred else next(own) for place in places])
