"""Questions of memory to the journal, and their answers: words between the store and the
journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sessions.durable.conversations import Conversation
from sessions.journal.adoption import LoadedChain
from sessions.journal.encoding import TurnBody
from sessions.journal.records import SessionRecord, SpendTotal, StoredTurn
from sessions.journal.shares import Share, Want
from sessions.quotas import Draw, Drawn
from tools_api.items import Item


@dataclass(slots=True, kw_only=True)
class Wanted:
    """The names in a request that memory lacks."""

    session: str | None = None
    """The one the turn will run in; None: it is claimed, or to be made, or that of ``response``."""
    parent: str | None = None
    """A session that the turn's own is to be a part of."""
    head_of: str | None = None
    """A session whose newest response is wanted, and that nobody claims."""
    with_head: bool = False
    """The session's newest response is wanted too."""
    responses: list[str] = field(default_factory=list)
    """The one that is continued first."""
    owns_first: bool = False
    """The turn will run in the session of the first of them."""
    items: tuple[Item, ...] = ()
    request_id: str | None = None
    """A turn that this id may have started."""
    takes_id: bool = False
    """Whether this server is to start the turn, and no other, if nobody has."""
    ended: str | None = None
    """A response whose last event is wanted."""
    histories: list[tuple[int, bytes]] = field(default_factory=list)
    """Lengths of beginnings of ``items`` that a response may have said, and their digests; the
    longest first."""

    item_ids: tuple[str, ...] = ()
    """The ids of items that are referred to; nothing else is wanted then."""
    shares: tuple[Want, ...] = ()
    """The shares of accounts that other servers draw on too; nothing else is wanted then."""
    draws: tuple[Draw, ...] = ()
    """Draws on limits that other servers draw on too; nothing else is wanted then."""
    conversation: str | None = None
    """A conversation that is to go on; nothing else is wanted then."""
    known: tuple[str, ...] = ()
    """Responses in memory that may have been deleted at another server; nothing but
    ``known_items`` is wanted then."""
    known_items: tuple[str, ...] = ()
    """The ids of items in memory that may have been deleted with their responses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recalled:
    """The journal's answer to ``Wanted``."""

    sessions: tuple[tuple[SessionRecord, SpendTotal], ...] = ()
    """Sessions' records, with what each and all below it spent; a session's parents before it."""
    chains: tuple[tuple[LoadedChain, bytes], ...] = ()
    """Loaded chains, with each its response object, deflated."""
    ended: tuple[StoredTurn, TurnBody] | None = None
    """The turn whose last event is wanted."""
    items: Mapping[str, Item] = field(default_factory=dict)
    """Items that are referred to, by their ids."""
    shares: tuple[Share, ...] = ()
    """The shares that were given; it is for who asked."""
    draws: tuple[Drawn, ...] = ()
    """Amounts of limits that were given; for whoever asked."""
    claimed: tuple[str, ...] = ()
    """Sessions that this server has claimed for it."""
    head_id: str | None = None
    """The newest response of a session that was not claimed."""
    taken_id: str | None = None
    """A request id whose turn no other server starts until it is freed."""
    conversation: Conversation | None = None
    """The one that is to go on, if it is there."""
    deleted: frozenset[str] = frozenset()
    """The ids of ``known`` and ``known_items`` that can be named no more."""
