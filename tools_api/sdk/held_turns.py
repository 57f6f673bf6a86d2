"""Turns with a call that nobody here may approve: what of them runs, and what waits.

A turn is held where one of its calls needs approval and the session has nobody to ask. Its calls
are the server's to keep (``tools_api.sdk.open_calls``): each is begun there before its tool runs,
and its output is kept there, so that whoever goes on, in this process or another, runs nothing
twice. Of any other turn whose process ended before its tools did, the server has the calls alone:
those that may run twice are run, the others wait.

Always true: a tool that is not idempotent is begun by one run alone, unless somebody approves it
once more.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools_api.errors import MISSING_OUTPUT
from tools_api.items import CustomToolCall, FunctionCall
from tools_api.sdk.answers import AnyCall, CallRecord
from tools_api.sdk.chain import Chain
from tools_api.sdk.failures import ConnectionLost, Refused
from tools_api.sdk.open_calls import OpenCalls, PendingCall
from tools_api.sdk.options import Input
from tools_api.sdk.tool_output import refusal_text
from tools_api.sdk.tool_runner import Begin, Equipment, ToolRunner
from tools_api.sdk.tools import Tool

_LOG = logging.getLogger("keepwarm.tools")


class NotBegun(Exception):
    """A call that another run has begun, or that nobody has approved."""


@dataclass(slots=True, kw_only=True)
class Todo:
    """The work on the calls of a turn before the session can go on."""

    was_held: bool
    """The server knows which of them were begun."""
    run: list[FunctionCall] = field(default_factory=list)
    waiting: list[AnyCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences for the author."""
    order: dict[str, int] = field(default_factory=dict)
    """Call id -> place."""


