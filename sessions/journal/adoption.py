"""From journal rows back to the chain of entries that fell out of memory.

Reading and parsing takes long and is done beside the event loop; linking what was read to what
is still in memory is quick and done inside it. Model output is never tokenised again.

A row of another tokenizer or chat format has ids that mean nothing here: it is as unknown as
one that does not exist, unless it is to be taken over, when all of its history is rendered anew
as if the client had sent it.

Always true: an adopted entry equals the one that fell out, field by field and id by id; only the
size of the frame that it came in is not known any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sessions.durable.item_ids import item_at, item_with_id, place_of, read_items
from sessions.durable.renderer import Renderer
from sessions.durable.transcript import Entry, Header, Tail, chain
from sessions.durable.weights import item_bytes
from sessions.journal.encoding import (
    EntryBody,
    TurnBody,
    decode_header,
    decode_links,
    decode_turn,
    link_items,
)
from sessions.journal.journal import Journal
from sessions.journal.records import SessionRecord, StoredTurn
from tools_api.items import Item

_HEADERS_KEPT = 256
_MOST_HOLDERS = 8
"""Turns that are looked at for an item, the newest first."""


class LoadedTurn(NamedTuple):
    """A row and what can be continued of it, its headers included."""

    row: StoredTurn
    links: tuple[EntryBody, ...]
    headers: tuple[Header, ...]
    """One for each of the links."""

    @property
    def body(self) -> TurnBody:
        """The content of the turn's row, read when it is asked for. Raises JournalDamaged."""
        return decode_turn(self.row)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedChain:
    """The chain that has to be known to go on behind a response."""

    turns: tuple[LoadedTurn, ...]
    """The oldest first; the last is the one that was asked for."""
    session: SessionRecord | None
    """The session of the last turn."""
    foreign: Entry | None = None
    """Instead of ``turns``' own: the whole history rendered anew."""

    @property
    def head(self) -> LoadedTurn:
        return self.turns[-1]


