"""What a request is to the code that answers it, and an answer to the code that carries it.

A ``Handler`` is called once for each request that has been let in, its body read. It answers
through the ``Exchange`` it is given: at once, or later, in which case it returns what the
connection has to keep informed meanwhile. Knows neither sockets nor paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sessions.http.message import HttpRequest, HttpResponse
from sessions.tenants import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request."""

    principal: Principal
    request: HttpRequest
    argument: str
    """What stands in the path where its route has braces."""
    body: bytes


class Exchange(Protocol):
    """Takes one answer: a whole one, or a head and pieces. Never raises; does nothing once
    the client is gone."""

    @property
    def unsent_bytes(self) -> int:
        """Of what was written, that which the client has not taken yet."""
        ...

    def body_read(self) -> None:
        """The request's body is not needed any more, or counts elsewhere from now on."""
        ...

    def answer(self, response: HttpResponse) -> None:
        """A whole answer; the exchange is over."""
        ...

    def begin(self, content_type: str) -> None:
        """The head of an answer whose length nobody knows yet; travels with its first piece."""
        ...

    def write(self, piece: bytes) -> None:
        """More of an answer that has begun, in one write."""
        ...

    def finish(self, piece: bytes = b"") -> None:
        """The last of it; the exchange is over."""
        ...

    def cut(self) -> None:
        """Drop the client without a word; the exchange is over."""
        ...


class Pending(Protocol):
    """An answer that is still to come."""

    def client_gone(self) -> None:
        """Nobody waits for it any more; the exchange must not be used again."""
        ...

    def tick(self, now: float) -> None:
        """Look at the clock. Called about once a second."""
        ...


Handler = Callable[[Call, Exchange], Pending | None]
"""May raise ApiError, which is answered in its route's words. Returns None if it has answered."""


def at_once(answer: Callable[[Call], HttpResponse]) -> Handler:
    """A handler of what can be answered without waiting."""

    def handle(call: Call, exchange: Exchange) -> None:
        exchange.answer(answer(call))

    return handle
