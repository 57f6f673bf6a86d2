"""Users' own functions, run in threads that end with the program, and waited for in a loop.

A plain function runs in a thread of its own, so that one that never returns holds nobody else;
it cannot be stopped, only no longer waited for.

Always true: what a function raises to end the program (``KeyboardInterrupt``, ``SystemExit``)
comes out as a ``ToolExit``, and a cancel from within as an error of its own.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any


class ToolExit(Exception):
    """A tool raised what is meant to end the program; ``raised`` is that."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"{type(raised).__name__}: {raised}")
        self.raised = raised


class ToolCancelled(Exception):
    """A tool ended as cancelled though its call was not: what it waited for was."""

    def __init__(self) -> None:
        super().__init__("the tool was cancelled from within")


async def uncancelled(work: Awaitable[Any]) -> Any:
    """The result of ``work``. Only a cancel of the task that waits for it may cancel that task.

    Raises:
        ToolCancelled: ``work`` ended as cancelled, and nobody had asked that of the task.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ToolCancelled from error


async def in_thread(work: Callable[[], Any]) -> Any:
    """The result of ``work``, from a thread of its own that ends with the program.

    A pool would run out of threads where tools never return, and its end would wait for them.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def body() -> None:
        value: object = None
        failure: BaseException | None = None
        try:
            value = context.run(work)
        except Exception as error:
            failure = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        except asyncio.CancelledError:  # of a loop of its own
            failure = ToolCancelled()
        except BaseException as error:
            failure = ToolExit(error)
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:  # the loop has ended meanwhile: nobody waits
            return

    threading.Thread(target=body, name="keepwarm tool", daemon=True).start()
    return await done
