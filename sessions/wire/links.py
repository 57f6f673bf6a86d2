"""Clients as the hub knows them: a connection without its socket, and where its frames go."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sessions.durable.tenant import Tenant
from sessions.turns.connection import Connection
from sessions.turns.effects import Effects


class Outlet(Protocol):
    """Where a client's frames go."""

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        """Send text frames, then close with the code if there is one. Never raises; does
        nothing once the client is gone."""


class _Nobody:
    """Where the frames of a client that is gone go."""

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        pass


NOBODY = _Nobody()


@dataclass(slots=True, eq=False)
class Link:
    """One client, from ``Hub.open`` to ``Hub.disconnected``."""

    id: str
    tenant: Tenant
    connection: Connection
    outlet: Outlet
    gone: bool = False
    planner: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One plan of a connection is worked out at a time, so that others get theirs in between."""
    planned: str | None = None
    """The question whose plan was begun last."""


Call = tuple[Link, Callable[[], Effects]]
