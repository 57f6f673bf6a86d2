"""Finished responses that can be continued, by id and by history.

A table has one audience: a tenant, one connection, or what a tenant asks for over HTTP. It is
bounded by count, by bytes and by age, least recently used first; the clock is handed in.

Always true: the bytes that are counted are those of all entries that a response of the table
can reach, shared ancestors once, and of the response objects that are kept with them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sessions.durable.item_ids import ItemIndex
from sessions.durable.packing import unpack
from sessions.durable.session import Session
from sessions.durable.transcript import ROOT_DIGEST, Entry, chain, holds
from sessions.durable.weights import Tally
from tools_api.items import Item

_MAX_TWINS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class StoredResponse:
    """A finished response that can be continued."""

    id: str
    entry: Entry
    session: Session
    connection_id: str
    """The connection on which it was made."""
    private: bool
    """Only that connection may see it, and what continues it. Over HTTP, where every
    request is a connection: it cannot be fetched, but what continues it is found."""
    packed: bytes = b""
    """The terminal event's response object, as ``packing`` keeps it; see ``wire``."""

    @property
    def wire(self) -> bytes:
        """The response object as JSON, for who asks for it again; empty if it is private."""
        return unpack(self.packed)


class ResponseTable:
    """Responses with one audience: a tenant's, or a connection's private ones."""

    def __init__(
        self,
        *,
        max_count: int,
        max_bytes: int,
        ttl_s: float,
        clock: Callable[[], float],
        on_drop: Callable[[StoredResponse], None],
        tally: Tally | None = None,
    ) -> None:
        """``tally``: counts what this table and others hold."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._on_drop = on_drop
        self._responses: OrderedDict[str, tuple[StoredResponse, float]] = OrderedDict()
        self._by_digest: dict[bytes, list[str]] = {}
        self._by_entry: dict[Entry, str] = {}
        self._holders: dict[Entry, int] = {}
        self._items = ItemIndex()
        self._tally = tally or Tally()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def __iter__(self) -> Iterator[StoredResponse]:
        """The one that has not been used for longest comes first."""
        return iter([response for response, _ in self._responses.values()])

    def put(self, response: StoredResponse) -> None:
        """Keep a response; others are dropped until the bounds hold, this one is not. It is found
        by its history if that says anything: reasoning, which does not count, is no proof."""
        self._responses[response.id] = (response, self._clock())
        self._by_entry[response.entry] = response.id
        self._hold(response.entry)
        self._count(len(response.packed))
        if response.entry.output_items and response.entry.digest != ROOT_DIGEST:
            twins = self._by_digest.setdefault(response.entry.digest, [])
            twins.append(response.id)
            del twins[:-_MAX_TWINS]
        while len(self._responses) > 1 and (
            len(self._responses) > self._max_count or self.num_bytes > self._max_bytes
        ):
            self._drop(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse | None:
        """Look a response up; it counts as used."""
        self.expire()
        found = self._responses.get(response_id)
        if found is None:
            return None
        self._responses[response_id] = (found[0], self._clock())
        self._responses.move_to_end(response_id)
        return found[0]

    def entry(self, response_id: str) -> Entry | None:
        """The entry of a response that is here, which does not count as using it."""
        found = self._responses.get(response_id)
        return None if found is None else found[0].entry

    def id_of(self, entry: Entry) -> str | None:
        """The response of an entry, if it is here."""
        return self._by_entry.get(entry)

    def item(self, item_id: str) -> Item | None:
        """An item of that id which a response here holds or stands on, and which was not deleted;
        that does not count as using a response."""
        return self._items.find(item_id)

    def knows(self, digest: bytes) -> bool:
        """Whether there may be a response whose history has this digest."""
        return digest in self._by_digest

    def with_history(
        self, digest: bytes, items: Sequence[Item], connection_id: str
    ) -> StoredResponse | None:
        """The response whose whole history is ``items``, preferring one that was made on
        this connection, then the newest."""
        self.expire()
        twins = [self._responses[response_id][0] for response_id in self._by_digest.get(digest, ())]
        twins.reverse()
        for response in sorted(twins, key=lambda twin: twin.connection_id != connection_id):
            if holds(response.entry, items):
                return self.get(response.id)
        return None

    def expire(self) -> None:
        """Drop responses that are older than their time to live."""
        oldest = self._clock() - self._ttl_s
        while self._responses:
            response_id, (_, used_s) = next(iter(self._responses.items()))
            if used_s >= oldest:
                break
            self._drop(response_id)

    def delete(self, response_id: str) -> bool:
        """Drop a response, and the ids of its own items; what continues it goes on. False: there
        is none of that id."""
        self.expire()
        found = self._responses.get(response_id)
        if found is None:
            return False
        self._items.remove(found[0].entry)
        self._drop(response_id)
        return True

    def clear(self) -> None:
        for response_id in list(self._responses):
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        response, _ = self._responses.pop(response_id)
        if self._by_entry.get(response.entry) == response_id:
            del self._by_entry[response.entry]
        self._let_go(response.entry)
        self._count(-len(response.packed))
        twins = self._by_digest.get(response.entry.digest, [])
        if response_id in twins:
            twins.remove(response_id)
            if not twins:
                del self._by_digest[response.entry.digest]
        self._on_drop(response)

    def _hold(self, entry: Entry) -> None:
        """Count a holder of ``entry``: a response, or an entry that continues it."""
        new: list[Entry] = []
        for link in chain(entry):
            holders = self._holders.get(link, 0)
            self._holders[link] = holders + 1
            if holders:
                break
            new.append(link)
            self._count(link.size_bytes)
        for link in reversed(new):
            self._items.add(link)

    def _let_go(self, entry: Entry) -> None:
        for link in chain(entry):
            self._holders[link] -= 1
            if self._holders[link]:
                break
            del self._holders[link]
            self._items.remove(link)
            self._count(-link.size_bytes)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._tally.num_bytes += num_bytes


class PrivateResponses:
    """Responses that are not for the whole tenant (``store: false``), and the sessions' heads
    among them: those of one connection, or of all that a tenant asks for over HTTP."""

    def __init__(
        self, make_table: Callable[[Callable[[StoredResponse], None]], ResponseTable]
    ) -> None:
        """``make_table`` makes the table, given what is to hear of each response it drops."""
        heads: dict[str, str] = {}

        def dropped(response: StoredResponse) -> None:
            if heads.get(response.session.name) == response.id:
                del heads[response.session.name]

        self.heads = heads
        """The newest response's id, by the session's name."""
        self.table = make_table(dropped)
