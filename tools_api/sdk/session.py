"""A conversation with a model that the server keeps: one turn of it, or runs with tools.

What users hold. Turns are made by ``tools_api.sdk.turn``, runs by ``tool_loop``; this is
where their options come together. The synchronous ``Session`` (``sync_session``) has the same
methods.

Always true: a session does one thing at a time, and whatever was raised it may be used again.
"""

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack, overload

from tools_api.items import CallOutput, Item
from tools_api.sdk.answers import LoopResult, Response, SessionStats, StreamEvent
from tools_api.sdk.chain import Chain
from tools_api.sdk.checks import check_budget, check_labels, check_name, check_outputs
from tools_api.sdk.connection import Connection
from tools_api.sdk.held_turns import refuse_unstored
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.late_tools import brought, listed, name_of, refuse_other
from tools_api.sdk.occupancy import Occupancy
from tools_api.sdk.open_calls import OpenCalls, PendingCall
from tools_api.sdk.options import (
    AnyTool,
    Budget,
    GenerationOptions,
    Input,
    ToolChoice,
    TurnOptions,
    check_options,
    listed_tools,
    wire_budget,
    wire_items,
)
from tools_api.sdk.run_plan import DEFAULT_MAX_REPAIRS, DEFAULT_MAX_TURNS, RunPlan
from tools_api.sdk.tool_loop import Run, RunEvents
from tools_api.sdk.tool_runner import Equipment
from tools_api.sdk.tools import Approve, Tool
from tools_api.sdk.turn import Turn

Output = TypeVar("Output")
Choice = ToolChoice | Callable[[int], ToolChoice]