class Loader:
    """Reads chains; may be used by several threads."""

    def __init__(
        self,
        journal: Journal,
        *,
        fingerprint: bytes,
        retokenise: Renderer | None = None,
    ) -> None:
        """``retokenise``: renders what another tokenizer's turns said; without it they are
        unknown."""
        self._journal = journal
        self._fingerprint = fingerprint
        self._retokenise = retokenise
        self._headers: dict[bytes, Header] = {}

    def load(
        self, tenant: str, response_id: str, known: Callable[[str], bool] = lambda _: False
    ) -> LoadedChain | None:
        """The chain that ends in that response, down to the first one that is ``known``; None:
        it is unknown, or another tokenizer's.

        Raises:
            JournalError: it cannot be read.
        """
        head = self._journal.turn(tenant, response_id)
        if head is None:
            return None
        if head.fingerprint != self._fingerprint:
            return self._foreign(tenant, response_id)
        rows = self._journal.chain(tenant, response_id, known)
        session = self._journal.session(tenant, head.session)
        return LoadedChain(turns=tuple(map(self.read, rows)), session=session)

    def read(self, row: StoredTurn) -> LoadedTurn:
        """A turn's row on its own, decoded."""
        links = decode_links(row)
        headers = tuple([self._header(link.header) for link in links])
        return LoadedTurn(row=row, links=links, headers=headers)

    def with_history(self, tenant: str, digest: bytes, most: int) -> list[str]:
        """Responses whose history has the digest and whose ids mean something here, the newest
        first."""
        rows = self._journal.turns_with_digest(tenant, digest, most)
        return [row.response_id for row in rows if row.fingerprint == self._fingerprint]

    def items(self, tenant: str, ids: Sequence[str], most_bytes: int) -> dict[str, Item]:
        """The items of these ids that are known, in their order. It ends with the one that makes
        them more than ``most_bytes``: whoever asks for so much has to refuse it.

        Raises:
            JournalError: it cannot be read.
        """
        found: dict[str, Item] = {}
        entries: dict[str, list[Item] | None] = {}
        num_bytes = 0
        for id_ in ids:
            item = self._item(tenant, id_) or self._item_at(tenant, id_, entries)
            if item is not None:
                found[id_] = item
                num_bytes += item_bytes(item)
                if num_bytes > most_bytes:
                    break
        return found

    def _item(self, tenant: str, id_: str) -> Item | None:
        for row in self._journal.turns_with_item(tenant, id_, _MOST_HOLDERS):
            if not self._means_something(row):
                continue
            for link in reversed(decode_links(row)):
                item = item_with_id(link_items(link), id_)
                if item is not None:
                    return item
        return None

    def _item_at(self, tenant: str, id_: str, read: dict[str, list[Item] | None]) -> Item | None:
        """One that is listed under that id; ``read`` keeps what responses have read."""
        place = place_of(id_)
        if place is None:
            return None
        if place.response_id not in read:
            chain = self.load(tenant, place.response_id)
            entry = None if chain is None else _head_entry(chain)
            read[place.response_id] = None if entry is None else read_items(entry)
        items = read[place.response_id]
        return None if items is None else item_at(items, place, id_)

    def _header(self, digest: bytes) -> Header:
        found = self._headers.get(digest)
        if found is None:
            if len(self._headers) >= _HEADERS_KEPT:
                self._headers.clear()
            found = self._headers[digest] = decode_header(self._journal.header(digest))
        return found

    def _means_something(self, row: StoredTurn) -> bool:
        return row.fingerprint == self._fingerprint or self._retokenise is not None

    def _foreign(self, tenant: str, response_id: str) -> LoadedChain | None:
        if self._retokenise is None:
            return None
        turns = tuple(map(self.read, self._journal.chain(tenant, response_id)))
        entry = rendered_anew(link_up(turns, lambda _: None), self._retokenise)
        session = self._journal.session(tenant, turns[-1].row.session)
        return LoadedChain(turns=turns[-1:], session=session, foreign=entry)


def link_up(turns: Sequence[LoadedTurn], known: Callable[[str], Entry | None]) -> Entry:
    """The entry of the last of ``turns``; ``known`` gives those that are in memory."""
    entries: dict[str, Entry] = {}
    entry: Entry | None = None
    for turn in turns:
        kept = known(turn.row.response_id)
        if kept is not None:
            entries[turn.row.response_id] = entry = kept
            continue
        base = turn.row.base_id
        parent = None if base is None else entries.get(base) or known(base)
        if base is not None and parent is None:
            raise KeyError(base)
        entry = _entry(turn.links, turn.headers, parent)
        entries[turn.row.response_id] = entry
    assert entry is not None
    return entry


def _head_entry(loaded: LoadedChain) -> Entry:
    return loaded.foreign or link_up(loaded.turns, lambda _: None)


def _entry(links: Sequence[EntryBody], headers: Sequence[Header], parent: Entry | None) -> Entry:
    for link, header in zip(links, headers, strict=True):
        parent = link.entry(parent, header)
    assert parent is not None
    return parent


def rendered_anew(entry: Entry, renderer: Renderer) -> Entry:
    """One entry that holds all that the chain said, in this renderer's ids."""
    header = renderer.header(
        instructions=entry.header.instructions,
        opening=entry.header.opening,
        tools=entry.header.tools,
        options=entry.header.options,
        parent=None,
    )
    items: list[Item] = []
    for link in reversed(list(chain(entry))):
        items += (*link.input_items, *link.output_items)
    ids, tail = renderer.input(tuple(items), Tail.START, generate=False, options=header.options)
    return Entry(
        parent=None,
        header=header,
        opening=entry.opening,
        input_items=tuple(items),
        input_ids=ids,
        output_items=(),
        output_ids=ids[:0],
        tail=tail,
        num_tokens=len(ids),
        open_calls=entry.open_calls,
        digest=entry.digest,
        left_out=entry.left_out,
    )
