"""Hooks of a session: what an author's own code sees, replaces or refuses around turns and tools.

Asks a hook and bounds it in time. Where each is asked is the business of ``tools_api.sdk.session``
(turns by themselves), ``tool_loop`` (turns of a run) and ``tool_runner`` (tools).

Always true: a hook that raises, hangs, or gives what it must not ends the run with a
``HookEnded`` that names it; a tool's call has an answer all the same, and the session may be used.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tools_api.items import FunctionCall
from tools_api.sdk.answers import CallRecord, Response
from tools_api.sdk.failures import HookEnded
from tools_api.sdk.options import Input, wire_items
from tools_api.sdk.threads import ToolExit, in_thread, uncancelled
from tools_api.sdk.tool_output import refusal_text

DEFAULT_HOOK_TIMEOUT_S = 60.0
Given = TypeVar("Given")
Answer = TypeVar("Answer")
Items = list[dict[str, Any]]
Inside = Callable[[], contextvars.Context]


@dataclass(frozen=True, slots=True)
class Refuse:
    """A hook's answer: not this. Around a turn it ends the run, around a tool the model reads
    ``reason`` in place of the output."""

    reason: str


BeforeTurn = Callable[[Items], "Input | Refuse | Awaitable[Input | Refuse | None] | None"]
AfterTurn = Callable[[Response], "Response | Refuse | Awaitable[Response | Refuse | None] | None"]
BeforeTool = Callable[
    [FunctionCall, Mapping[str, Any]],
    "Mapping[str, Any] | Refuse | Awaitable[Mapping[str, Any] | Refuse | None] | None",
]
AfterTool = Callable[[CallRecord], "str | Refuse | Awaitable[str | Refuse | None] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that a session asks, plain or ``async``; each may be left out, and None as its
    answer leaves things as they are. A plain one runs in a thread of its own."""

    before_turn: BeforeTurn | None = None
    """Gets the input items of a turn as they go on the wire, none where a run goes on from its
    tools; may give others. Outputs of calls, which go in front of them, are ``after_tool``'s."""
    after_turn: AfterTurn | None = None
    """Gets the Response; may give another in its place (``dataclasses.replace``). What the server
    keeps, and the calls that are run, stay those of the turn."""
    before_tool: BeforeTool | None = None
    """Gets a call and its arguments as the function takes them; may give other arguments."""
    after_tool: AfterTool | None = None
    """Gets the CallRecord; may give another text for the model to read."""
    timeout_s: float = DEFAULT_HOOK_TIMEOUT_S
    """Longest run of one hook."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s {self.timeout_s:g} of hooks is not above 0")

    async def input_of(self, input: Input, inside: Inside) -> Input:
        """The input of a turn that was to have ``input``. ``inside`` gives the context in which
        the session knows who calls it.

        Raises:
            HookEnded: the hook refused, or failed.
        """
        if self.before_turn is None:
            return input
        items = wire_items(input)
        answer = await self._ask("before_turn", self.before_turn, items, context=inside())
        if answer is None:
            return items
        if isinstance(answer, Refuse):
            raise HookEnded("before_turn", answer.reason)
        try:
            return wire_items(answer)
        except (TypeError, ValueError, AttributeError) as error:
            raise HookEnded("before_turn", f"it gave no input: {error}") from error

    async def response_of(self, response: Response, inside: Inside) -> Response:
        """The response that is shown of a turn that ended with ``response``. Errors as
        ``input_of``."""
        if self.after_turn is None:
            return response
        answer = await self._ask("after_turn", self.after_turn, response, context=inside())
        if isinstance(answer, Refuse):
            raise HookEnded("after_turn", answer.reason)
        return _of_kind(answer, Response, "after_turn", response)

    async def arguments_of(
        self, call: FunctionCall, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any] | Refuse:
        """The arguments of a call that was to have ``arguments``, or why it is not run.

        Raises:
            HookEnded: the hook failed.
        """
        if self.before_tool is None:
            return arguments
        answer = await self._ask("before_tool", self.before_tool, call, dict(arguments))
        if isinstance(answer, Refuse):
            return answer
        given = _of_kind(answer, Mapping, "before_tool", arguments)
        if given.keys() != arguments.keys():
            names = ", ".join(sorted(map(str, given))) or "nothing"
            raise HookEnded(
                "before_tool",
                f"it gave {names} for the arguments {', '.join(sorted(arguments)) or 'nothing'} "
                f"of {call.full_name}",
            )
        return given

    async def record_of(self, record: CallRecord) -> CallRecord:
        """The record of a call that the model reads. Errors as ``arguments_of``."""
        if self.after_tool is None:
            return record
        answer = await self._ask("after_tool", self.after_tool, record)
        if isinstance(answer, Refuse):
            return replace(record, output=refusal_text(answer.reason), failed=True)
        return replace(record, output=_of_kind(answer, str, "after_tool", record.output))

    async def _ask(
        self,
        name: str,
        hook: Callable[..., Any],
        *given: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s) as bound:
                return await asyncio.create_task(_answer(hook, given), context=context)
        except ToolExit:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and bound.expired():
                raise HookEnded(name, f"no answer within {self.timeout_s:g} s") from None
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise HookEnded(name, f"it raised {said}") from error


NO_HOOKS = Hooks()


def _of_kind(answer: Any, kind: Any, name: str, without: Given) -> Given:
    """``answer``, or ``without`` where it is None.

    Raises:
        HookEnded: it is of another kind.
    """
    if answer is None:
        return without
    if not isinstance(answer, kind):
        wanted = kind.__name__
        raise HookEnded(name, f"it gave {type(answer).__name__}, not {wanted}, Refuse or None")
    found: Given = answer
    return found


async def _answer(hook: Callable[..., Any], given: Sequence[Any]) -> Any:
    """A hook's answer, from a thread of its own where it is a plain function."""
    if inspect.iscoroutinefunction(hook):
        return await uncancelled(hook(*given))
    answer = await in_thread(lambda: hook(*given))
    return await uncancelled(answer) if inspect.isawaitable(answer) else answer
