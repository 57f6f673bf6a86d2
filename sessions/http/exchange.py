"""Interfaces of a request to the code that answers it, and of an answer to the code that carries
it.

A ``Handler`` is a coroutine, called once for each request that has been let in, its body read. It
returns its answer, or gives it in pieces through the ``Exchange``; a client that leaves cancels
it. Knows neither sockets nor paths.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from sessions.http.message import HttpRequest, HttpResponse
from sessions.tenants import Principal


class Exchange(Protocol):
    """Takes an answer in pieces. Never raises; does nothing once the client is gone."""

    @property
    def unsent_bytes(self) -> int:
        """The written bytes that the client has not taken yet."""
        ...

    def body_read(self) -> None:
        """The request's body is not needed any more, or counts elsewhere from now on."""
        ...

    def look_at_clock(self, look: Callable[[float], None]) -> None:
        """Call ``look`` about once a second with the time, until the answer is there."""
        ...

    def start_stream(self, content_type: str) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request with its body, as a handler gets it."""

    principal: Principal
    request: HttpRequest
    argument: str
    """The part of the path where its route has braces."""
    body: bytes
    exchange: Exchange
    request_id: str = ""
    """The request's name in its answer and in the log."""


Handler = Callable[[Call], Awaitable[HttpResponse | None]]
"""Returns the answer, None if it was given in pieces. May raise ApiError, which is answered in its
route's words."""


def at_once(answer: Callable[[Call], HttpResponse]) -> Handler:
    """A handler of what can be answered without waiting."""

    async def handle(call: Call) -> HttpResponse:
        return answer(call)

    return handle


def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Let a coroutine run at once, as far as it gets, and then as a task; None: it is over. So who
    needs not wait is answered in the same turn of the event loop."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_Rest(work, waits_for))


class _Rest(Coroutine[Any, Any, None]):
    """A coroutine that has begun, for the task that goes on with it: it is told first what is
    waited for already. (A task that is cancelled before that raises in the coroutine all the
    same.)"""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for, self._told = waits_for, False

    def send(self, value: Any) -> Any:
        if self._told:
            return self._work.send(value)
        waits_for, self._waits_for, self._told = self._waits_for, None, True
        return waits_for

    def throw(self, *error: Any) -> Any:
        self._told = True
        try:
            return self._work.throw(*error)
        finally:
            del error  # it has this frame in its traceback

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()
