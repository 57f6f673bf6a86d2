"""What runs in a thread of its own gives, raises and ends the program as it would here."""

import asyncio
import contextvars
import threading

import pytest

from tools_api.sdk.threads import ToolCancelled, ToolExit, in_thread, uncancelled

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


def leave(error: BaseException) -> None:
    raise error


async def test_it_gives_what_the_function_gives_in_the_callers_context() -> None:
    WORD.set("mine")
    found = await in_thread(lambda: (WORD.get(), threading.current_thread().daemon))
    assert found == ("mine", True)
    assert threading.current_thread() is threading.main_thread()


async def test_what_it_raises_is_raised_and_what_ends_a_program_is_an_exit() -> None:
    with pytest.raises(LookupError):
        await in_thread(lambda: leave(LookupError()))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: leave(StopIteration()))
    with pytest.raises(ToolCancelled):
        await in_thread(lambda: leave(asyncio.CancelledError()))
    with pytest.raises(ToolExit) as caught:
        await in_thread(lambda: leave(SystemExit(3)))
    assert isinstance(caught.value.raised, SystemExit)


async def test_only_a_cancel_of_the_task_that_waits_cancels_it() -> None:
    async def cancelled_within() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ToolCancelled):
        await uncancelled(cancelled_within())
    waiting = asyncio.create_task(uncancelled(asyncio.sleep(60)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
