"""What a request names that memory lacks, before anything says that it is not there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sessions.durable.response_table import StoredResponse
from sessions.durable.store import ConnectionStore
from sessions.durable.transcript import ROOT_DIGEST, by_model, roll
from sessions.journal.shares import Want
from tools_api.items import Item
from tools_api.requests import CreateRequest


@dataclass(slots=True, kw_only=True)
class Wanted:
    """What a request names and memory lacks."""

    session: str | None = None
    """The one the turn will run in; None: it is claimed, or to be made, or that of ``response``."""
    parent: str | None = None
    """A session that the turn's own is to be a part of."""
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
    """If it has not, this server is to start it, and no other."""
    ended: str | None = None
    """A response whose last event is wanted."""
    histories: list[tuple[int, bytes]] = field(default_factory=list)
    """Lengths of beginnings of ``items`` that a response may have said, and their digests; the
    longest first."""

    item_ids: tuple[str, ...] = ()
    """Of items that are referred to; nothing else is wanted then."""
    shares: tuple[Want, ...] = ()
    """Of accounts that other servers draw on too; nothing else is wanted then."""

    def __bool__(self) -> bool:
        turn = self.request_id or self.ended or self.shares or self.item_ids
        return bool(self.session or self.parent or self.responses or self.histories or turn)


def wanted_by(
    request: CreateRequest, visible: ConnectionStore, digests: Sequence[bytes] | None = None
) -> Wanted:
    """What has to be asked of the journal before the request can be planned.

    Args:
        digests: of each prefix of the input, if they are known.
    """
    wanted = Wanted()
    name = request.keepwarm.session
    session = None if name is None else visible.claimed_session(name)
    if name is not None and session is None:
        wanted.session = name
    above = request.keepwarm.parent_session
    if above is not None and visible.known_session(above) is None:
        wanted.parent = above
    parent: StoredResponse | None = None
    if request.previous_response_id is not None:
        parent = visible.response(request.previous_response_id)
        if parent is None:
            wanted.responses.append(request.previous_response_id)
            wanted.owns_first = name is None
    else:
        if digests is None:
            digests = list(accumulate(request.input, roll, initial=ROOT_DIGEST))
        found = visible.history(request.input, digests)
        parent, length = (None, 0) if found is None else found
        wanted.items = request.input
        wanted.histories = _histories(request.input, length, digests)
        wanted.owns_first = bool(wanted.histories) and name is None
        if parent is None:
            wanted.with_head = name is not None
            if session is not None and visible.lacks_head(session) and session.head_id is not None:
                wanted.responses.append(session.head_id)
    if parent is not None and name is None:
        own = parent.session.name
        wanted.session = own if visible.claimed_session(own) is None else None
    options = request.prompt_cache_options
    other = None if options is None else options.comparison_response_id
    if other is not None and visible.response(other) is None:
        wanted.responses.append(other)
    return wanted


def _histories(
    items: Sequence[Item], known: int, digests: Sequence[bytes]
) -> list[tuple[int, bytes]]:
    """Beginnings longer than ``known`` that end in what a model says."""
    lengths = range(len(items), known, -1)
    return [(length, digests[length]) for length in lengths if by_model(items[length - 1])]
