"""A run: turns of a session and the tools that they call, until the model is done.

Plays turns, runs their calls and answers them with the next turn; checks the answer against a
type if one is asked for. Knows nothing of sockets and of how a single tool is run
(``tools_api.sdk.tool_runner``).

Always true: a call with effects starts only when its turn has ended ``completed``, that is when
the server keeps it; one that is read-only or idempotent as soon as its arguments are complete.
Every call of a turn that has ended is answered, in the order of the calls: with the next turn,
also after an error, a cancel or Ctrl-C.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tools_api.built_in_items import BuiltInCall
from tools_api.items import Call, FunctionCall, FunctionCallOutput
from tools_api.sdk.agent_spans import AgentSpan, begin_agent, result_attributes
from tools_api.sdk.answers import (
    AnyCall,
    CallRecord,
    LoopResult,
    Repairing,
    Response,
    RunEvent,
    ToolFailed,
    ToolFinished,
    ToolStarted,
    TurnRestarted,
    TurnSteered,
    Warned,
)
from tools_api.sdk.chain import Chain
from tools_api.sdk.connection import Connection
from tools_api.sdk.failures import (
    ConnectionLost,
    HookEnded,
    OutputInvalid,
    Refused,
    TooManyTurns,
    TurnFailed,
)
from tools_api.sdk.held_turns import HeldTurns, NotBegun, has_input, refuse_unstored
from tools_api.sdk.occupancy import Occupancy
from tools_api.sdk.open_calls import OpenCalls
from tools_api.sdk.options import (
    Input,
    wire_items,
)
from tools_api.sdk.run_plan import RunPlan, left_to_caller
from tools_api.sdk.schemas import read_json
from tools_api.sdk.tool_output import faults, shortened
from tools_api.sdk.tool_runner import (
    INTERRUPTED,
    Equipment,
    ToolRunner,
    interrupted,
    outputs,
    reports,
)
from tools_api.sdk.tools import Tool
from tools_api.sdk.turn import Turn

_CUT_SHORT = "not run: the turn was cut short"
_TOO_MANY = "not run: the loop had played all the turns it may"
_NOT_BEGUN = "not run: the run was ended before it"
_NOT_READ = "the tool ran; the run was ended before its output was read"
STILL_WAITS = "waiting for somebody's approval or answer: this is a fork of the conversation"
STILL_RUNS = "still running: this is a fork of the conversation, made while the tool runs"
_LAST_RESORT_BYTES = 512
"""The size left to an output that did not fit into the context."""
_GRACE_S = 1.0
"""How long tools that were cancelled are waited for."""
RunEvents = AsyncGenerator[RunEvent, None]


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The state of a run: what is done and what is open."""

    responses: list[Response] = field(default_factory=list)
    failed: list[Response] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    tasks: dict[str, asyncio.Task[CallRecord]] = field(default_factory=dict)
    """The tasks of the present turn's calls, by their call ids."""
    ready: list[FunctionCall] = field(default_factory=list)
    """Calls whose tools begin when there is room."""
    told: set[str] = field(default_factory=set)
    """Calls whose outcome has been yielded."""
    open: list[FunctionCall] = field(default_factory=list)
    """Calls of the last turn that nothing answers yet."""
    waiting: list[AnyCall] = field(default_factory=list)
    repairs: int = 0
    value: Any = None
    answered: bool = False
    cancelled: bool = False


