"""One client's WebSocket connection without the socket: frames in, frames and requests out.

It knows lanes, the order of turns, which response a turn continues and when the connection
must end. It does no I/O: each call returns ``Effects``, which ``sessions.hub`` and
``sessions.server`` carry out. Tokens become events in ``sessions.turn``; what outlives the
connection is in ``sessions.store``.

Always true: a turn that sent ``response.created`` sends exactly one terminal event, unless
the client is gone; a request that fails before that gets exactly one ``error``.
"""

from dataclasses import dataclass

from runtime.messages import EngineMessage, SequenceOutput
from sessions.ledger import TurnReport
from sessions.service import Service
from tools_api.grammar import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCheck:
    """A grammar to be tried in the probe before its turn may start."""

    check_id: str
    """To be handed back to ``Connection.grammar_checked``."""
    spec: GrammarSpec
    param: str
    """Path of the offending request field, for the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the caller must do after one call, in the order of the fields."""

    frames: tuple[bytes, ...] = ()
    """Text frames for this client, in order. To be dropped if the socket is gone."""
    requests: tuple[EngineMessage, ...] = ()
    """For the engine, in order. Outputs of a GenerationRequest come back to the connection
    that issued it, also after ``close()``."""
    grammar_checks: tuple[GrammarCheck, ...] = ()
    wake: tuple[str, ...] = ()
    """Ids of connections whose ``resume()`` must be called next (a named session became
    free for a turn that waits there). May name this connection."""
    finished: tuple[TurnReport, ...] = ()
    """Turns that ended in this call, for metrics. Each is already logged."""
    close: int | None = None
    """Close the socket with this code once ``frames`` are written."""


class Connection:
    """Not thread-safe; all connections of a service live in one event loop."""

    def __init__(self, *, connection_id: str, tenant: str, service: Service) -> None:
        raise NotImplementedError

    @property
    def num_active(self) -> int:
        """Turns between ``response.created`` and their terminal event."""
        raise NotImplementedError

    def receive(self, frame: str | bytes) -> Effects:
        """Take one client frame (protocol section 2). Never raises for what a client sent."""
        raise NotImplementedError

    def output(self, output: SequenceOutput) -> Effects:
        """Take what one engine step gave one of this connection's requests. After ``close()``
        frames are empty, but requests (releases) may follow."""
        raise NotImplementedError

    def grammar_checked(self, check_id: str, refusal: str | None) -> Effects:
        """Take the probe's verdict; ``refusal`` is the reason in words, None if it compiles.
        An unknown ``check_id`` (its turn is gone) is ignored."""
        raise NotImplementedError

    def resume(self) -> Effects:
        """Start turns that waited for a named session; called when ``Effects.wake`` says so."""
        raise NotImplementedError

    def engine_died(self) -> Effects:
        """Fail all running turns. The hub has called ``service.store.engine_lost()`` before,
        once for all connections; it sends the returned requests when the engine is back."""
        raise NotImplementedError

    def tick(self) -> Effects:
        """Look at the clock: an idle connection beyond its age limit is closed with 1001, a
        busy one at its next turn boundary. To be called about once a second."""
        raise NotImplementedError

    def drain(self) -> Effects:
        """Shut down gently: running turns finish, waiting creates are answered with
        ``server_is_overloaded``, then the socket closes with 1012."""
        raise NotImplementedError

    def close(self) -> Effects:
        """The client is gone: cancel its turns and forget what was local to it. Idempotent."""
        raise NotImplementedError