class _Done:
    """A result that is there already; ``await`` may stand before it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = _Done()


class AsyncSession:
    """A chain of responses over an ``AsyncClient``. Made by ``AsyncClient.session``.

    ``steer``, ``cancel``, ``fork``, ``rewind``, ``owe``, ``add_tools`` and ``remove_tools`` act at
    once; ``await`` may stand before them.
    """

    def __init__(self, connection: Connection, chain: Chain, equipment: Equipment) -> None:
        check_options(chain.defaults)
        if "tools" in chain.defaults:
            tools = listed_tools(chain.defaults["tools"])
            chain.defaults = {**chain.defaults, "tools": tools}
            equipment.check([tool for tool in tools if isinstance(tool, Tool)])
            refuse_unstored(tools, equipment, chain.defaults)
        self._connection = connection
        self._chain = chain
        self._equipment = equipment
        self._occupancy = Occupancy()
        self._calls = OpenCalls(connection, chain)
        self._turn: Turn | None = None
        self._for_turn: list[Callable[[Turn], None]] | None = None
        """What a turn is to be told that its hook has not let go yet; None: there is none."""
        self._run: Run | None = None

    def __await__(self) -> Generator[None, None, "AsyncSession"]:
        yield from ()
        return self

    def __repr__(self) -> str:
        return self._chain.shown(type(self).__name__)

    @property
    def head(self) -> str | None:
        """Id of the last response, None before the first."""
        return self._chain.head

    @property
    def name(self) -> str | None:
        """The name under which the server knows the session, None without one."""
        return self._chain.name

    @property
    def stats(self) -> SessionStats:
        """The session's work, and what is left of its budget."""
        return self._chain.stats

    def items(self) -> AsyncGenerator[Item, None]:
        """The transcript up to ``head``, oldest item first, read from the server page by page. Of a
        session that is only named so far, up to where the server says that it stands.

        Raises:
            ValueError: the session has no response yet, so there is nothing to read.
            ApiError: the server does not have it any more.
            ConnectionLost: the server could not be reached.
        """
        if self._chain.head is None and self._chain.name is None:
            raise ValueError("the session has no response here yet: play a turn, or give head=...")
        return self._items()

    async def _items(self) -> AsyncGenerator[Item, None]:
        head = await self._calls.response()
        if head is None:
            raise ValueError(f"the server has no response of a session {self._chain.name!r} yet")
        async with aclosing(self._connection.items_of(head)) as items:
            async for item in items:
                yield item

    async def pending(self) -> tuple[PendingCall, ...]:
        """The calls of the session's last turn that nothing has answered, as the server keeps
        them: each with who decided what, and whether its tool has begun or ended. None where that
        turn has no calls.

        Raises:
            ApiError: the server does not have the response.
            ConnectionLost: it did not come back in time.
        """
        return await self._calls.listed()

    async def approve(self, call_id: str, *, by: str = "", reason: str = "") -> PendingCall:
        """Let a call run; ``run()`` without input then goes on. It is kept by the server, with
        ``by``, before this returns.

        Raises:
            ApiError: there is no such call, it was rejected (``call_decided``), or the session has
                gone on (``call_not_open``).
            ConnectionLost: the server did not come back in time.
        """
        return await self._calls.decide(call_id, "approve", by=by, reason=reason)

    async def reject(self, call_id: str, *, by: str = "", reason: str = "") -> PendingCall:
        """Keep a call from running: the model reads ``reason``. Otherwise as ``approve``."""
        return await self._calls.decide(call_id, "reject", by=by, reason=reason)

    async def respond(self, input: Input, **options: Unpack[TurnOptions]) -> Response:
        """Run one turn; ``input`` is only what is new. Calls are left to the caller.

        Raises:
            ApiError: the server refused the request before it started.
            TurnFailed: the turn failed; ``rate_limit_exceeded`` = the budget is spent.
            ConnectionLost: the server was lost and did not come back in time.
        """
        return await self._last(input, options)

    def stream_turn(
        self, input: Input, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Run one turn and yield what it gives; the Response comes last. Errors as ``respond``."""
        return self._occupancy.stream(self._events(input, options))

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
    ) -> RunEvents:
        """Play turns and run their calls until a turn has none; the LoopResult comes last.

        A run ends ``waiting`` where calls wait for an approval that nobody here gives; without
        ``input`` it goes on from there, in any process (``pending``).

        Args:
            input: what is new; nothing where calls of the last turn were decided.
            tools: in place of the session's own.
            tool_choice: of the first turn, or a function of the turn's number.
            output_type: what the answer has to be, a pydantic model or any type pydantic knows.
            max_repairs: how often the model is asked again for an answer that is not.
            options: as for ``respond``, for every turn.

        Raises:
            ApiError, TurnFailed, ConnectionLost: as ``respond``; ``result`` is what was done.
            TypeError: of ``tools``, something is no tool.
            TooManyTurns: after ``max_turns`` turns.
            OutputInvalid: after ``max_repairs`` repairs.
        """
        plan = RunPlan(
            tools=self._chain.defaults.get("tools", ()) if tools is None else listed_tools(tools),
            options=options,
            tool_choice=tool_choice,
            max_turns=max_turns,
            output_type=output_type,
            max_repairs=max_repairs,
        )
        chain, equipment = self._chain, self._equipment
        run = Run(self._connection, chain, plan, equipment, self._occupancy, calls=self._calls)
        return self._occupancy.stream(self._played(run, input))

    @overload
    async def run(
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
    async def run(
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

    async def run(
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
        events = self.stream(
            input,
            tools=tools,
            tool_choice=tool_choice,
            max_turns=max_turns,
            output_type=output_type,
            max_repairs=max_repairs,
            **options,
        )
        async with aclosing(events):
            async for event in events:
                last = event
        assert isinstance(last, LoopResult)
        return last

    async def warm(self, input: Input = (), **options: Unpack[TurnOptions]) -> Response:
        """Prefill header and ``input`` without generating; the session moves on."""
        return await self._last(input, options, generate=False)

    async def compact(self, **options: Unpack[TurnOptions]) -> Response:
        """Have the server sum up what was said, down to half of it; the session goes on behind
        that. ``response.keepwarm["context"]`` says what went and what it cost.

        Raises:
            ApiError: there is nothing yet, or calls wait for their outputs.
        """
        return await self._last([{"type": "compaction_trigger"}], options)

    def before_compaction(self) -> "AsyncSession":
        """A second session from before the newest cut on, where all stands that was said.

        Raises:
            ValueError: nothing was compacted in this object.
        """
        return AsyncSession(self._connection, self._chain.before_cut(), self._equipment)

    def add_tools(self, tools: Sequence[AnyTool]) -> Awaitable[None]:
        """Let the model call these too, from the next turn on, also of a run that goes on. They are
        defined where they come, so that all that was said before stays warm. One that is there
        already changes nothing; of one that was added before the newest definition counts.

        Raises:
            TypeError, ValueError: something is no tool, has the name of another one that the
                session had from its beginning, or wants what the session does not have.
        """
        header = self._chain.defaults.get("tools", ())
        new = refuse_other(listed_tools(tools), header)
        late = {**self._chain.late, **new}
        functions = [tool for tool in (*header, *late.values()) if isinstance(tool, Tool)]
        self._equipment.check(functions)
        refuse_unstored(functions, self._equipment, self._chain.defaults)
        self._chain.removed -= {name_of(tool) for tool in listed_tools(tools)}
        self._chain.late = late
        return DONE

    def remove_tools(self, names: Sequence[str | AnyTool]) -> Awaitable[None]:
        """Keep the model from calling these tools, by their names or themselves, from the next
        turn on; what was said before stays warm. Calls that are open are run and answered as ever.

        Raises:
            ValueError: the session has no tool of that name.
        """
        given = [name if isinstance(name, str) else name_of(name) for name in listed(names)]
        known = {name_of(tool) for tool in self._chain.defaults.get("tools", ())}
        known |= self._chain.late.keys()
        for name in given:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise ValueError(f"the session has no tool {name!r}; it has {there}")
        told = brought(self._chain.history)
        for name in given:
            if name in self._chain.late and name not in told:
                del self._chain.late[name]  # nobody has read of it yet
            else:
                self._chain.removed |= {name}
        return DONE

    def owe(self, outputs: Sequence[CallOutput]) -> Awaitable[None]:
        """Answer calls with the next turn, in front of its input. Of two outputs of a call the
        later one goes.

        Raises:
            TypeError: they are none.
        """
        check_outputs(outputs)
        self._chain.owed += wire_items(outputs)
        return DONE

    def steer(self, input: Input) -> Awaitable[None]:
        """Say something to what the session does now: a text, or messages of the user. The response
        that runs ends behind the item that it writes (at the next token outside a call with
        ``keepwarm={"steer": "now"}``), and the turn goes on with one that has heard it; while tools
        run it stands before their outputs. What comes too late is for the next turn.

        Raises:
            ValueError: the session does nothing now.
        """
        items = wire_items(input)
        if self._run is not None:
            self._run.steer(items)
        elif self._turn is not None:
            self._turn.steer(items)
        elif self._for_turn is not None:
            self._chain.owed += items
        else:
            raise ValueError("nothing runs that could hear it: give it to respond or run")
        return DONE

    def cancel(self) -> Awaitable[None]:
        """End what the session does now: the turn on the server, and the tools of a run. The
        turn ends ``incomplete``, the run with a result whose status is ``cancelled``."""
        if self._run is not None:
            self._run.cancel()
        elif self._turn is not None:
            self._turn.ask_to_cancel()
        elif self._for_turn is not None:
            self._for_turn.append(Turn.ask_to_cancel)
        return DONE

    def fork(self, *, name: str | None = None) -> "AsyncSession":
        """A second session that shares everything up to here, and its account unless it has a
        ``name`` of its own. Made while tools run, as inside one of them, it stands behind their
        calls: the model is told of each what came out, or that it still runs."""
        chain = self._chain.fork()
        if self._run is not None:
            chain.owed += self._run.outputs_so_far()
        if name is not None:
            chain.set_keepwarm(session=name)
        return AsyncSession(self._connection, chain, self._equipment)

    def rewind(self, *, turns: int = 1, to: str | None = None) -> Awaitable[None]:
        """Go back by so many turns, or to the response ``to``. What lies behind it is left out
        of the next turn; what it cost stays spent. Outputs that answered calls of that response
        go with the next turn again, unless its input has others.

        Raises:
            ValueError: there is no such turn in this object, or nothing before it to stand on.
            RuntimeError: a turn or a run of the session goes on.
        """
        playing = (self._run, self._turn, self._for_turn) != (None, None, None)
        if playing and not self._occupancy.left:
            raise RuntimeError(
                "a turn or a run of this session goes on, from where it stands: rewind it when "
                "that has ended, or a fork() of it"
            )
        marks = self._chain.marks
        if to is None:
            if not 1 <= turns <= len(marks):
                raise ValueError(f"{turns} turns cannot be taken back of {len(marks)}")
            to = marks[-turns].head
        self._chain.rewind(to)
        return DONE

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
    ) -> "AsyncSession":
        """A sub-agent: a session with a transcript of its own that draws from this one's budget.

        Args:
            name: its own; without one it gets one.
            budget: bounds of its own, within its parent's.
            labels: its own; its parent's without them.
            context, approve, max_parallel_tools, hooks: this session's without them.
            defaults: options of its turns; only ``model`` is taken over.
        """
        own = self._equipment
        equipment = Equipment(
            context=own.context if context is None else context,
            approve=own.approve if approve is None else approve,
            max_parallel=own.max_parallel if max_parallel_tools is None else max_parallel_tools,
            hooks=own.hooks if hooks is None else hooks,
        )
        check_options(defaults)
        inherited = TurnOptions()
        if "model" in self._chain.defaults:
            inherited["model"] = self._chain.defaults["model"]
        chain = Chain(defaults={**inherited, **defaults})
        check_name(name)
        check_budget(budget)
        check_labels(labels)
        child_name = name or f"{self._known_name()[:200]}.{uuid.uuid4().hex[:12]}"
        chain.set_keepwarm(
            session=child_name,
            parent_session=self._known_name(),
            budget=None if budget is None else wire_budget(budget),
            labels=None if labels is None else dict(labels),
        )
        return AsyncSession(self._connection, chain, equipment)

    def as_tool(self, name: str, description: str, *, timeout_s: float | None = None) -> Tool:
        """A tool for another session that has this one play a run: the model gives ``input``,
        the text of the run is the tool's output. A second call goes on from the first and waits
        for it; ``timeout_s`` bounds one."""
        # Here, since it loads all of pydantic, which a client without tools has no need of.
        from tools_api.sdk.tool_making import tool

        async def ask(input: str) -> str:
            return said_by(await self.run(input))

        ask.__doc__ = description
        return tool(name=name, timeout_s=timeout_s)(ask)

    def _known_name(self) -> str:
        """The session's name on the server; one is made if it has none yet."""
        if self._chain.name is None:
            if self._chain.server_name is None:
                self._chain.set_keepwarm(session=f"session-{uuid.uuid4().hex[:12]}")
            else:
                return self._chain.server_name
        return self._chain.name or ""

    async def _last(self, input: Input, options: TurnOptions, *, generate: bool = True) -> Response:
        async with self._occupancy.taken():
            events = self._events(input, options, generate=generate)
            async with aclosing(events):
                async for event in events:
                    last = event
        assert isinstance(last, Response)
        return last

    async def _events(
        self, input: Input, options: TurnOptions, *, generate: bool = True
    ) -> AsyncGenerator[StreamEvent, None]:
        traits, hooks = self._connection.traits, self._equipment.hooks
        told: list[Callable[[Turn], None]] = []
        self._for_turn = told
        try:
            input = await hooks.input_of(input, self._occupancy.inside)
            self._turn = Turn(self._chain, input, options, generate=generate, traits=traits)
            for tell in told:
                tell(self._turn)
            async with aclosing(self._connection.play(self._turn)) as events:
                async for event in events:
                    if isinstance(event, Response):
                        event = await hooks.response_of(event, self._occupancy.inside)
                    yield event
        finally:
            self._turn = self._for_turn = None

    async def _played(self, run: Run, input: Input) -> RunEvents:
        self._run = run
        try:
            async with aclosing(run.events(input)) as events:
                async for event in events:
                    yield event
        finally:
            self._run = None


def said_by(result: LoopResult[Any]) -> str:
    """The result of a sub-agent's run for the model that asked for it.

    Raises:
        RuntimeError: it came to no answer.
    """
    if result.status == "waiting":
        names = ", ".join(call.full_name for call in result.waiting)
        raise RuntimeError(f"the run waits for somebody to answer or approve {names}")
    if result.status != "completed" and not result.text:
        raise RuntimeError(f"the run was {result.status} and said nothing")
    return result.text
