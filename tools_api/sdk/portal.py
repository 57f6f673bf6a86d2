"""An event loop in a thread, for the synchronous half of the SDK.

Always true: a call that is interrupted (Ctrl-C) has come to its end in the loop before the
exception goes on, unless it takes longer than ``_GRACE_S``.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

from tools_api.sdk.occupancy import CALLER
from tools_api.sdk.tool_runner import ToolExit

Result = TypeVar("Result")
_GRACE_S = 5.0


class Portal:
    """Runs coroutines for threads that have no loop. The thread lives while it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What ``work`` gives, run in the loop.

        Raises:
            BaseException: what ``work`` raises; of a ``ToolExit`` what the tool raised.
        """
        outcome, cancel = self._start(work)
        try:
            return outcome.result()
        except ToolExit as left:
            raise left.raised from None
        except BaseException:
            if not outcome.done():
                cancel()
                concurrent.futures.wait([outcome], _GRACE_S)
            raise

    async def result(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What ``work`` gives, run in this loop and waited for in the caller's."""
        outcome, cancel = self._start(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(outcome))
        finally:
            if not outcome.done():
                cancel()

    def _start(
        self, work: Coroutine[Any, Any, Result]
    ) -> tuple["concurrent.futures.Future[Result]", Callable[[], None]]:
        """The outcome of ``work``, which runs from now on, and how to cancel it."""
        outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Result]] = []
        caller = threading.get_ident()

        def start() -> None:
            CALLER.set(caller)
            tasks.append(asyncio.ensure_future(work))
            tasks[0].add_done_callback(lambda ended: _settle(ended, outcome))

        loop = self._running()
        loop.call_soon_threadsafe(start)
        return outcome, lambda: _cancel(loop, tasks)

    def do(self, work: Callable[[], None]) -> None:
        """Have ``work`` done in the loop, soon."""
        self._running().call_soon_threadsafe(work)

    def iterate(self, events: AsyncGenerator[Result, None]) -> Generator[Result, None, None]:
        """``events`` one by one; each is made when it is asked for."""

        async def step() -> tuple[Result, ...]:
            try:
                return (await anext(events),)
            except StopAsyncIteration:
                return ()

        async def close() -> None:
            await events.aclose()

        try:
            while found := self.call(step()):
                yield found[0]
        finally:
            self.call(close())

    def close(self) -> None:
        """End the loop and its thread; a later call starts them anew."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)

    def leave(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End the loop after ``last``, without waiting: for a client that nobody holds any more,
        in whatever thread that is noticed."""
        loop, self._loop, self._thread = self._loop, None, None

        async def end() -> None:
            try:
                await last()
            finally:
                asyncio.get_running_loop().stop()

        if loop is not None:
            loop.call_soon_threadsafe(lambda: asyncio.ensure_future(end()))

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="keepwarm client", daemon=True
                )
                self._thread.start()
            return self._loop


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


def _cancel(loop: asyncio.AbstractEventLoop, tasks: "list[asyncio.Task[Any]]") -> None:
    def cancel() -> None:
        for task in tasks:
            task.cancel()

    loop.call_soon_threadsafe(cancel)


def _settle(ended: "asyncio.Task[Result]", outcome: "concurrent.futures.Future[Result]") -> None:
    if ended.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := ended.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(ended.result())