class Run:
    """One run of a session. Made for one call of ``events``."""

    def __init__(
        self,
        connection: Connection,
        chain: Chain,
        plan: RunPlan,
        equipment: Equipment,
        occupancy: Occupancy,
        *,
        calls: OpenCalls,
    ) -> None:
        options = {**chain.defaults, **plan.options}
        refuse_unstored(plan.functions, equipment, options)
        self._connection = connection
        self._chain = chain
        self._plan = plan
        late = [tool for tool in chain.late.values() if isinstance(tool, Tool)]
        self._functions = [*plan.functions, *late]
        self._runner = ToolRunner(self._functions, equipment)
        self._held = HeldTurns(calls, chain, self._runner, equipment)
        self._hooks, self._max_parallel = equipment.hooks, equipment.max_parallel
        self._occupancy = occupancy
        self._done = _Progress()
        self._turn: Turn | None = None
        self._span: AgentSpan | None = None
        self._head = chain.head
        """The response whose calls are open."""

    def cancel(self) -> None:
        """End the turn on the server, and its tools here; the run then ends with its result."""
        self._done.cancelled = True
        self._done.ready.clear()
        if self._turn is not None:
            self._turn.ask_to_cancel()
        for task in self._done.tasks.values():
            task.cancel()

    def steer(self, items: list[dict[str, Any]]) -> None:
        """Say something to the turn that runs, or else to the next one."""
        if self._turn is None:
            self._chain.owed += items
        else:
            self._turn.steer(items)

    def outputs_so_far(self) -> list[dict[str, Any]]:
        """Outputs for a fork made while tools run: of a call that still runs, or waits for
        somebody, that it does."""
        tasks = self._done.tasks
        ended = {id_: task for id_, task in tasks.items() if task.done() and not task.cancelled()}
        ended = {id_: task for id_, task in ended.items() if task.exception() is None}
        answers: list[FunctionCallOutput] = []
        for call in self._done.open:
            task = ended.get(call.call_id)
            output = STILL_RUNS if task is None else task.result().output
            answers.append(FunctionCallOutput(call_id=call.call_id, output=output))
        told = {"output": STILL_WAITS}
        waiting = self._done.waiting if self._done.open else ()
        kinds = [
            {"type": f"{call.type}_output", "call_id": call.call_id}
            for call in waiting
            if not isinstance(call, BuiltInCall)
        ]
        return wire_items([*answers, *(kind | told for kind in kinds)])

    async def events(self, input: Input) -> RunEvents:
        """Play the run; the LoopResult comes last.

        Raises:
            Refused, ConnectionLost, TurnFailed: a turn did not end.
            TooManyTurns: the last turn allowed has calls.
            OutputInvalid: no answer was an ``output_type``.
            ToolExit: a tool wants the program to end.
            HookEnded: a hook refused a turn, or failed.
        """
        self._span = begin_agent(self._chain.name)
        try:
            async with aclosing(self._play(input)) as events:
                async for event in events:
                    yield event
        except (Refused, ConnectionLost, TurnFailed, HookEnded) as error:
            said = "" if self._turn is None else self._turn.text
            error.result = replace(self._result(), partial_text=said)
            if isinstance(error, Refused) and error.code == "context_length_exceeded":
                self._shorten_owed()
            raise
        finally:
            failed = sys.exception()
            try:
                await self._leave()
            finally:
                if self._span is not None:
                    told = result_attributes(self._done.responses, self._result().status)
                    self._span.end(told, failed)

    async def _play(self, input: Input) -> RunEvents:
        number = 0
        async with aclosing(self._go_on(input)) as before:
            async for event in before:
                yield event
        going = not self._done.waiting
        while going:
            found: tuple[str, ...] = ()
            last = number + 1 >= self._plan.max_turns + self._done.repairs
            try:
                async with aclosing(self._play_turn(input, number, last=last)) as events:
                    async for event in events:
                        yield event
            except Refused as error:
                if not self._held.was_left_by_another(error):
                    raise
                async with aclosing(self._go_on(input)) as before:
                    async for event in before:
                        yield event
                going = not self._done.waiting
                continue
            except TurnFailed as error:
                self._chain.resumes += 1
                self._done.failed.append(error.response)
                found = self._invalid(error)
                input = [*wire_items(input), *_repair(found)]
            else:
                if not self._has_calls():
                    if not (found := self._faults()):
                        break
                    input = _repair(found)
                elif last and self._done.open:
                    self._answer(_TOO_MANY)
                    raise TooManyTurns(self._result())
                else:
                    async with aclosing(self._run_tools()) as tool_events:
                        async for event in tool_events:
                            yield event
                    self._answer()
                    if self._done.cancelled or self._done.waiting:
                        break
                    input = ()
            if found:
                yield Repairing(faults=found)
            number += 1
        self._answer(_CUT_SHORT)
        yield self._result()

    async def _go_on(self, input: Input) -> RunEvents:
        """Run what may run of a turn that was left; then either calls wait, or all are answered."""
        todo = await self._held.todo(self._functions)
        if todo is None:
            return
        if todo.waiting and has_input(input):
            ids = ", ".join(call.call_id for call in todo.waiting)
            raise RuntimeError(
                f"the session waits for the calls {ids}: see session.pending(), approve or reject "
                "them, and go on with session.run()"
            )
        for note in todo.notes:
            yield Warned(text=note)
        self._done.waiting, self._done.open = todo.waiting, todo.run
        async with aclosing(self._run_tools()) as events:
            async for event in events:
                yield event
        self._answer()
        if not self._done.waiting:
            await self._held.stand(todo)

    async def _play_turn(self, input: Input, number: int, *, last: bool) -> RunEvents:
        late = self._chain.late.values()
        self._runner.know(tool for tool in late if isinstance(tool, Tool))
        options = self._plan.turn_options(number, late=bool(late))
        input = await self._hooks.input_of(input, self._occupancy.inside)
        if self._done.cancelled:
            return
        traits, request_id = self._connection.traits, self._held.request_id
        turn = Turn(self._chain, input, options, traits=traits, request_id=request_id)
        self._turn = turn
        turn.span_above = self._span
        async with aclosing(self._connection.play(turn)) as events:
            async for event in events:
                if isinstance(event, Response):
                    self._take(event)
                    event = await self._hooks.response_of(event, self._occupancy.inside)
                    self._done.responses[-1] = event
                elif isinstance(event, TurnSteered):
                    self._done.responses.append(event.response)
                elif isinstance(event, TurnRestarted):
                    self._drop()
                for outcome in self._outcomes():
                    yield outcome
                if isinstance(event, FunctionCall) and self._may_start(event, last=last):
                    self._done.ready.append(event)
                begun = self._start_ready()
                yield event
                for call in begun:
                    yield ToolStarted(call=call)
                for outcome in self._outcomes():
                    yield outcome
        self._turn = None
        for text in self._done.responses[-1].warnings:
            yield Warned(text=text)

    def _take(self, response: Response) -> None:
        """A turn has ended: what of it has to be answered, and by whom."""
        self._done.responses.append(response)
        self._head = self._chain.head
        others = left_to_caller([*self._plan.tools, *self._chain.late.values()])
        calls = [call for call in response.output if isinstance(call, Call) and _to_answer(call)]
        self._held.take(calls)
        for call in calls:
            elsewhere = not isinstance(call, FunctionCall) or call.full_name in others
            if elsewhere or self._held.waits(call):
                self._done.waiting.append(call)
            elif isinstance(call, FunctionCall):
                self._done.open.append(call)

    def _has_calls(self) -> bool:
        """Whether the last turn is one that tools go on from."""
        calls = self._done.open or self._done.waiting
        return bool(calls) and self._done.responses[-1].status == "completed"

    def _may_start(self, call: FunctionCall, *, last: bool) -> bool:
        """Whether the call may run while its turn goes on."""
        if last or self._done.cancelled or self._held.waits(call):
            return False
        return self._runner.may_start_early(call)

    def _start_ready(self) -> list[FunctionCall]:
        """Start the tools that there is room for; their calls."""
        done = self._done
        room = self._max_parallel - sum(not task.done() for task in done.tasks.values())
        new = [call for call in done.ready if call.call_id not in done.tasks]
        begun, done.ready = new[:room], new[room:]
        for call in begun:
            done.tasks[call.call_id] = asyncio.create_task(
                self._call(call), context=self._occupancy.inside()
            )
        return begun

    async def _call(self, call: FunctionCall) -> CallRecord:
        record = await self._runner.run(call, self._span, self._held.begin_of(call))
        await self._held.ended(record)
        return record

    async def _run_tools(self) -> RunEvents:
        """Run the calls that do not run yet, and see all to their end."""
        known = {*self._done.tasks, *(call.call_id for call in self._done.ready)}
        if not self._done.cancelled:
            self._done.ready += [call for call in self._done.open if call.call_id not in known]
        while True:
            for outcome in self._outcomes():  # of one that made room, before another begins
                yield outcome
            for call in self._start_ready():
                yield ToolStarted(call=call)
            running = [task for task in self._done.tasks.values() if not task.done()]
            for outcome in self._outcomes():  # of one that ended while others began, too
                yield outcome
            if running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            elif not self._done.ready:
                return

    def _outcomes(self) -> Iterator[ToolFinished | ToolFailed]:
        """Outcomes of calls since this was last asked."""
        for call_id, task in self._done.tasks.items():
            if task.done() and call_id not in self._done.told and not task.cancelled():
                self._done.told.add(call_id)
                if isinstance(task.exception(), NotBegun):
                    continue
                record = task.result()
                yield ToolFailed(record=record) if record.failed else ToolFinished(record=record)

    def _answer(self, reason: str = _NOT_BEGUN) -> None:
        """Answer the open calls with the next turn; ``reason`` for what never began."""
        answers: list[CallRecord] = []
        if self._chain.head != self._head:  # a stream was left, and its turn taken back
            self._done.open.clear()
        for call in self._done.open:
            task = self._done.tasks.get(call.call_id)
            if call.call_id in self._chain.held and _not_begun(task):
                self._done.waiting.append(call)
            elif task is None or not task.done() or task.cancelled() or task.exception():
                answers.append(interrupted(call, _unfinished(task, reason)))
            else:
                answers.append(task.result())
                self._done.records.append(answers[-1])
        self._chain.owed += wire_items(outputs(answers))
        self._chain.ran += reports(answers)
        self._done.open.clear()
        self._drop()

    def _shorten_owed(self) -> None:
        """Outputs that the context has no room for are cut once more, since they go with every
        further input: it may be shorter, and the session is to be of use."""
        self._chain.owed = [
            {**item, "output": shortened(item["output"], _LAST_RESORT_BYTES)}
            if "output" in item
            else item
            for item in self._chain.owed
        ]

    def _drop(self) -> None:
        """Forget the present turn's tools; what still runs is cancelled."""
        for task in self._done.tasks.values():
            task.cancel()
        self._done.ready.clear()
        self._done.tasks.clear()
        self._done.told.clear()

    async def _leave(self) -> None:
        """However the run ended, and though it is cancelled once more here: no tool runs on as a
        task, every call has an answer."""
        running = [task for task in self._done.tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running, timeout=_GRACE_S)
        finally:
            self._answer()

    def _faults(self) -> tuple[str, ...]:
        """The faults that keep the answer from being an ``output_type``; nothing if it is one.

        Raises:
            OutputInvalid: the model may not be asked again.
        """
        if self._plan.output_type is None or self._done.cancelled:
            return ()
        text = self._done.responses[-1].text
        try:
            self._done.value = read_json(self._plan.output_type, text)
            self._done.answered = True
        except ValidationError as error:
            return self._ask_again(faults(error))
        return ()

    def _invalid(self, failure: TurnFailed) -> tuple[str, ...]:
        """The server's complaint about a finished answer; any other failure is raised."""
        if failure.reason != "output_invalid" or self._plan.output_type is None:
            raise failure
        return self._ask_again((str(failure),))

    def _ask_again(self, found: tuple[str, ...]) -> tuple[str, ...]:
        if self._done.repairs >= self._plan.max_repairs:
            raise OutputInvalid(self._result(), found)
        self._done.repairs += 1
        return found

    def _result(self) -> LoopResult[Any]:
        done = self._done
        return LoopResult(
            responses=tuple(done.responses),
            failed=tuple(done.failed),
            calls=tuple(done.records),
            waiting=tuple(done.waiting),
            value=done.value,
            answered=done.answered,
            cancelled=done.cancelled,
        )


def _to_answer(call: Call) -> bool:
    """Whether the model waits for its output: it is whole, and the server has not run it."""
    ran = isinstance(call, BuiltInCall) and call.execution == "server"
    return call.status != "incomplete" and not ran


def _unfinished(task: asyncio.Task[CallRecord] | None, reason: str) -> str:
    """The text that the model reads of a call whose tool gave no record; ``reason`` if it never
    began."""
    if task is None:
        return reason
    error = task.exception() if task.done() and not task.cancelled() else None
    if not isinstance(error, HookEnded):
        return INTERRUPTED
    return _NOT_BEGUN if error.hook == "before_tool" else _NOT_READ


def _not_begun(task: asyncio.Task[CallRecord] | None) -> bool:
    """Nothing of the call has run here: the server knows how far it has come."""
    if task is None:
        return True
    error = task.exception() if task.done() and not task.cancelled() else None
    return isinstance(error, NotBegun | Refused | ConnectionLost)


def _repair(found: Sequence[str]) -> list[dict[str, Any]]:
    """The message to the model about an answer that does not fit."""
    told = "; ".join(found)
    return wire_items(f"That answer does not fit: {told}. Answer again with the corrected value.")
