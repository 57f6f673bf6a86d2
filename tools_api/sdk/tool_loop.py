"""Run a model's tool calls until it is done.

``@tool`` turns a typed function into a strict function tool; ``run_tools`` plays turns of a
session, runs the calls of each and sends back only their outputs. Knows nothing of sockets
(``tools_api.sdk.client``) and bounds nothing but the number of turns: a tool that must be cut
off does that itself.

Always true: every call that was run is answered, in the order of the calls. A tool that
raises, a name that does not exist and arguments that do not fit become error outputs for
the model to read. Calls whose tools were interrupted, by a cancelled task or Ctrl-C, are
answered with the session's next turn.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.client import AsyncSession, Session
from tools_api.sdk.turn import (
    GenerationOptions,
    Input,
    Response,
    TurnOptions,
    Usage,
    strict_schema,
)
from tools_api.tools import FunctionTool

ToolChoice = str | Mapping[str, Any]


class Tool:
    """A Python function and how the model sees it. Made by ``tool``; callable as before."""

    def __init__(
        self,
        function: Callable[..., Any],
        definition: FunctionTool,
        arguments: type[BaseModel],
    ) -> None:
        self._function = function
        self._arguments = arguments
        self.definition = definition
        self.is_async = inspect.iscoroutinefunction(function)

    @property
    def name(self) -> str:
        """As the model calls it: the function's own name."""
        return self.definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def bind(self, arguments: str) -> dict[str, Any]:
        """Read JSON arguments into what the function takes.

        Raises:
            ValidationError: they do not fit the function's types.
        """
        checked = self._arguments.model_validate_json(arguments)
        fields = self._arguments.model_fields
        return {str(field.alias): getattr(checked, name) for name, field in fields.items()}


