"""A session does one thing at a time: whoever comes second waits, and nobody waits for itself.

Always true: what could only wait for ever (a second run inside an open stream of the same
session, a tool that calls the session that runs it) is a RuntimeError instead.
"""

import asyncio
import contextvars
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

Event = TypeVar("Event")
CALLER: contextvars.ContextVar[object] = contextvars.ContextVar("keepwarm_caller", default=None)
"""The task that asks, where that is not the running one: the thread of a synchronous client."""
_INSIDE: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar(
    "keepwarm_inside", default=()
)


class Occupancy:
    """Whose turn it is in one session."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: object = None
        self._stream: weakref.ref[object] | None = None

    @property
    def left(self) -> bool:
        """Its stream was left, and comes to its end soon."""
        return self._stream is not None and self._stream() is None

    def inside(self) -> contextvars.Context:
        """A context for the session's tools and hooks, in which it knows them again."""
        context = contextvars.copy_context()
        context.run(_INSIDE.set, (*_INSIDE.get(), id(self)))
        context.run(CALLER.set, None)  # each tool asks for itself, not for who began the run
        return context

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Have the session to oneself.

        Raises:
            RuntimeError: its present owner waits for the caller.
        """
        self._renew()
        caller = CALLER.get() or asyncio.current_task()
        if id(self) in _INSIDE.get():
            raise RuntimeError(
                "a tool or a hook called the session that runs it, which waits for it: give it "
                "a fork() or a child() of the session"
            )
        streaming = self._stream is not None and self._stream() is not None
        if self._lock.locked() and streaming and self._owner == caller:
            raise RuntimeError("a stream of this session is still open: finish or close it first")
        async with self._lock:
            self._owner = caller
            try:
                yield
            finally:
                self._owner = self._stream = None

    def _renew(self) -> None:
        """Begin anew in a further event loop: a lock is of the loop in which somebody waited, and
        nobody waits in one that does not run, or that stayed behind in a fork of the process."""
        loop, process = asyncio.get_running_loop(), os.getpid()
        runs = process == self._process and self._loop is not None and self._loop.is_running()
        if loop is self._loop or runs:
            return
        self._loop, self._lock, self._process = loop, asyncio.Lock(), process
        self._owner = self._stream = None

    def stream(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """``events`` as a stream that has the session from its first event to its last."""
        guarded = self._guarded(events, me := [])
        me.append(weakref.ref(guarded))
        return guarded

    async def _guarded(
        self, events: AsyncGenerator[Event, None], me: list[weakref.ref[object]]
    ) -> AsyncGenerator[Event, None]:
        async with self.taken(), aclosing(events):
            (self._stream,) = me
            async for event in events:
                yield event
