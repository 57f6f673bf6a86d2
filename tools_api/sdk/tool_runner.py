"""Running calls: in threads or as tasks, for so long, so often, so many at once, if approved.

A plain function runs in a thread of its own, so that one that never returns holds nobody else;
it cannot be stopped, only no longer waited for.

Always true: a call becomes a record whatever its tool does, unless it is cancelled. What a
tool raises to end the program (``KeyboardInterrupt``, ``SystemExit``) ends the run instead.
"""

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.answers import CallRecord
from tools_api.sdk.backoff import Retries
from tools_api.sdk.tool_output import cut, error_text, output_text, refusal_text
from tools_api.sdk.tools import DEFAULT_MAX_OUTPUT_BYTES, Approve, Tool, ToolContext

DEFAULT_MAX_PARALLEL_TOOLS = 8
INTERRUPTED = "interrupted: it is not known how far the tool came"


class ToolExit(Exception):
    """A tool raised what is meant to end the program; ``raised`` is that."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"{type(raised).__name__}: {raised}")
        self.raised = raised


class ToolTimedOut(Exception):
    """A tool took longer than its ``timeout_s``; it may still be at work."""


class ToolCancelled(Exception):
    """A tool ended as cancelled though its call was not: what it waited for was."""

    def __init__(self) -> None:
        super().__init__("the tool was cancelled from within")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The things that a session gives to its tools."""

    context: Any = None
    approve: Approve | None = None
    max_parallel: int = DEFAULT_MAX_PARALLEL_TOOLS
    """Calls that run at once; further ones wait."""

    def __post_init__(self) -> None:
        if self.max_parallel < 1:
            raise ValueError(f"max_parallel_tools {self.max_parallel} is below 1")

    def check(self, tools: Sequence[Tool]) -> None:
        """Whether ``tools`` can run with this.

        Raises:
            TypeError: one wants a context that is not there, or an approval nobody gives.
            ValueError: two have the same name.
        """
        names = [tool.name for tool in tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two tools are called {sorted(twice)[0]!r}")
        for tool in tools:
            tool.check_context(self.context)
            if tool.conduct.needs_approval and self.approve is None:
                raise TypeError(f"tool {tool.name} needs approval: give session(approve=...)")


class ToolRunner:
    """Runs calls of one run's tools."""

    def __init__(
        self,
        tools: Sequence[Tool],
        equipment: Equipment,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        equipment.check(tools)
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._equipment = equipment
        self._room = asyncio.Semaphore(equipment.max_parallel)
        self._waits = Retries(first_wait_s=0.1, longest_wait_s=2.0)
        self._draw = random.Random()
        self._sleep = sleep
        self._clock = clock

    def may_start_early(self, call: FunctionCall) -> bool:
        """Whether the call may run before its turn has ended."""
        found = self._tools.get(call.full_name)
        return found is not None and found.conduct.may_start_early

    async def run(self, call: FunctionCall) -> CallRecord:
        """Run one call, when there is room.

        Raises:
            ToolExit: the tool wants the program to end.
        """
        async with self._room:
            started_at = self._clock()
            found = self._tools.get(call.full_name)
            if found is None:
                error = LookupError(f"there is no tool {call.full_name!r}")
                text, failed, attempts = error_text(error), True, 0
            else:
                text, failed, attempts = await self._run(found, call)
            bound = DEFAULT_MAX_OUTPUT_BYTES if found is None else found.conduct.max_output_bytes
            output, cut_bytes = cut(text, bound)
            return CallRecord(
                call=call,
                output=output,
                failed=failed,
                duration_s=self._clock() - started_at,
                attempts=attempts,
                cut_bytes=cut_bytes,
            )

    async def _run(self, tool: Tool, call: FunctionCall) -> tuple[str, bool, int]:
        """Output, whether it is a failure, and attempts."""
        try:
            arguments = tool.bind(call.arguments)
            if (denied := await self._denied(tool, call, arguments)) is not None:
                return refusal_text(denied), True, 0
        except Exception as error:
            return error_text(error), True, 0
        attempt = 0
        while True:
            attempt += 1
            try:
                given = output_text(await self._attempt(tool, call, arguments, attempt))
                return given, False, attempt
            except ToolExit:
                raise
            except Exception as error:
                if not _again(tool, error, attempt):
                    return error_text(error), True, attempt
            await self._sleep(self._waits.wait_s(attempt - 1, self._draw))

    async def _denied(
        self, tool: Tool, call: FunctionCall, arguments: Mapping[str, Any]
    ) -> str | None:
        """Why the call may not run, or None."""
        approve = self._equipment.approve
        if not tool.conduct.needs_approval or approve is None:
            return None
        verdict = await _in_thread(lambda: approve(call, arguments))
        if not isinstance(verdict, bool | str):
            verdict = await _uncancelled(verdict)
        if verdict is True:
            return None
        return f"the call was not approved{f': {verdict}' if verdict else ''}"

    async def _attempt(
        self, tool: Tool, call: FunctionCall, arguments: Mapping[str, Any], attempt: int
    ) -> object:
        context = ToolContext(
            call_id=call.call_id, tool=tool.name, attempt=attempt, value=self._equipment.context
        )
        given = {**arguments, **tool.takes(context)}
        timeout_s = tool.conduct.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as bound:
                if tool.is_async:
                    return await _as_task(tool, given)
                return await _in_thread(lambda: tool(**given))
        except TimeoutError:
            if not bound.expired():
                raise
            raise ToolTimedOut(f"no result within {timeout_s:g} s") from None


def _again(tool: Tool, error: Exception, attempt: int) -> bool:
    unsure = isinstance(error, ToolTimedOut) and not tool.conduct.may_start_early
    return attempt <= tool.conduct.retries and not unsure


async def _as_task(tool: Tool, given: Mapping[str, Any]) -> object:
    try:
        return await _uncancelled(tool(**given))
    except (KeyboardInterrupt, SystemExit) as error:
        raise ToolExit(error) from error


async def _uncancelled(work: Awaitable[Any]) -> Any:
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


async def _in_thread(work: Callable[[], Any]) -> Any:
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


def interrupted(call: FunctionCall, reason: str = INTERRUPTED) -> CallRecord:
    """The record of a call whose tool was cut off, or never begun."""
    return CallRecord(
        call=call, output=refusal_text(reason), failed=True, duration_s=0.0, attempts=0
    )


def outputs(records: Sequence[CallRecord]) -> list[FunctionCallOutput]:
    """Outputs for the calls of ``records``."""
    return [
        FunctionCallOutput(call_id=record.call.call_id, output=record.output) for record in records
    ]
