"""Sessions and responses by id.

Everything is kept per tenant; a lookup never sees another tenant's state, nor what a
connection keeps to itself (``store: false``). Bounded by count, by bytes and by age; the
clock is handed in.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.messages import ReleaseSession
from tools_api.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session as the dashboard shows it. Money in nano-dollars."""

    session: str
    tenant: str
    state: str
    """``idle``, ``running``, ``waiting_for_tools`` or ``closed``."""
    turns: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    forced_tokens: int
    cost: int
    saved: int
    budget_left: dict[str, int]
    """``input_uncached``, ``output``: tokens, ``cost``: nano-dollars; only those limited."""
    idle_s: float
    """Since the last change of state."""


class Store:
    """Shared by all connections of a server; only the event loop touches it."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float]) -> None:
        raise NotImplementedError

    def engine_lost(self) -> None:
        """The engine died and forgot all sessions: from here on no request names an earlier
        base. Called once per death, before ``Connection.engine_died``."""
        raise NotImplementedError

    def sweep(self) -> tuple[ReleaseSession, ...]:
        """Drop what is older than its time to live; the releases go to the engine. To be
        called every few seconds."""
        raise NotImplementedError

    def sessions(self) -> list[SessionView]:
        """All live sessions of all tenants, most recently active first."""
        raise NotImplementedError
