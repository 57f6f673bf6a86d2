"""The journal as the server knows it, whatever it is kept in.

Every method waits for a disk or a network: none is called in the event loop. ``writer`` calls
``append`` from a thread of its own, everything else comes from readers' threads.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sessions.durable.call_states import CallState
from sessions.durable.conversations import Conversation
from sessions.journal.listing import ListAsked, ListedSession, ListPlace
from sessions.journal.members import Heard, Member, Presence
from sessions.journal.records import (
    SessionRecord,
    SpendTotal,
    StoredTurn,
    TurnRecord,
)
from sessions.journal.samples import Sample
from sessions.journal.shares import Share, Want
from sessions.journal.usage import UsageSums
from sessions.journal.usage_reading import UsageAsked, UsagePlace, UsageRow
from sessions.quotas import Draw, Drawn


class Owner(Protocol):
    """A server among those that share a journal."""

    def beat(self, presence: Presence | None = None, *, changed: bool = False) -> Heard:
        """Say that this server lives, and what it is in its cluster. ``changed``: the balancer is
        to look at once."""
        ...

    def join(self, presence: Presence) -> None:
        """Become a member of a cluster.

        Raises:
            ClusterRefused: it serves something else.
            AddressTaken: another one is there; it may be dead, and then is so a moment later.
        """
        ...

    def members(self, cluster: str) -> tuple[list[Member], int]:
        """The servers of a cluster, the dead ones too, and the database's time in milliseconds."""
        ...

    def addresses(self) -> dict[str, str]:
        """Where servers that stand in a cluster are reached, by their names."""
        ...

    def draw(self, tenant: str, draws: Sequence[Draw]) -> tuple[Drawn, ...]:
        """Take what there is of a tenant's limits, which all servers of a cluster draw on."""
        ...

    def wanted(self) -> list[tuple[str, str]]:
        """Tenant and name of this server's sessions that another one asks for."""
        ...

    def pop_settled(self) -> list[TurnRecord]:
        """Turns of dead servers that this one has settled since it was asked last, as it took
        their sessions over or drew on their accounts."""
        ...

    def claim_shares(self, tenant: str, wants: Sequence[Want]) -> tuple[Share, ...]:
        """Have this server spend of accounts that others draw on too (``shares``): what there is
        of what is asked for."""
        ...

    def return_share(self, tenant: str, name: str) -> None:
        """Give back this server's share of an account, of which nothing is spent any more."""
        ...

    def claim_request(self, tenant: str, request_id: str) -> bool:
        """Have this server alone begin the request's turn, until that is written or the id is
        freed; False: another server has the id."""
        ...

    def held_elsewhere(self, tenant: str, session: str) -> bool:
        """Another server that lives has the session. It is not asked to let go."""
        ...

    def request_elsewhere(self, tenant: str, request_id: str) -> bool:
        """Another server has the id."""
        ...

    def free_requests(self, tenant: str, ids: Sequence[str]) -> None:
        """Let others have request ids of which nothing came here."""
        ...

    def listen(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called, in another thread, when it is worth asking ``wanted``. A store
        that cannot tell never calls it."""
        ...


class Journal(Protocol):
    """All methods raise JournalError: ``JournalUnavailable`` if they may be called again."""

    @property
    def shared(self) -> bool:
        """Other servers append to it as well, so that sessions have to be claimed."""
        ...

    @property
    def damage(self) -> str | None:
        """Damage found beside serving; from then on nothing is read or written."""
        ...

    @property
    def ownership(self) -> "Owner | None":
        """Heartbeats and what others want, of one that is shared."""
        ...

    def look(self) -> None:
        """Find out whether turns could be written now. Waits for seconds at most, unless disk or
        network do not answer at all.

        Raises:
            JournalDisplaced: what is open is not what its path names.
            JournalError: they could not.
        """
        ...

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        """Write ended turns, all in one transaction, and settle them: usage goes to their
        accounts, their reservations go. It returns when they are durable. False: the server no
        longer owns the session, and of this turn nothing was written. A turn that is there
        already (a call that was repeated) is not written again and counts as written, unless
        another server has ended it.

        Args:
            reserved: as for ``reserve``, of other turns.

        Raises:
            JournalParentGone: what one of them stands on was deleted, or taken out of its
                conversation; nothing was written.
        """
        ...

    def reserve(self, reserved: Sequence[TurnRecord]) -> None:
        """Note what turns that run hold, each as the record of the failed turn that it becomes if
        its server dies; one that holds nothing is no longer noted. It waits for no disk: a power
        cut may take what was noted since the last ``append``, the death of this process
        nothing."""
        ...

    def reservations(self, tenant: str, session: str) -> list[TurnRecord]:
        """The reservations of the session's running turns."""
        ...

    def settle_left(self) -> list[TurnRecord]:
        """Called once at the start: what turns held whose server has died is spent, each turn
        has failed. Where servers share sessions a session's next owner does the same for it.
        Returns their records."""
        ...

    def session_running(
        self, tenant: str, request_id: str | None, response_id: str | None
    ) -> str | None:
        """The session in which the turn runs that this request began, or that has this response
        id, on whichever server."""
        ...

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """Become the session's owner, asking the present one to let go; None: there is no
        session of that name, and the first record makes it.

        Raises:
            JournalBusy: the owner lives and did not let go within ``wait_s``.
        """
        ...

    def release(self, tenant: str, sessions: Sequence[str], *, unasked: bool = False) -> None:
        """Let others own those that they ask for. One that this server has claimed again since it
        was asked stays its own, unless ``unasked``: then it lets go of all of them."""
        ...

    def session(self, tenant: str, name: str) -> SessionRecord | None:
        """The session's record; None: there is none of that name."""
        ...

    def account(self, tenant: str, name: str) -> SpendTotal:
        """The sums of an account; all zero for a name that nothing was added to."""
        ...

    def accounts_named(self, name: str) -> dict[str, SpendTotal]:
        """The accounts of that name, by tenant."""
        ...

    def accounts_of_policies(self) -> dict[tuple[str, str], SpendTotal]:
        """The accounts of tenants' days and months, and of keys, by tenant and name."""
        ...

    def clock_s(self) -> float:
        """The journal's clock, seconds since the epoch: the same for all of its servers."""
        ...

    def turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        """One row that can be named; of its links' parents nothing is read."""
        ...

    def ended_turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        """As ``turn``, also of one that left its usage only."""
        ...

    def turn_of_request(self, tenant: str, request_id: str) -> StoredTurn | None:
        """The row of the turn that this request began."""
        ...

    def turns_with_digest(self, tenant: str, digest: bytes, most: int) -> list[StoredTurn]:
        """Rows whose history has that digest, the newest first."""
        ...

    def turns_with_item(self, tenant: str, item_id: str, most: int) -> list[StoredTurn]:
        """Rows that brought an item of that id and can be named, the newest first."""
        ...

    def deleted(
        self, tenant: str, response_ids: Sequence[str], item_ids: Sequence[str]
    ) -> frozenset[str]:
        """Those of these responses that were deleted, and of these items that no response brought
        which can be named."""
        ...

    def chain(
        self, tenant: str, response_id: str, known: Callable[[str], bool] = lambda _: False
    ) -> list[StoredTurn]:
        """The row and all that its links stand on, the oldest first, across sessions; without
        those below the first one that is ``known``. Empty: no such row."""
        ...

    def header(self, digest: bytes) -> bytes:
        """The encoded header of that digest."""
        ...

    def session_turns(self, tenant: str, session: str) -> list[StoredTurn]:
        """All rows of a session's turns, the oldest first."""
        ...

    def last_turns(self, tenant: str, session: str, most: int) -> tuple[int, list[StoredTurn]]:
        """How many rows a session has, and the newest of them, the latest first."""
        ...

    def sessions(self, tenant: str | None = None) -> list[SessionRecord]:
        """Most recently used first; of all tenants if none is named."""
        ...

    def conversation(self, tenant: str, id_: str) -> Conversation | None:
        """The conversation; None: there is none of that id."""
        ...

    def put_conversation(
        self, tenant: str, conversation: Conversation, *, version: int | None
    ) -> bool:
        """Write it in the place of the one of that ``version``, None: of none. False: it is another
        one that is there. A turn that ends moves its own in ``append``."""
        ...

    def delete_conversation(self, tenant: str, id_: str) -> bool:
        """Delete the conversation; the turns in it stay. False: there is none."""
        ...

    def hide(self, tenant: str, response_id: str) -> bool:
        """The response can no longer be named or found; what continues it goes on."""
        ...

    def call_states(self, tenant: str, response_id: str) -> dict[str, CallState]:
        """States of a response's calls, by their ids, where anything was said of them."""
        ...

    def change_call(
        self,
        tenant: str,
        response_id: str,
        call_id: str,
        change: Callable[[CallState], CallState],
        session: str | None = None,
    ) -> CallState | None:
        """Change what was said about a call, with nobody else in between; it returns when that is
        durable. None: there is no such turn, or it was hidden.

        Args:
            session: it has to stand at the response.

        Raises:
            ApiError: it does not, or of ``change``; nothing was written.
        """
        ...

    def delete_session(self, tenant: str, name: str) -> tuple[str, ...]:
        """Delete its rows and every row that stands on one of them; returns the names of the
        other sessions that lost their head by that."""
        ...

    def expire(self, before_s: float) -> int:
        """Delete rows that are older and that no row which stays stands on; returns how many.
        Sessions that are older and have none go with their accounts and budgets, unless one that
        stays names them as its parent."""
        ...

    def listed(
        self, asked: ListAsked, after: ListPlace | None, most: int
    ) -> tuple[list[ListedSession], int | None]:
        """So many sessions at most behind ``after``, in the order that is asked for; and how many
        the query is about, None if they are more than ``listing.FEW``."""
        ...

    def listed_among(
        self, asked: ListAsked, names: Iterable[tuple[str, str]]
    ) -> list[ListedSession]:
        """The sessions among these (tenant and name) that are there and asked for, in order."""
        ...

    def session_tree(self, tenant: str, name: str, most: int) -> list[tuple[int, ListedSession]]:
        """A session and those below it, so many at most, and how deep each stands; each behind the
        one that it is a part of. Empty: there is none of that name."""
        ...

    def usage(
        self, asked: UsageAsked, after: UsagePlace | None, most: int
    ) -> tuple[list[UsageRow], UsageSums]:
        """Sums of usage, a row for each bucket and value of the group, so many at most of those
        behind ``after``; and the sum over all of the stretch."""
        ...

    def usage_labels(self, tenant: str | None) -> list[str]:
        """Names of labels that usage is counted under (None: of all tenants)."""
        ...

    def cursor_secret(self) -> bytes:
        """The key that cursors are sealed with: the same at every server of the journal, and
        over restarts."""
        ...

    def keep_samples(self, kept: Sequence[Sample]) -> None:
        """Write what is to be shown of this server's time, in place of what it wrote of the same
        stretches before, and delete what is older than ``samples.KEPT`` allows."""
        ...

    def samples(self, tenant: str, width_s: int, first: int, *, own: bool) -> list[Sample]:
        """Samples of all servers from that stretch on, the oldest first; ``own`` False: without
        this one's, which begins anew when it is started."""
        ...

    def close(self) -> None:
        """Leave it in a state that needs no repair."""
        ...
