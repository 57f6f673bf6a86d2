"""What one call on a connection asks its caller to do.

``sessions.turns.connection`` decides, ``sessions.wire.hub`` carries out; these are the words
between them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from runtime.messages import EngineMessage
from sessions.durable.ledger import TurnReport
from sessions.durable.turn_logs import TurnLog
from sessions.turns.commits import Commit, Reserve
from sessions.turns.references import Whole
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.wanted import Wanted
from tools_api.grammar import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCheck:
    """A grammar to be tried in the probe before its turn may start."""

    check_id: str
    """To be handed back to ``Connection.grammar_checked``."""
    spec: GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A turn to be planned in a thread of its own, or its request to be read first: it is long."""

    planning_id: str
    """To be handed back to ``Connection.planned``."""
    work: Callable[[], TurnPlan | Whole]
    """Reads only what never changes. May raise, ApiError for what the client did wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Something to be asked of the journal before a request can be planned."""

    lookup_id: str
    """To be handed back to ``Connection.recalled``."""
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A turn that has ended, and its terminal event."""

    response_id: str
    terminal: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something has changed about a turn that another connection runs or follows."""

    connection_id: str
    """The connection to be told, with ``Connection.look``."""
    log: TurnLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the caller must do after one call, in the order of the fields."""

    frames: tuple[bytes, ...] = ()
    """Text frames for this client, in order. To be dropped if the socket is gone."""
    requests: tuple[EngineMessage, ...] = ()
    """For the engine, in order. Outputs of a GenerationRequest come back to the connection
    that issued it; after ``close()`` they may be dropped."""
    grammar_checks: tuple[GrammarCheck, ...] = ()
    withdrawn_checks: tuple[str, ...] = ()
    """Ids of grammar checks whose turn is gone."""
    plannings: tuple[Planning, ...] = ()
    """At most one of a connection is under way at a time. To be given up with the socket."""
    reserves: tuple[Reserve, ...] = ()
    """To be noted in the journal; nobody waits for it."""
    commits: tuple[Commit, ...] = ()
    """To be written to the journal, in order; the verdicts go to ``Connection.committed``, also
    when the client is gone."""
    lookups: tuple[Lookup, ...] = ()
    freed: tuple[str, ...] = ()
    """Request ids of which nothing came here: other servers may start turns with them."""
    wake: tuple[str, ...] = ()
    """Ids of connections whose ``resume()`` must be called next (a named session became
    free for a turn that waits there). May name this connection."""
    cancels: tuple[tuple[str, str], ...] = ()
    """Connection and response id of turns to be ended there, with ``Connection.cancel``."""
    notices: tuple[Notice, ...] = ()
    """May name this connection. One that is gone needs no telling."""
    finished: tuple[TurnReport, ...] = ()
    """Turns that ended in this call, for metrics. Each is already logged."""
    ended: tuple[Ended, ...] = ()
    """The same turns, for who waits for their end."""
    close: int | None = None
    """Close the socket with this code once ``frames`` are written."""


@dataclass(slots=True)
class Outbox:
    """Effects as they gather during one call; the fields are those of ``Effects``."""

    frames: list[bytes] = field(default_factory=list)
    requests: list[EngineMessage] = field(default_factory=list)
    grammar_checks: list[GrammarCheck] = field(default_factory=list)
    withdrawn_checks: list[str] = field(default_factory=list)
    plannings: list[Planning] = field(default_factory=list)
    reserves: list[Reserve] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)
    wake: list[str] = field(default_factory=list)
    cancels: list[tuple[str, str]] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    finished: list[TurnReport] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def take(self, close: int | None) -> Effects:
        """What gathered, in the order in which it came; nothing is left."""
        taken = Effects(
            frames=tuple(self.frames),
            requests=tuple(self.requests),
            grammar_checks=tuple(self.grammar_checks),
            withdrawn_checks=tuple(self.withdrawn_checks),
            plannings=tuple(self.plannings),
            reserves=tuple(self.reserves),
            commits=tuple(self.commits),
            lookups=tuple(self.lookups),
            freed=tuple(self.freed),
            wake=tuple(self.wake),
            cancels=tuple(self.cancels),
            notices=tuple(self.notices),
            finished=tuple(self.finished),
            ended=tuple(self.ended),
            close=close,
        )
        for gathered in _GATHERED:
            getattr(self, gathered).clear()
        return taken


_GATHERED = tuple(each.name for each in fields(Outbox))
