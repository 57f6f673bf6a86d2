"""The synchronous session: an ``AsyncSession`` whose loop runs in a thread of the client's.

Every method is the asynchronous one of its name; a test compares the two surfaces.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from tools_api.items import CallOutput, Item
from tools_api.sdk.answers import LoopResult, Response, RunEvent, SessionStats, StreamEvent
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.open_calls import PendingCall
from tools_api.sdk.options import (
    AnyTool,
    Budget,
    GenerationOptions,
    Input,
    ToolChoice,
    TurnOptions,
)
from tools_api.sdk.portal import Portal
from tools_api.sdk.run_plan import DEFAULT_MAX_REPAIRS, DEFAULT_MAX_TURNS
from tools_api.sdk.session import AsyncSession, said_by
from tools_api.sdk.tools import Approve, Tool

Output = TypeVar("Output")
Choice = ToolChoice | Callable[[int], ToolChoice]


class Session:
    """A chain of responses over a ``Client``. Made by ``Client.session``."""

    def __init__(self, portal: Portal, inner: AsyncSession) -> None:
        self._portal = portal
        self._inner = inner

    def __repr__(self) -> str:
        return "<" + repr(self._inner).removeprefix("<Async")

    @property
    def head(self) -> str | None:
        """Id of the last response, None before the first."""
        return self._inner.head

    @property
    def name(self) -> str | None:
        """The name under which the server knows the session, None without one."""
        return self._inner.name

    @property
    def stats(self) -> SessionStats:
        """The session's work, and what is left of its budget."""
        return self._inner.stats

    def items(self) -> Generator[Item, None, None]:
        """The transcript up to ``head``, oldest item first, read from the server page by page.
        Errors as for ``AsyncSession.items``."""
        return self._portal.iterate(self._inner.items())

    def pending(self) -> tuple[PendingCall, ...]:
        """The calls of the session's last turn that nothing has answered, as the server keeps
        them. Errors as for ``AsyncSession.pending``."""
        return self._portal.call(self._inner.pending())

    def approve(self, call_id: str, *, by: str = "", reason: str = "") -> PendingCall:
        """Let a call run; ``run()`` without input then goes on. Errors as for
        ``AsyncSession.approve``."""
        return self._portal.call(self._inner.approve(call_id, by=by, reason=reason))

    def reject(self, call_id: str, *, by: str = "", reason: str = "") -> PendingCall:
        """Keep a call from running: the model reads ``reason``. Otherwise as ``approve``."""
        return self._portal.call(self._inner.reject(call_id, by=by, reason=reason))

    def respond(self, input: Input, **options: Unpack[TurnOptions]) -> Response:
        """Run one turn; ``input`` is only what is new. Calls are left to the caller.

        Raises:
            ApiError: the server refused the request before it started.
            TurnFailed: the turn failed; ``rate_limit_exceeded`` = the budget is spent.
            ConnectionLost: the server was lost and did not come back in time.
        """
        return self._portal.call(self._inner.respond(input, **options))

    def stream_turn(
        self, input: Input, **options: Unpack[TurnOptions]
    ) -> Generator[StreamEvent, None, None]:
        """Run one turn and yield what it gives; the Response comes last. Errors as ``respond``."""
        return self._portal.iterate(self._inner.stream_turn(input, **options))

    def stream(
        self,
        input: Input = (),
        *,
        tools: Sequence[AnyTool] | None = None,
        tool_choice: Choice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        output_type: Any = None,
        max_repairs: int = DEFAULT_MAX_REPAIRS,
        **options: Unpack[GenerationOptions],
    ) -> Generator[RunEvent, None, None]:
        """Play turns and run their calls until a turn has none; the LoopResult comes last.
        Arguments and errors as for ``AsyncSession.stream``."""
        events = self._inner.stream(
            input,
            tools=tools,
            tool_choice=tool_choice,
            max_turns=max_turns,
            output_type=output_type,
            max_repairs=max_repairs,
            **options,
        )
        return self._portal.iterate(events)

    @overload
    def run(
        self,
        input: Input = (),
        *,
        output_type: type[Output],
        tools: Sequence[AnyTool] | None = None,
        tool_choice: Choice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        max_repairs: int = DEFAULT_MAX_REPAIRS,
        **options: Unpack[GenerationOptions],
    ) -> LoopResult[Output]: ...

    @overload
    def run(
        self,
        input: Input = (),
        *,
        output_type: object = None,
        tools: Sequence[AnyTool] | None = None,
        tool_choice: Choice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        max_repairs: int = DEFAULT_MAX_REPAIRS,
        **options: Unpack[GenerationOptions],
    ) -> LoopResult[Any]: ...

    def run(
        self,
        input: Input = (),
        *,
        output_type: Any = None,
        tools: Sequence[AnyTool] | None = None,
        tool_choice: Choice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        max_repairs: int = DEFAULT_MAX_REPAIRS,
        **options: Unpack[GenerationOptions],
    ) -> LoopResult[Any]:
        """As ``stream``, without the events: the result of the run. ``result.output`` is the
        answer as an ``output_type``."""
        return self._portal.call(
            self._inner.run(
                input,
                output_type=output_type,
                tools=tools,
                tool_choice=tool_choice,
                max_turns=max_turns,
                max_repairs=max_repairs,
                **options,
            )
        )

    def warm(self, input: Input = (), **options: Unpack[TurnOptions]) -> Response:
        """Prefill header and ``input`` without generating; the session moves on."""
        return self._portal.call(self._inner.warm(input, **options))

    def compact(self, **options: Unpack[TurnOptions]) -> Response:
        """Have the server sum up what was said, down to half of it; the session goes on behind
        that. ``response.keepwarm["context"]`` says what went and what it cost.

        Raises:
            ApiError: there is nothing yet, or calls wait for their outputs.
        """
        return self._portal.call(self._inner.compact(**options))

    def before_compaction(self) -> "Session":
        """A second session from before the newest cut on, where all stands that was said.

        Raises:
            ValueError: nothing was compacted in this object.
        """
        return Session(self._portal, self._inner.before_compaction())

    def add_tools(self, tools: Sequence[AnyTool]) -> None:
        """Let the model call these too, from the next turn on, also of a run that goes on; all that
        was said before stays warm. Errors as for ``AsyncSession.add_tools``."""
        self._inner.add_tools(tools)

    def remove_tools(self, names: Sequence[str | AnyTool]) -> None:
        """Keep the model from calling these tools, from the next turn on; what was said before
        stays warm. Errors as for ``AsyncSession.remove_tools``."""
        self._inner.remove_tools(names)

    def owe(self, outputs: Sequence[CallOutput]) -> None:
        """Answer calls with the next turn, in front of its input. Of two outputs of a call the
        later one goes."""
        self._inner.owe(outputs)

    def steer(self, input: Input) -> None:
        """Say something to what the session does now, from another thread; as
        ``AsyncSession.steer``. Beside a turn in this thread: between the events of a stream."""

        async def say() -> None:
            await self._inner.steer(input)

        self._portal.call(say())

    def cancel(self) -> None:
        """End what the session does now, from another thread: the turn on the server, and the
        tools of a run. The turn ends ``incomplete``, the run with a result whose status is
        ``cancelled``."""
        self._portal.do(self._inner.cancel)

    def fork(self, *, name: str | None = None) -> "Session":
        """A second session that shares everything up to here, and its account unless it has a
        ``name`` of its own. Made while tools run, as inside one of them, it stands behind their
        calls: the model is told of each what came out, or that it still runs."""
        return Session(self._portal, self._inner.fork(name=name))

    def rewind(self, *, turns: int = 1, to: str | None = None) -> None:
        """Go back by so many turns, or to the response ``to``. What lies behind it is left out
        of the next turn; what it cost stays spent.

        Raises:
            ValueError: there is no such turn in this object, or nothing before it to stand on.
            RuntimeError: a turn or a run of the session goes on.
        """
        self._inner.rewind(turns=turns, to=to)

    def child(
        self,
        *,
        name: str | None = None,
        budget: Budget | None = None,
        labels: Mapping[str, str] | None = None,
        context: Any = None,
        approve: Approve | None = None,
        max_parallel_tools: int | None = None,
        hooks: Hooks | None = None,
        **defaults: Unpack[TurnOptions],
    ) -> "Session":
        """A sub-agent: a session with a transcript of its own that draws from this one's budget.
        Arguments as for ``AsyncSession.child``."""
        inner = self._inner.child(
            name=name,
            budget=budget,
            labels=labels,
            context=context,
            approve=approve,
            max_parallel_tools=max_parallel_tools,
            hooks=hooks,
            **defaults,
        )
        return Session(self._portal, inner)

    def as_tool(self, name: str, description: str, *, timeout_s: float | None = None) -> Tool:
        """A tool for another session that has this one play a run: the model gives ``input``,
        the text of the run is the tool's output. A second call goes on from the first and waits
        for it; ``timeout_s`` bounds one."""
        # Here, since it loads all of pydantic, which a client without tools has no need of.
        from tools_api.sdk.tool_making import tool

        async def ask(input: str) -> str:  # so that it ends where it is no longer waited for
            return said_by(await self._portal.result(self._inner.run(input)))

        ask.__doc__ = description
        return tool(name=name, timeout_s=timeout_s)(ask)
