"""References to stored items: an ``input`` that names them instead of repeating them.

Clients that keep the server's answers by id (the AI SDK) send ``{"type": "item_reference", "id":
"..."}`` where another one sends the item; the published types let ``type`` be null. What is there
under an id, and who may see it, is the session's business.

Always true: ``with_items`` of what ``request_reading.parse_input`` took apart has an item for every
entry of the input, in its order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tools_api.items import Item
from tools_api.json_fields import join


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReference:
    """An entry of an ``input`` that stands for a stored item."""

    place: int
    """The reference's index in the input."""
    id: str

    @property
    def path(self) -> str:
        """The request's field that names the item."""
        return join("input", self.place, "id")


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