class HeldTurns:
    """The held turns of one run."""

    def __init__(
        self, calls: OpenCalls, chain: Chain, runner: ToolRunner, equipment: Equipment
    ) -> None:
        self._calls = calls
        self._chain = chain
        self._runner = runner
        self._equipment = equipment
        self._was_refused = False

    def waits(self, call: AnyCall) -> bool:
        """Whether nothing of the call runs until somebody approves it."""
        found = self._runner.tool_of(call)
        return found is not None and self._equipment.leaves_open(found)

    def take(self, calls: Sequence[AnyCall]) -> None:
        """A turn has ended with these calls."""
        if any(map(self.waits, calls)):
            self._chain.held = frozenset(call.call_id for call in calls)

    def begin_of(self, call: FunctionCall) -> Begin | None:
        """Called before the call's tool runs; None: nobody has to be told."""
        found = self._runner.tool_of(call)
        if call.call_id not in self._chain.held or found is None:
            return None
        again, needs_approval = found.conduct.may_start_early, self._equipment.leaves_open(found)
        if again and not needs_approval:
            return None

        async def begin() -> None:
            if not await self._calls.begin(
                call.call_id, needs_approval=needs_approval, again=again
            ):
                raise NotBegun(call.call_id)

        return begin

    async def ended(self, record: CallRecord) -> None:
        """Have the output of a call of a held turn kept. Where the server cannot be told, this
        process has it all the same."""
        if record.call.call_id not in self._chain.held:
            return
        try:
            await self._calls.end(record.call.call_id, record.output)
        except (Refused, ConnectionLost) as error:
            told = "output is not kept call_id=%s reason=%s"
            _LOG.warning(told, record.call.call_id, error)

    async def todo(self, tools: Sequence[Tool]) -> Todo | None:
        """The work that the last turn left; None: it left nothing. Outputs that are there are owed.

        Raises:
            Refused, ConnectionLost: the server could not say.
        """
        if not (self._chain.held or self._was_refused or self._may_stand_at_one(tools)):
            return None
        listed = await self._calls.listed()
        if not listed:
            return None
        self._chain.held = frozenset(each.call.call_id for each in listed)
        owed = {item.get("call_id") for item in self._chain.owed}
        todo = Todo(was_held=any(map(self._is_of_a_held_turn, listed)))
        for number, each in enumerate(listed):
            todo.order[each.call.call_id] = number
            if each.call.call_id not in owed:
                self._sort(each, todo)
        return todo

    def was_left_by_another(self, refused: Refused) -> bool:
        """Whether a turn was refused since another process left calls of the session open: then
        ``todo`` has them. Once in a run."""
        unknown = not (self._was_refused or self._chain.marks or self._chain.held)
        if not (unknown and refused.message.startswith(MISSING_OUTPUT)):
            return False
        self._was_refused = True
        return True

    def _may_stand_at_one(self, tools: Sequence[Tool]) -> bool:
        """Another process may have left the session at a held turn."""
        unknown = not self._chain.marks and (self._chain.head or self._chain.name)
        return bool(unknown) and any(tool.conduct.needs_approval for tool in tools)

    def _is_of_a_held_turn(self, each: PendingCall) -> bool:
        found = self._runner.tool_of(each.call)
        return each.state != "pending" or (found is not None and found.conduct.needs_approval)

    def _sort(self, each: PendingCall, todo: Todo) -> None:
        found = self._runner.tool_of(each.call)
        written = isinstance(each.call, FunctionCall | CustomToolCall)
        if each.state == "ended" and written:
            self._owe(each.call, each.output or "")
        elif each.state == "rejected" and written:
            reason = f": {each.reason}" if each.reason else ""
            self._owe(each.call, refusal_text(f"the call was not approved{reason}"))
        elif found is None or not isinstance(each.call, FunctionCall):
            todo.waiting.append(each.call)
        elif each.state == "begun" and not found.conduct.may_start_early:
            todo.waiting.append(each.call)
            todo.notes.append(
                f"the call {each.call.call_id} of {found.name} was begun and its end is not known: "
                "answer it with session.owe, or make the tool idempotent"
            )
        elif each.state == "pending" and self._equipment.leaves_open(found):
            todo.waiting.append(each.call)
        elif not (todo.was_held or found.conduct.may_start_early):
            todo.waiting.append(each.call)
            todo.notes.append(
                f"the call {each.call.call_id} of {found.name} may have run, since its process has "
                "gone: approve it to have it run, answer it with session.owe, or make the tool "
                "idempotent"
            )
        else:
            todo.run.append(each.call)

    def _owe(self, call: AnyCall, output: str) -> None:
        kind = f"{call.type}_output"
        self._chain.owed.append({"type": kind, "call_id": call.call_id, "output": output})

    async def stand(self, todo: Todo) -> None:
        """All calls are answered: the next turn goes on behind them, in their order."""
        self._chain.owed.sort(key=lambda item: todo.order.get(item.get("call_id", ""), 1 << 30))
        self._chain.ran.clear()
        if self._chain.head is None:
            self._chain.head, self._chain.complete = await self._calls.standing(), False

    @property
    def request_id(self) -> str | None:
        """The id of the turn behind a held one: the same in every process, so that it is begun
        once. None: no other process asks for the turn."""
        if not self._chain.held or self._chain.is_fork:
            return None
        said = f"{self._chain.head}/{self._chain.resumes}"
        return f"req_{hashlib.sha256(said.encode()).hexdigest()[:32]}"


def refuse_unstored(tools: Sequence[Any], equipment: Equipment, options: Mapping[str, Any]) -> None:
    """Whether what waits for approval can be found again.

    Raises:
        TypeError: a tool waits for approval, and its turn is not to be stored.
    """
    if options.get("store", True):
        return
    for tool in tools:
        if isinstance(tool, Tool) and equipment.leaves_open(tool):
            raise TypeError(
                f"tool {tool.name} waits for approval, which store=False leaves no place for: "
                "give session(approve=...), or leave store out"
            )


def has_input(input: Input) -> bool:
    """Whether there is anything in a turn's input."""
    return isinstance(input, str) or len(input) > 0
