"""Reading what one request names from the journal, beside the event loop.

Made for one tenant and one request; what it finds is put into memory by
``sessions.turns.recollection``. Sessions are claimed on the way, and stay in hand until that has
happened or the reading has failed.

Always true: a tenant is told nothing of what is another's.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sessions.durable.packing import pack
from sessions.durable.transcript import holds
from sessions.journal.adoption import LoadedChain, Loader, link_up
from sessions.journal.encoding import TurnBody, decode_turn
from sessions.journal.errors import JournalBusy, JournalElsewhere
from sessions.journal.journal import Journal, Owner
from sessions.journal.records import (
    SessionRecord,
    SpendTotal,
    StoredTurn,
    new_session,
    options_kept,
    tree_account,
)
from sessions.turns.wanted import Recalled, Wanted
from tools_api.events import response_of

_MAX_TWINS = 8


class Claims:
    """Sessions that were claimed, or are about to be, and are not in memory yet. Threads share
    it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        """How often each session is claimed, by tenant and name."""
        self._lock = threading.Lock()

    @property
    def all(self) -> list[tuple[str, str]]:
        """Tenant and name of each."""
        return list(self._counts)

    def __contains__(self, session: object) -> bool:
        return session in self._counts

    def add(self, tenant: str, name: str) -> None:
        """The session is about to be claimed."""
        with self._lock:
            self._counts[tenant, name] += 1

    def remove(self, tenant: str, names: Sequence[str]) -> None:
        """The sessions are in memory now, or will not be."""
        with self._lock:
            for name in names:
                self._counts[tenant, name] -= 1
                if not self._counts[tenant, name]:
                    del self._counts[tenant, name]


