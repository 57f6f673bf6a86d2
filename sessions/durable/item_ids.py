"""Under which ids the items of stored responses are known.

An item has the id that it was made with or that its client gave it; one without is listed under
an id made of its place in what a response's model read. Knows neither tenants nor tables.

Always true: an index finds the items of the entries that were added and not removed, the newest
where several have one id.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sessions.durable.compaction import standing
from sessions.durable.transcript import Entry, chain
from tools_api.built_in_items import CALL_PREFIXES
from tools_api.items import Compaction, Item

_PREFIXES: dict[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    **{str(kind): prefix for kind, prefix in CALL_PREFIXES.items()},
    "shell_call_output": "sho",
    "local_shell_call_output": "lsho",
    "apply_patch_call_output": "apco",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "configuration_update": "cu",
}
"""Prefixes of items' ids, by the item's type."""
_LISTED = re.compile(rf"(?:{'|'.join(_PREFIXES.values())})_(\d{{1,9}})_(.+)", re.ASCII)
_RESPONSE = "resp"


class Place(NamedTuple):
    """Where an item without an id of its own stands."""

    response_id: str
    number: int
    """The number of items that the response's model read."""


def own_items(entry: Entry) -> Iterator[Item]:
    """The items that an entry adds to its chain."""
    if entry.parent is None and entry.opening is not None:
        yield entry.opening
    yield from entry.input_items
    yield from entry.output_items


def read_items(entry: Entry) -> list[Item]:
    """The items before the output of ``entry`` as clients know them, oldest first."""
    parts = [entry.input_items]
    for earlier in chain(entry.parent):
        parts += [earlier.output_items, earlier.input_items]
    if entry.opening is not None:
        parts.append((entry.opening,))
    return [item for part in reversed(parts) for item in known_items(part)]


def known_items(items: Iterable[Item]) -> Iterator[Item]:
    """Items as clients know them: a compaction that is the server's own is what it stands for."""
    for item in items:
        if isinstance(item, Compaction) and item.kind == "inner":
            yield from standing(item).items
        else:
            yield item


def prefix_of(item: Item) -> str:
    """How ids of such items begin."""
    return _PREFIXES[item.type]


def listed_ids(items: Sequence[Item], response_id: str) -> list[str]:
    """The ids under which items are listed that a response's model read, the oldest first; each is
    another. Of several items that a client gave one id the newest has it, as for a reference."""
    newer, listed = set[str](), list[str]()
    for number in range(len(items) - 1, -1, -1):
        own = items[number].id
        if not own or own in newer:
            own = _place_id(items[number], Place(response_id, number))
        newer.add(own)
        listed.append(own)
    return listed[::-1]


def _place_id(item: Item, place: Place) -> str:
    return f"{prefix_of(item)}_{place.number}_{place.response_id.partition('_')[2]}"


def place_of(id_: str) -> Place | None:
    """The place from which an id was made; None: it is no such id."""
    found = _LISTED.fullmatch(id_)
    if found is None:
        return None
    return Place(response_id=f"{_RESPONSE}_{found[2]}", number=int(found[1]))


def item_at(items: list[Item], place: Place, id_: str) -> Item | None:
    """The item of ``read_items`` that is listed under ``id_`` at that place."""
    if place.number >= len(items) or _place_id(items[place.number], place) != id_:
        return None
    item, newer = items[place.number], items[place.number + 1 :]
    return item if not item.id or any(other.id == item.id for other in newer) else None


class ItemIndex:
    """Items of entries by their own ids."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[Entry, None]] = {}
        """The responses that hold each item, the newest last."""

    def add(self, entry: Entry) -> None:
        """Have a response's items found, before those of others with the same ids."""
        for id_ in _ids(entry):
            self._holders.setdefault(id_, {})[entry] = None

    def remove(self, entry: Entry) -> None:
        """Have a response's items found no more. One that is not there is ignored."""
        for id_ in _ids(entry):
            holders = self._holders.get(id_, {})
            if entry in holders:
                del holders[entry]
                if not holders:
                    del self._holders[id_]

    def find(self, id_: str) -> Item | None:
        """The newest item of that id."""
        holders = self._holders.get(id_)
        if holders is None:
            return None
        return item_with_id(tuple(own_items(next(reversed(holders)))), id_)


def item_with_id(items: Sequence[Item], id_: str) -> Item | None:
    """The last of them that has the id."""
    return next((item for item in reversed(items) if item.id == id_), None)


def _ids(entry: Entry) -> set[str]:
    return {item.id for item in own_items(entry) if item.id is not None}