def tool(function: Callable[..., Any]) -> Tool:
    """Make a strict tool of ``function``.

    The schema comes from the type hints: anything pydantic knows, with bounds and
    descriptions as ``Annotated[str, Field(max_length=20, description="...")]``. The first
    paragraph of the docstring is the description. The model must give every argument, also
    one with a default.

    Raises:
        TypeError: an argument has no type or cannot be passed by name.
    """
    name = function.__name__
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for argument in inspect.signature(function).parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise TypeError(f"tool {name}: {argument} cannot be passed by name")
        if argument.name not in hints:
            raise TypeError(f"tool {name}: argument {argument.name} has no type")
        # By alias: an argument may have a name that a pydantic model uses itself.
        fields[f"argument_{len(fields)}"] = (hints[argument.name], Field(alias=argument.name))
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    definition = FunctionTool(
        name=name,
        description=" ".join(paragraph.split()) or None,
        parameters=strict_schema(arguments),
    )
    return Tool(function, definition, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call and what came of it."""

    call: FunctionCall
    output: str
    failed: bool
    """The tool raised, does not exist, or was given arguments that do not fit."""
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """What a loop did, turn by turn."""

    responses: tuple[Response, ...] = ()
    calls: tuple[CallRecord, ...] = ()

    @property
    def final(self) -> Response:
        """The last response. ``final.status`` tells whether it was cut short."""
        return self.responses[-1]

    @property
    def text(self) -> str:
        """The text of the last response alone."""
        return self.final.text

    @property
    def usage(self) -> Usage:
        """Tokens of all turns. Each turn counts its whole context again, cached or not."""
        return sum((response.usage for response in self.responses), Usage())


class TooManyTurns(Exception):
    """The last turn allowed still has calls. They were not run; the session waits for them."""

    def __init__(self, result: LoopResult) -> None:
        super().__init__(f"the model still calls tools after {len(result.responses)} turns")
        self.result = result


def run_tools(
    session: Session,
    input: Input,
    tools: Sequence[Tool],
    *,
    max_turns: int = 16,
    tool_choice: ToolChoice | Callable[[int], ToolChoice] = "auto",
    **options: Unpack[GenerationOptions],
) -> LoopResult:
    """Play turns until one has no calls or is cut short. Calls run one after another.

    Args:
        tool_choice: of the first turn; later ones have ``auto``, since a choice that forces
            a call never ends. Or a function of the turn's number, which counts from 0.
        options: as for ``Session.respond``, for every turn.

    Raises:
        TooManyTurns: after ``max_turns`` turns.
        ApiError, TurnFailed, ConnectionLost: as ``Session.respond``.
    """
    if unfit := [tool.name for tool in tools if tool.is_async]:
        raise TypeError(f"async tools {unfit} need run_tools_async")
    result = LoopResult()
    for turn in range(max_turns):
        response = session.respond(input, **_options(tools, tool_choice, turn, options))
        result = replace(result, responses=(*result.responses, response))
        if _is_done(response):
            return result
        if turn + 1 < max_turns:
            records = _run_all(session, tools, response.calls)
            result = replace(result, calls=(*result.calls, *records))
            input = _outputs(records)
    raise TooManyTurns(result)


async def run_tools_async(
    session: AsyncSession,
    input: Input,
    tools: Sequence[Tool],
    *,
    max_turns: int = 16,
    tool_choice: ToolChoice | Callable[[int], ToolChoice] = "auto",
    **options: Unpack[GenerationOptions],
) -> LoopResult:
    """As ``run_tools``; the calls of a turn run at once, plain functions in threads."""
    result = LoopResult()
    for turn in range(max_turns):
        response = await session.respond(input, **_options(tools, tool_choice, turn, options))
        result = replace(result, responses=(*result.responses, response))
        if _is_done(response):
            return result
        if turn + 1 < max_turns:
            records = await _run_all_async(session, tools, response.calls)
            result = replace(result, calls=(*result.calls, *records))
            input = _outputs(records)
    raise TooManyTurns(result)


def _options(
    tools: Sequence[Tool],
    tool_choice: ToolChoice | Callable[[int], ToolChoice],
    turn: int,
    options: GenerationOptions,
) -> TurnOptions:
    if callable(tool_choice):
        choice = tool_choice(turn)
    else:
        choice = tool_choice if turn == 0 else "auto"
    definitions = [tool.definition for tool in tools]
    return TurnOptions(**options, tools=definitions, tool_choice=choice)


def _is_done(response: Response) -> bool:
    return not response.calls or response.status != "completed"


def _outputs(records: Sequence[CallRecord]) -> list[FunctionCallOutput]:
    return [
        FunctionCallOutput(call_id=record.call.call_id, output=record.output) for record in records
    ]


def _find(tools: Sequence[Tool], call: FunctionCall) -> Tool:
    for candidate in tools:
        if candidate.name == call.name:
            return candidate
    raise LookupError(f"there is no tool {call.name!r}")


def _run_all(
    session: Session, tools: Sequence[Tool], calls: Sequence[FunctionCall]
) -> list[CallRecord]:
    records: list[CallRecord] = []
    try:
        for call in calls:
            records.append(_run(tools, call))
    except BaseException:
        session.owe(_outputs([*records, *map(_interrupted, calls[len(records) :])]))
        raise
    return records


async def _run_all_async(
    session: AsyncSession, tools: Sequence[Tool], calls: Sequence[FunctionCall]
) -> list[CallRecord]:
    tasks = [asyncio.ensure_future(_run_async(tools, call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        ended = [task.done() and not task.cancelled() and not task.exception() for task in tasks]
        session.owe(
            _outputs(
                [
                    task.result() if well else _interrupted(call)
                    for task, call, well in zip(tasks, calls, ended, strict=True)
                ]
            )
        )
        raise


def _interrupted(call: FunctionCall) -> CallRecord:
    output = _json({"error": "interrupted: it is not known how far the tool came"})
    return CallRecord(call=call, output=output, failed=True, duration_s=0.0)


def _run(tools: Sequence[Tool], call: FunctionCall) -> CallRecord:
    started_at = time.perf_counter()
    try:
        found = _find(tools, call)
        output = found(**found.bind(call.arguments))
    except Exception as error:
        return _record(call, error, started_at)
    return _record(call, output, started_at)


async def _run_async(tools: Sequence[Tool], call: FunctionCall) -> CallRecord:
    started_at = time.perf_counter()
    try:
        found = _find(tools, call)
        arguments = found.bind(call.arguments)
        if found.is_async:
            output = await found(**arguments)
        else:
            output = await asyncio.to_thread(found, **arguments)
    except Exception as error:
        return _record(call, error, started_at)
    return _record(call, output, started_at)


def _record(call: FunctionCall, output: object, started_at: float) -> CallRecord:
    """The record of a call that gave ``output``, or raised it."""
    duration_s = time.perf_counter() - started_at
    failed = isinstance(output, Exception)
    if isinstance(output, ValidationError):
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
            for fault in output.errors(include_url=False)
        ]
        text = _json({"error": "the arguments do not fit", "faults": faults})
    elif isinstance(output, Exception):
        text = _json({"error": f"{type(output).__name__}: {output}"})
    else:
        text = output if isinstance(output, str) else _json(output)
    return CallRecord(call=call, output=text, failed=failed, duration_s=duration_s)


def _json(value: object) -> str:
    return to_json(value, serialize_unknown=True).decode()
