"""Effects of one call on a connection, for its caller to carry out, and the questions that requests
wait at.

``sessions.turns.connection`` decides, ``sessions.wire.hub`` carries out; these are the words
between them. A question that is asked is answered once with ``Connection.answer``, by its id, with
a value or an exception. What is ``asked`` says who answers, and with what:

- ``Wanted``: the journal, with ``Recalled``, which is in memory by then;
- ``Work``: whoever has a thread for it, with what the call gives;
- ``GrammarSpec``: the probe, with ``GrammarRefused`` or None;
- ``TurnRecord``: the journal, with a ``Verdict``;
- ``ServerReady``: the ground, with whether a turn may begin, after a while if not at once;
- ``SessionTurn``: the session's other turns, by a ``SessionGranted``; it is not among the effects;
- ``EngineOutputs``: the turn itself, when it has ended; it is not among the effects either.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from runtime.messages import EngineMessage
from sessions.durable.ledger import TurnReport
from sessions.durable.turn_logs import EventLog
from sessions.journal.records import TurnRecord
from sessions.turns.wanted import Wanted
from tools_api.grammar import GrammarSpec


@dataclass(frozen=True, slots=True)
class Work:
    """A call that takes too long for the event loop."""

    call: Callable[[], Any]
    """Reads only what never changes. May raise, ApiError for what the client did wrong."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """The request's turn in the session that it names."""


@dataclass(frozen=True, slots=True)
class EngineOutputs:
    """A question: all that the engine says of a turn, to its end."""


@dataclass(frozen=True, slots=True)
class ServerReady:
    """Whether the server stands, so that what a turn leaves can be kept."""


Asked = Wanted | Work | GrammarSpec | TurnRecord | ServerReady | SessionTurn | EngineOutputs


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Something that a request waits for: awaiting it yields it, and what is sent is the answer."""

    id: str
    asked: Asked

    def __await__(self) -> Generator["Question", Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHold:
    """A running turn's hold from now on, as the record of the failed turn that it becomes if the
    server dies."""

    record: TurnRecord
    urgent: bool
    """It holds more output than was noted, or nothing any more, so that whoever takes the session
    over does not count it as cut short; otherwise this may go with the next thing written."""


@dataclass(frozen=True, slots=True)
class RequestIdFreed:
    """Nothing came of a request id here: other servers may start turns with it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SessionGranted:
    """A session has become free for a request of another connection, or of this one."""

    connection_id: str
    question_id: str
    """The question that is to be answered with None."""


@dataclass(frozen=True, slots=True)
class TurnCancel:
    """A turn of another connection is to be ended, with ``Connection.cancel``."""

    connection_id: str
    response_id: str


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """Something has changed about a turn that another connection runs or follows."""

    connection_id: str
    """The connection to be told, with ``Connection.turn_changed``; it may be this one."""
    log: EventLog


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn that has ended, and is logged."""

    report: TurnReport
    terminal: bytes
    """The turn's last event."""


class Effects(NamedTuple):
    """Orders for the caller after one call, in the order of the fields."""

    frames: tuple[bytes, ...] = ()
    """Text frames for this client, in order. To be dropped if the socket is gone."""
    requests: tuple[EngineMessage, ...] = ()
    """For the engine, in order. Outputs of a GenerationRequest come back to the connection
    that issued it; after ``close()`` they may be dropped."""
    withdrawn: tuple[str, ...] = ()
    """Ids of questions that nobody waits at any more; an answer does no harm."""
    notes: tuple[TurnHold | RequestIdFreed, ...] = ()
    """Notes for the journal, in order; nobody waits for them."""
    questions: tuple[Question, ...] = ()
    """To be answered also when the client is gone; records are written in order."""
    others: tuple[SessionGranted | TurnCancel | TurnChanged, ...] = ()
    """Effects on other connections, and on this one; one that is gone needs no telling."""
    ended: tuple[TurnEnded, ...] = ()
    """Turns that ended in this call, for whoever counts them or waits for their end."""
    close: int | None = None
    """Close the socket with this code once ``frames`` are written."""


@dataclass(slots=True)
class Outbox:
    """Effects as they gather during one call; the fields are those of ``Effects`` but the last."""

    frames: list[bytes] = field(default_factory=list)
    requests: list[EngineMessage] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    notes: list[TurnHold | RequestIdFreed] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    others: list[SessionGranted | TurnCancel | TurnChanged] = field(default_factory=list)
    ended: list[TurnEnded] = field(default_factory=list)

    def collect(self, close: int | None) -> Effects:
        """The effects that gathered, in the order in which they came; nothing is left."""
        gathered = _LISTS(self)
        taken = Effects._make((*map(tuple, gathered), close))
        for each in gathered:
            each.clear()
        return taken


_LISTS: Callable[[Outbox], tuple[list[Any], ...]] = attrgetter(*Effects._fields[:-1])