class Recalling:
    """One reading. Waits for disks, and for no other server."""

    def __init__(
        self,
        tenant: str,
        wanted: Wanted,
        *,
        journal: Journal,
        loader: Loader,
        claims: Claims,
        max_item_bytes: int,
    ) -> None:
        """``max_item_bytes``: of all items that the request refers to together."""
        self._tenant = tenant
        self._wanted = wanted
        self._journal = journal
        self._loader = loader
        self._claims = claims
        self._max_item_bytes = max_item_bytes
        self._claimed: list[str] = []
        self._sessions: list[SessionRecord] = []
        self._chains: list[LoadedChain] = []

    def read(self) -> Recalled:
        """Ask the journal. Raises as ``Recollection.read``."""
        try:
            recalled = self._read()
        except BaseException as error:
            if isinstance(error, JournalBusy) and not isinstance(error, JournalElsewhere):
                self._wanted.session = self._wanted.session or self._claimed[-1]
            self._claims.remove(self._tenant, self._claimed)
            raise
        return replace(recalled, claimed=tuple(self._claimed))

    def _read(self) -> Recalled:
        tenant, wanted, journal = self._tenant, self._wanted, self._journal
        if wanted.shares or wanted.draws:
            ownership = journal.ownership
            assert ownership is not None
            if wanted.shares:
                return Recalled(shares=ownership.claim_shares(tenant, wanted.shares))
            return Recalled(draws=ownership.draw(tenant, wanted.draws))
        if wanted.conversation is not None:
            return Recalled(conversation=journal.conversation(tenant, wanted.conversation))
        if wanted.known or wanted.known_items:
            return Recalled(deleted=journal.deleted(tenant, wanted.known, wanted.known_items))
        if wanted.item_ids:
            most = self._max_item_bytes
            return Recalled(items=self._loader.items(tenant, wanted.item_ids, most))
        ended, taken_id = None, None
        if wanted.request_id or wanted.ended:
            if journal.ownership is None:
                ended = self._ended()
            else:
                ended, taken_id = self._anywhere(journal.ownership)
        if wanted.session is not None:
            self._claim(wanted.session)
        self._load_chains()
        head_id = None
        if wanted.head_of is not None:
            head_id = self._session(wanted.head_of).head_id
            if head_id is not None:
                self._add(head_id)
        if wanted.with_head and self._sessions and self._sessions[0].head_id is not None:
            self._add(self._sessions[0].head_id)
        if wanted.parent is not None:
            self._sessions.append(self._session(wanted.parent))
        return Recalled(
            sessions=tuple(self._with_parents()),
            chains=tuple(
                (chain, pack(response_of(chain.head.body.terminal))) for chain in self._chains
            ),
            ended=ended,
            head_id=head_id,
            taken_id=taken_id,
        )

    def _load_chains(self) -> None:
        """Load the chains of the responses and of the history, with their sessions where a turn is
        to come in them."""
        wanted = self._wanted
        for n, response_id in enumerate(wanted.responses):
            chain = self._add(response_id)
            if chain is not None and n == 0 and wanted.owns_first:
                self._claim(chain.head.row.session)
        chain = self._history()
        if chain is not None:
            wanted.with_head = False
            self._chains.append(chain)
            if wanted.owns_first:
                self._claim(chain.head.row.session)

    def _anywhere(self, own: Owner) -> tuple[tuple[StoredTurn, TurnBody] | None, str | None]:
        """The turn's end, on whichever server it ran, or the request id that nobody has used.

        Raises:
            JournalElsewhere: it has not ended; its server lives.
        """
        id_ = self._wanted.request_id
        if id_ is None or not self._wanted.takes_id:
            elsewhere = id_ is not None and own.request_elsewhere(self._tenant, id_)
            return self._ended_anywhere(own, elsewhere), None
        mine = own.claim_request(self._tenant, id_)
        try:
            ended = self._ended_anywhere(own, not mine)
        except BaseException:
            own.free_requests(self._tenant, [id_])
            raise
        if ended is None:
            return None, id_
        own.free_requests(self._tenant, [id_])
        return ended, None

    def _ended_anywhere(self, own: Owner, elsewhere: bool) -> tuple[StoredTurn, TurnBody] | None:
        """``elsewhere``: another server has the request's id."""
        tenant, wanted = self._tenant, self._wanted
        # What a turn holds is asked for before its record: it has one of them while it has an id.
        running = self._journal.session_running(tenant, wanted.request_id, wanted.ended)
        ended = self._ended()
        if ended is None and running is not None:  # it ends there, or has died with its server
            if own.held_elsewhere(tenant, running):
                raise JournalElsewhere(f"session {running!r} is another server's")
            try:
                self._claim(running)
            except JournalBusy as error:
                raise JournalElsewhere(str(error)) from error
            ended = self._ended()
        if ended is None and elsewhere:
            raise JournalElsewhere(f"request {wanted.request_id!r} is another server's")
        return ended

    def _ended(self) -> tuple[StoredTurn, TurnBody] | None:
        row = None
        if self._wanted.request_id is not None:
            row = self._journal.turn_of_request(self._tenant, self._wanted.request_id)
        elif self._wanted.ended is not None:
            row = self._journal.ended_turn(self._tenant, self._wanted.ended)
        return None if row is None else (row, decode_turn(row))

    def _with_parents(self) -> list[tuple[SessionRecord, SpendTotal]]:
        line: list[SessionRecord] = []
        for each in self._sessions:
            record: SessionRecord | None = each
            while record is not None and record not in line:
                line.append(record)
                parent = options_kept(record.options).parent
                record = None if parent is None else self._session(parent)
        return [
            (record, self._journal.account(record.tenant, tree_account(record.name)))
            for record in reversed(line)
        ]

    def _claim(self, name: str) -> None:
        """Have the session for this server, and read it."""
        self._claimed.append(name)
        self._claims.add(self._tenant, name)
        found = self._journal.claim(self._tenant, name, 0.0)
        self._sessions.append(found or self._session(name))

    def _session(self, name: str) -> SessionRecord:
        """A session's record. One without a row may have sessions below it that have spent."""
        return self._journal.session(self._tenant, name) or new_session(self._tenant, name)

    def _add(self, response_id: str) -> LoadedChain | None:
        chain = self._loader.load(self._tenant, response_id)
        if chain is not None:
            self._chains.append(chain)
        return chain

    def _history(self) -> LoadedChain | None:
        """The chain of the response which said most of the input."""
        for length, digest in self._wanted.histories:
            for response_id in self._loader.with_history(self._tenant, digest, _MAX_TWINS):
                chain = self._loader.load(self._tenant, response_id)
                if chain is None or chain.foreign is not None:
                    continue
                if holds(link_up(chain.turns, lambda _: None), self._wanted.items[:length]):
                    return chain
        return None
