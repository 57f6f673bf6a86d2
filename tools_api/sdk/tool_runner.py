"""Running calls: in threads or as tasks, for so long, so often, so many at once, if approved.

Always true: a call becomes a record whatever its tool does, unless it is cancelled. What a
tool raises to end the program (``KeyboardInterrupt``, ``SystemExit``) ends the run instead.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.agent_spans import AgentSpan, begin_tool, record_attributes
from tools_api.sdk.answers import AnyCall, CallRecord
from tools_api.sdk.backoff import Retries
from tools_api.sdk.checks import of_kind
from tools_api.sdk.failures import HookEnded
from tools_api.sdk.hooks import NO_HOOKS, Hooks, Refuse
from tools_api.sdk.threads import ToolExit, in_thread, uncancelled
from tools_api.sdk.tool_output import cut, error_text, output_text, refusal_text
from tools_api.sdk.tools import DEFAULT_MAX_OUTPUT_BYTES, Approve, Tool, ToolContext

DEFAULT_MAX_PARALLEL_TOOLS = 8
_LOG = logging.getLogger("keepwarm.tools")
Begin = Callable[[], Awaitable[None]]
"""Called before a tool runs; what it raises keeps the tool from running."""
INTERRUPTED = "interrupted: it is not known how far the tool came"


class ToolTimedOut(Exception):
    """A tool took longer than its ``timeout_s``; it may still be at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The things that a session gives to its tools."""

    context: Any = None
    approve: Approve | None = None
    max_parallel: int = DEFAULT_MAX_PARALLEL_TOOLS
    """Calls that run at once; further ones wait."""
    hooks: Hooks = NO_HOOKS

    def __post_init__(self) -> None:
        asked = "a function of the call and its arguments"
        of_kind("approve", self.approve, Callable, asked)
        of_kind("hooks", self.hooks, Hooks, "Hooks(before_turn=...)")
        of_kind("max_parallel_tools", self.max_parallel, int, "a whole number")
        if self.max_parallel < 1:
            raise ValueError(f"max_parallel_tools {self.max_parallel} is below 1")

    def check(self, tools: Sequence[Tool]) -> None:
        """Whether ``tools`` can run with this.

        Raises:
            TypeError: one wants a context that is not there.
            ValueError: two have the same name.
        """
        names = [tool.name for tool in tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two tools are called {sorted(twice)[0]!r}")
        for tool in tools:
            tool.check_context(self.context)

    def leaves_open(self, tool: Tool) -> bool:
        """Calls of it wait until somebody approves them: nobody is asked here."""
        return tool.conduct.needs_approval and self.approve is None


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
        self._tools = {tool.name: tool for tool in tools}
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

    def know(self, tools: Iterable[Tool]) -> None:
        """Run calls of these too."""
        self._tools |= {tool.name: tool for tool in tools}

    def tool_of(self, call: AnyCall) -> Tool | None:
        """The tool that a call names; None: there is none here."""
        return self._tools.get(call.full_name) if isinstance(call, FunctionCall) else None

    async def run(
        self, call: FunctionCall, above: AgentSpan | None = None, begin: Begin | None = None
    ) -> CallRecord:
        """Run one call, when there is room; its span lies beneath ``above``.

        Raises:
            ToolExit: the tool wants the program to end.
            HookEnded: a hook failed.
        """
        async with self._room:
            if (span := begin_tool(above, call)) is None:
                return await self._record(call, begin)
            with span.entered():
                try:
                    record = await self._record(call, begin)
                except BaseException as error:
                    span.end({}, error)
                    raise
                span.end(record_attributes(record), "tool failed" if record.failed else None)
                return record

    async def _record(self, call: FunctionCall, begin: Begin | None) -> CallRecord:
        started_at = self._clock()
        found = self._tools.get(call.full_name)
        if found is None:
            error = LookupError(f"there is no tool {call.full_name!r}")
            text, failed, attempts = error_text(error), True, 0
        else:
            text, failed, attempts = await self._run(found, call, begin)
        bound = DEFAULT_MAX_OUTPUT_BYTES if found is None else found.conduct.max_output_bytes
        output, cut_bytes = cut(text, bound)
        record = CallRecord(
            call=call,
            output=output,
            failed=failed,
            duration_s=self._clock() - started_at,
            attempts=attempts,
            cut_bytes=cut_bytes,
        )
        if failed:
            _LOG.info("call failed tool=%s call_id=%s", call.full_name, call.call_id)
        if (shown := await self._equipment.hooks.record_of(record)) is record:
            return record
        output, cut_bytes = cut(shown.output, bound)
        return replace(shown, output=output, cut_bytes=cut_bytes)

    async def _run(
        self, tool: Tool, call: FunctionCall, begin: Begin | None
    ) -> tuple[str, bool, int]:
        """Output, whether it is a failure, and attempts."""
        try:
            arguments = tool.bind(call.arguments)
            hooked = await self._equipment.hooks.arguments_of(call, arguments)
            if isinstance(hooked, Refuse):
                return refusal_text(hooked.reason), True, 0
            if (denied := await self._denied(tool, call, hooked)) is not None:
                return refusal_text(denied), True, 0
        except HookEnded:
            raise
        except Exception as error:
            return error_text(error), True, 0
        if begin is not None:
            await begin()
        attempt = 0
        while True:
            attempt += 1
            try:
                given = output_text(await self._attempt(tool, call, hooked, attempt))
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
        verdict = await in_thread(lambda: approve(call, arguments))
        if not isinstance(verdict, bool | str):
            verdict = await uncancelled(verdict)
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
                return await in_thread(lambda: tool(**given))
        except TimeoutError:
            if not bound.expired():
                raise
            raise ToolTimedOut(f"no result within {timeout_s:g} s") from None


def _again(tool: Tool, error: Exception, attempt: int) -> bool:
    unsure = isinstance(error, ToolTimedOut) and not tool.conduct.may_start_early
    return attempt <= tool.conduct.retries and not unsure


async def _as_task(tool: Tool, given: Mapping[str, Any]) -> object:
    try:
        return await uncancelled(tool(**given))
    except (KeyboardInterrupt, SystemExit) as error:
        raise ToolExit(error) from error


def interrupted(call: FunctionCall, reason: str = INTERRUPTED) -> CallRecord:
    """The record of a call whose tool was cut off, or never begun."""
    return CallRecord(
        call=call, output=refusal_text(reason), failed=True, duration_s=0.0, attempts=0
    )


_LONGEST_MS = 2_678_400_000.0


def reports(records: Sequence[CallRecord]) -> list[dict[str, Any]]:
    """What the server is told of how they ran: ``keepwarm.tools``."""
    return [
        {
            "call_id": record.call.call_id,
            "ms": round(min(max(record.duration_s * 1000, 0.0), _LONGEST_MS), 3),
            "failed": record.failed,
        }
        for record in records
    ]


def outputs(records: Sequence[CallRecord]) -> list[FunctionCallOutput]:
    """Outputs for the calls of ``records``."""
    return [
        FunctionCallOutput(call_id=record.call.call_id, output=record.output) for record in records
    ]
