"""What a session is about: its tools, what they answer, and the questions asked.

A ``Session`` is a script: the tools' schemas, and for each question the calls a perfect
assistant makes, the results it sees and the answer it gives. ``Toolbox`` is the same tools
as live functions, for playing the session with a real model that may call anything.
Nothing here knows of tokens or of the chat format.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float

OPERATIONS = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a tool."""

    name: str
    schema: dict[str, Any]
    """Its JSON schema: a type, perhaps an enum or a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the assistant may call."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    topic: str = ""
    """What a lookup tool knows, in the words of a question; empty for a calculator."""

    operation: str = ""
    """Key of OPERATIONS for a calculator, else empty."""

    closed: bool = False
    """Whether the schema says that no further properties are allowed."""

    sorted_keys: bool = False
    """Whether the schema's keywords are in alphabetical order, as code generators write them."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments object."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {p.name: p.schema for p in self.parameters},
            "required": [p.name for p in self.parameters],
        }
        if self.closed:
            schema["additionalProperties"] = False
        if self.sorted_keys:
            schema["properties"] = {p.name: dict(sorted(p.schema.items())) for p in self.parameters}
            schema = dict(sorted(schema.items()))
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: a tool's name and its arguments in the order of the schema."""

    name: str
    arguments: dict[str, Value]

    def key(self) -> tuple[str, str]:
        """Return what makes two calls the same call."""
        return self.name, json.dumps(self.arguments, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Calls made at once, and the JSON text each one returned."""

    calls: tuple[Call, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A user's question and the whole of the right reaction to it."""

    kind: str
    text: str
    steps: tuple[Step, ...]
    answer: str
    is_open: bool = False
    """It holds an argument of which only the schemas tell whether the first call takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Questions asked one after the other with one set of tools."""

    instructions: str | None
    tools: tuple[Tool, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A call that is looked up in the tools' schemas, and a question it answers but for what its
    second parameter is."""

    text: str
    call: Call


class Toolbox:
    """The session's tools as functions; they answer any call, right or wrong."""

    def __init__(self, session: Session) -> None:
        self._tools = {tool.name: tool for tool in session.tools}
        self._facts: dict[tuple[str, str], list[str]] = {}
        for question in session.questions:
            for step in question.steps:
                for call, result in zip(step.calls, step.results, strict=True):
                    self._facts.setdefault(call.key(), []).append(result)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the JSON text the tool answers; an unknown tool or fact is an error result.

        Where the script says that a tool fails first, it fails first here too.
        """
        tool = self._tools.get(name)
        if tool is None:
            return json.dumps({"error": "unknown tool"})
        key = Call(name=name, arguments=arguments).key()
        known = self._facts.get(key)
        if known:
            return known.pop(0) if len(known) > 1 else known[0]
        values = [arguments.get(p.name) for p in tool.parameters]
        if tool.operation and all(isinstance(v, int | float) for v in values):
            return json.dumps({"result": calculate(tool.operation, values)})
        return json.dumps({"error": "not found"})


def calculate(operation: str, values: Sequence[Any]) -> Value:
    """Apply a calculator's operation to two numbers; whole results are integers."""
    result = round(OPERATIONS[operation](*values), 4)
    return int(result) if result == int(result) else result
