"""An event loop in a thread, for the synchronous half of the SDK.

Always true: a call that is interrupted (Ctrl-C) has come to its end in the loop before the
exception goes on, unless it takes longer than ``_GRACE_S``. The loop's own thread never waits for
what it would have to run itself, and a loop ends under nobody who waits for it.
"""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tools_api.sdk.occupancy import CALLER
from tools_api.sdk.threads import ToolExit

Result = TypeVar("Result")
_GRACE_S = 5.0
_ITSELF = (
    "an async tool or hook runs in the event loop of its Client, which cannot wait for itself: "
    "make it a plain function, or use AsyncClient"
)


class Portal:
    """Runs coroutines for threads that have no loop. The thread lives while it is needed, and no
    longer than somebody holds the portal: a client, its sessions or their streams."""

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """``last``: to be run before the loop ends with the portal. Holds no portal itself."""
        self._served = _ServedLoop()
        weakref.finalize(self, self._served.leave, last)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of ``work``, run in the loop.

        Raises:
            BaseException: what ``work`` raises; of a ``ToolExit`` what the tool raised.
            RuntimeError: the caller is the loop, which cannot wait for itself.
        """
        if self._served.is_here():
            work.close()
            raise RuntimeError(_ITSELF)
        with self._served.kept():
            return self._call(work)

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        sent = _Sent(work, threading.get_ident())
        try:
            self.do(sent.start)  # inside: an interrupt may come when it has been sent
            return sent.outcome.result()
        except ToolExit as left:
            raise left.raised from None
        except BaseException:
            if not sent.outcome.done():
                self.do(sent.cancel)
                concurrent.futures.wait([sent.outcome], _GRACE_S)
            raise

    async def result(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of ``work``, run in this loop and waited for in the caller's, by its task."""
        sent = _Sent(work, None)
        with self._served.kept():
            self.do(sent.start)
            try:
                return await asyncio.shield(asyncio.wrap_future(sent.outcome))
            finally:
                if not sent.outcome.done():
                    self.do(sent.cancel)

    def do(self, work: Callable[[], object]) -> None:
        """Have ``work`` done in the loop, soon."""
        self._served.running().call_soon_threadsafe(work)

    def iterate(self, events: AsyncGenerator[Result, None]) -> Generator[Result, None, None]:
        """``events`` one by one; each is made when it is asked for. Errors as for ``call``."""

        async def step() -> tuple[Result, ...]:
            try:
                return (await anext(events),)
            except StopAsyncIteration:
                return ()

        async def close() -> None:
            await events.aclose()

        with self._served.kept():
            try:
                while found := self.call(step()):
                    yield found[0]
            finally:
                if self._served.is_here():  # collected as garbage, in whatever thread
                    self._served.do_here(close())
                else:
                    self.call(close())

    def close(self) -> None:
        """End the loop and its thread, unless somebody waits for it; a later call starts them
        anew."""
        self._served.close()


class _ServedLoop:
    """A loop in a thread of its own, while it is needed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage may be collected inside
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._users = 0
        """Calls and streams that are not at their end."""
        self._tasks: set[asyncio.Task[None]] = set()

    def is_here(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return self._thread is threading.current_thread() and self._process == os.getpid()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the loop is needed, ``close`` leaves it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def do_here(self, work: Coroutine[Any, Any, None]) -> None:
        """Have ``work`` done in the loop, whose thread the caller runs in."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop, begun if there is none, or if its thread is another process's since a fork."""
        with self._lock:
            if self._process != os.getpid():
                self._loop, self._process = None, os.getpid()
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_serve, args=(loop,), name="keepwarm client", daemon=True
                )
                thread.start()
                self._loop, self._thread = loop, thread  # now: interrupted before, it is not there
            return self._loop

    def close(self) -> None:
        """End it and wait for its thread; not while it is needed."""
        with self._lock:
            if self._users:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)

    def leave(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """End it after ``last``, without waiting: nobody needs it any more, in whatever thread that
        is noticed."""
        loop, self._loop, self._thread = self._loop, None, None
        if self._process != os.getpid():
            return

        async def end() -> None:
            try:
                if last is not None:
                    await last()
            finally:
                asyncio.get_running_loop().stop()

        if loop is not None:
            loop.call_soon_threadsafe(lambda: asyncio.ensure_future(end()))


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class _Sent(Generic[Result]):
    """Work that a thread sends into the loop. ``start`` and ``cancel`` are done there."""

    def __init__(self, work: Coroutine[Any, Any, Result], caller: int | None) -> None:
        """``caller``: the thread that asks; None: the task of ``work`` itself."""
        self._work = work
        self._caller = caller
        self._task: asyncio.Task[Result] | None = None
        self.outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def start(self) -> None:
        """Let it run from now on."""
        CALLER.set(self._caller)
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._settle)

    def cancel(self) -> None:
        """End it, or leave it alone for good where ``start`` never came."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()
            self._give_up()

    def _settle(self, ended: "asyncio.Task[Result]") -> None:
        if ended.cancelled():
            self._give_up()
        elif (error := ended.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(ended.result())

    def _give_up(self) -> None:
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()
